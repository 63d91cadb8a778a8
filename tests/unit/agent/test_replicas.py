"""Links to replicas over real gRPC on unix sockets."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.session.client import SessionPorts
from agent.session.link import LinkTiming
from agent.session.replicas import LinkPorts, ReplicaSet, ResolveError, UsedStreamIds
from gpuwarden.clock import SystemClock
from gpuwarden.settings.values import Address
from tests.builders.attesting import AGENT, attester, xid
from tests.builders.ca import SpiffeCa
from tests.builders.challenges import CONTROLLER
from tests.fakes.agent_ports import (
    FakeGpus,
    FakeSvids,
    FakeWitness,
    PlainDialer,
    RecordingRecorder,
)
from tests.fakes.fake_controller import FakeController

CA = SpiffeCa()
SVID = CA.svid(AGENT)
CONTROLLER_SVID = CA.svid(CONTROLLER)
NAME = Address("controllers.test", 9443)
ONE, TWO = Address("10.0.0.1", 9443), Address("10.0.0.2", 9443)
QUICK = LinkTiming(spread_s=0.02, backoff_base_s=0.02, backoff_cap_s=0.1)


@dataclass
class FakeResolver:
    answers: dict[Address, frozenset[Address] | str]

    async def resolve(self, controller: Address) -> frozenset[Address]:
        answer = self.answers[controller]
        if isinstance(answer, str):
            raise ResolveError(answer)
        return answer


@dataclass
class Cluster:
    folder: Path
    controllers: dict[Address, FakeController] = field(default_factory=dict)
    svids: FakeSvids = field(default_factory=lambda: FakeSvids(SVID))
    gpus: FakeGpus = field(default_factory=FakeGpus)
    recorder: RecordingRecorder = field(default_factory=RecordingRecorder)
    dialer: PlainDialer = field(default_factory=lambda: PlainDialer({}))
    resolver: FakeResolver = field(
        default_factory=lambda: FakeResolver({NAME: frozenset({ONE, TWO})})
    )
    timing: LinkTiming = QUICK

    async def start(self, address: Address) -> FakeController:
        path = self.folder / address.host
        controller = FakeController(CONTROLLER_SVID, SVID.leaf)
        await controller.start(path)
        self.controllers[address] = controller
        self.dialer.sockets[address] = path
        return controller

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ReplicaSet]:
        session = SessionPorts(
            attester=attester(),
            dialer=self.dialer,
            read=self.gpus.read,
            roots=lambda: CA.roots,
            witness=FakeWitness(),
            recorder=self.recorder,
            stream_ids=UsedStreamIds(),
            clock=SystemClock(),
        )
        ports = LinkPorts(
            session=session, recorder=self.recorder, jitter=lambda: 0.5, timing=self.timing
        )
        replicas = ReplicaSet(
            ports, (NAME,), svids=self.svids, resolver=self.resolver, resolve_interval_s=0.02
        )
        task = asyncio.create_task(replicas.run())
        try:
            yield replicas
        finally:
            replicas.halt()
            async with asyncio.timeout(10):
                await task
        assert self.svids.subscribers == []

    async def accepted(self, *addresses: Address) -> None:
        for address in addresses:
            controller = self.controllers[address]
            await controller.until(lambda: bool(controller.all_evidence))  # noqa: B023 -- awaited here

    async def heard(self, name: str, *values: object) -> None:
        await self.recorder.until(lambda: values in self.recorder.of(name))


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        for address in (ONE, TWO):
            await cluster.start(address)
        yield cluster
        for controller in cluster.controllers.values():
            await controller.stop()


async def test_every_replica_has_a_stream_of_the_same_instance(cluster: Cluster) -> None:
    async with cluster.running():
        await cluster.accepted(ONE, TWO)
    hellos = [cluster.controllers[x].streams[0].hello for x in (ONE, TWO)]
    assert hellos[0].instance_id == hellos[1].instance_id


async def test_replicas_come_and_go(cluster: Cluster) -> None:
    cluster.resolver.answers[NAME] = frozenset({ONE})
    async with cluster.running():
        await cluster.accepted(ONE)
        cluster.resolver.answers[NAME] = frozenset({TWO})
        await cluster.accepted(TWO)
        await cluster.heard("unlinked", ONE)
        assert cluster.controllers[ONE].streams[0].ended
        cluster.resolver.answers[NAME] = frozenset({ONE, TWO})
        one = cluster.controllers[ONE]
        await one.until(lambda: len(one.all_evidence) == 2)


async def test_a_dead_resolver_keeps_what_is_there(cluster: Cluster) -> None:
    async with cluster.running():
        await cluster.accepted(ONE, TWO)
        cluster.resolver.answers[NAME] = "no answer"
        await cluster.heard("unresolved", NAME, "no answer")
        assert not cluster.controllers[ONE].streams[0].ended
        await cluster.controllers[ONE].challenge(cluster.controllers[ONE].streams[0])
        one = cluster.controllers[ONE]
        await one.until(lambda: len(one.all_evidence) == 2)
        assert len(one.streams) == 1


async def test_no_svid_no_stream(cluster: Cluster) -> None:
    cluster.svids.svid = None
    async with cluster.running():
        await cluster.heard("linked", ONE)
        assert cluster.dialer.dialled == []
        cluster.svids.change(SVID)
        await cluster.accepted(ONE, TWO)


async def test_rotation_makes_before_it_breaks(cluster: Cluster) -> None:
    one = cluster.controllers[ONE]
    cluster.resolver.answers[NAME] = frozenset({ONE})
    ended: list[bool] = []

    def judge(_evidence: object) -> dict[str, object]:
        ended.append(one.streams[0].ended)
        return {}

    one.judge = judge
    second = CA.svid(AGENT)
    async with cluster.running():
        await cluster.accepted(ONE)
        one.agent_leaf = second.leaf
        cluster.svids.change(second)
        await one.until(lambda: len(one.all_evidence) == 2 and one.streams[0].ended)
        assert ended == [False, False]
        assert not one.streams[1].ended
    assert cluster.dialer.dialled == [(ONE, SVID.generation), (ONE, second.generation)]


async def test_a_replica_that_refuses_is_asked_again(cluster: Cluster) -> None:
    cluster.resolver.answers[NAME] = frozenset({ONE})
    one = cluster.controllers[ONE]
    one.refusal = ("NODE_UNKNOWN", "")
    async with cluster.running():
        await cluster.recorder.until(lambda: len(cluster.recorder.of("ended")) >= 3)
        one.refusal = None
        await cluster.accepted(ONE)


async def test_superseded_by_one_is_silent_to_all_and_stays(cluster: Cluster) -> None:
    async with cluster.running():
        await cluster.accepted(ONE, TWO)
        cluster.controllers[ONE].refusal = ("STREAM_SUPERSEDED", "a newer one")
        await cluster.controllers[ONE].stop()
        await cluster.controllers[ONE].start(cluster.folder / ONE.host)
        await cluster.heard("superseded", ONE)
        two = cluster.controllers[TWO]
        await two.until(lambda: two.streams[0].ended)
        dialled = len(cluster.dialer.dialled)
        cluster.svids.change(CA.svid(AGENT))
        cluster.resolver.answers[NAME] = frozenset({ONE, TWO, Address("10.0.0.3", 1)})
        await asyncio.sleep(0.1)
        assert len(cluster.dialer.dialled) == dialled
        assert len(cluster.recorder.of("superseded")) == 1


async def test_bad_news_goes_to_every_replica(cluster: Cluster) -> None:
    async with cluster.running() as replicas:
        await cluster.accepted(ONE, TWO)
        replicas.tell(xid())
        for controller in cluster.controllers.values():
            await controller.until(lambda: bool(controller.all_news))  # noqa: B023 -- awaited here


async def test_bad_news_waits_for_a_stream(cluster: Cluster) -> None:
    cluster.svids.svid = None
    cluster.resolver.answers[NAME] = frozenset({ONE})
    async with cluster.running() as replicas:
        await cluster.heard("linked", ONE)
        replicas.tell(xid())
        cluster.svids.change(SVID)
        one = cluster.controllers[ONE]
        await one.until(lambda: bool(one.all_evidence))
        [news], [evidence] = one.all_news, one.all_evidence
        assert (news.seq, evidence.seq) == (1, 2)


async def test_an_svid_that_is_gone_before_it_was_used(cluster: Cluster) -> None:
    async with cluster.running():
        cluster.svids.change(None)
        cluster.svids.change(SVID)
        await cluster.accepted(ONE, TWO)
