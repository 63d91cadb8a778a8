"""Names to addresses, and links to replicas over real gRPC on unix sockets."""

import asyncio
import socket
import tempfile
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.gpu.reading import GpuEvent
from agent.session.client import SessionPorts
from agent.session.link import LinkTiming
from agent.session.replicas import (
    MAX_REPLICAS,
    LinkPorts,
    ReplicaSet,
    ResolveError,
    SystemResolver,
    UsedStreamIds,
)
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
from tests.hang import HANG_S

# --- resolver


NAME = Address("controllers.test", 9443)
V4, V6 = socket.AF_INET.value, socket.AF_INET6.value


def answering(*found: tuple[int, str]) -> SystemResolver:
    return SystemResolver(lambda _host, _port: found)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_literal_addresses_are_not_looked_up(host: str) -> None:
    def refuse(_host: str, _port: int) -> Sequence[tuple[int, str]]:
        raise AssertionError

    assert await SystemResolver(refuse).resolve(Address(host, 1)) == {Address(host, 1)}


async def test_all_addresses_of_a_name() -> None:
    found = await answering((V4, "10.0.0.1"), (V4, "10.0.0.2"), (V4, "10.0.0.1")).resolve(NAME)
    assert found == {Address("10.0.0.1", 9443), Address("10.0.0.2", 9443)}


async def test_only_the_preferred_family_so_that_no_replica_is_met_twice() -> None:
    found = await answering((V6, "fd00::1"), (V4, "10.0.0.1"), (V6, "fd00::2")).resolve(NAME)
    assert found == {Address("fd00::1", 9443), Address("fd00::2", 9443)}


async def test_too_many_addresses_are_cut() -> None:
    found = await answering(*((V4, f"10.0.0.{n}") for n in range(MAX_REPLICAS + 5))).resolve(NAME)
    assert len(found) == MAX_REPLICAS


async def test_no_address_is_an_error() -> None:
    with pytest.raises(ResolveError, match="no address"):
        await answering().resolve(NAME)


@pytest.mark.parametrize(
    "error", [socket.gaierror(-2, "Name or service not known"), UnicodeError()]
)
async def test_a_name_that_does_not_resolve(error: Exception) -> None:
    def fail(_host: str, _port: int) -> Sequence[tuple[int, str]]:
        raise error

    with pytest.raises(ResolveError, match=r"controllers\.test:9443"):
        await SystemResolver(fail).resolve(NAME)


async def test_a_hanging_look_up_is_left_alone_and_not_repeated() -> None:
    go_on = threading.Event()
    asked: list[str] = []

    def hang(host: str, _port: int) -> Sequence[tuple[int, str]]:
        asked.append(host)
        go_on.wait(HANG_S)
        return [(V4, "10.0.0.1")]

    resolver = SystemResolver(hang, deadline_s=0.02)
    with pytest.raises(ResolveError, match="no answer in"):
        await resolver.resolve(NAME)
    with pytest.raises(ResolveError, match="has not returned yet"):
        await resolver.resolve(NAME)
    assert len(asked) == 1
    go_on.set()
    async with asyncio.timeout(HANG_S):
        while True:
            try:
                assert await resolver.resolve(NAME) == {Address("10.0.0.1", 9443)}
            except ResolveError:
                await asyncio.sleep(0.01)
            else:
                break


async def test_the_system_s_resolver() -> None:
    found = await SystemResolver().resolve(Address("localhost", 7))
    assert found in ({Address("127.0.0.1", 7)}, {Address("::1", 7)})


# --- replicas


CA = SpiffeCa()
SVID = CA.svid(AGENT)
CONTROLLER_SVID = CA.svid(CONTROLLER)
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
    resolve_interval_s: float = 0.02
    unacknowledged: tuple[GpuEvent, ...] = ()
    kept: asyncio.Queue[tuple[GpuEvent, ...]] = field(default_factory=asyncio.Queue)
    """What is to be remembered, after each change."""

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
        ports = LinkPorts(session=session, jitter=lambda: 0.5, timing=self.timing)
        replicas = ReplicaSet(
            ports,
            (NAME,),
            svids=self.svids,
            resolver=self.resolver,
            resolve_interval_s=self.resolve_interval_s,
            unacknowledged=self.unacknowledged,
            notices_changed=lambda: self.kept.put_nowait(replicas.unacknowledged),
        )
        task = asyncio.create_task(replicas.run())
        try:
            yield replicas
        finally:
            replicas.halt()
            async with asyncio.timeout(HANG_S):
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
        await cluster.heard("remove_replica", ONE)
        assert cluster.controllers[ONE].streams[0].ended
        cluster.resolver.answers[NAME] = frozenset({ONE, TWO})
        one = cluster.controllers[ONE]
        await one.until(lambda: len(one.all_evidence) == 2)


async def test_a_dead_resolver_keeps_what_is_there(cluster: Cluster) -> None:
    async with cluster.running():
        await cluster.accepted(ONE, TWO)
        cluster.resolver.answers[NAME] = "no answer"
        await cluster.heard("record_unresolved", NAME, "no answer")
        assert not cluster.controllers[ONE].streams[0].ended
        await cluster.controllers[ONE].challenge(cluster.controllers[ONE].streams[0])
        one = cluster.controllers[ONE]
        await one.until(lambda: len(one.all_evidence) == 2)
        assert len(one.streams) == 1


async def test_a_name_that_has_no_addresses_yet_is_asked_again_before_the_interval_is_over(
    cluster: Cluster,
) -> None:
    cluster.resolve_interval_s = 3600
    cluster.resolver.answers[NAME] = "no address"
    async with cluster.running():
        await cluster.heard("record_unresolved", NAME, "no address")
        cluster.resolver.answers[NAME] = frozenset({ONE, TWO})
        await cluster.accepted(ONE, TWO)


async def test_no_svid_no_stream(cluster: Cluster) -> None:
    cluster.svids.svid = None
    async with cluster.running():
        await cluster.heard("add_replica", ONE)
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
        await cluster.recorder.until(lambda: len(cluster.recorder.of("record_end")) >= 3)
        one.refusal = None
        await cluster.accepted(ONE)


async def test_superseded_by_one_is_silent_to_all_and_stays(cluster: Cluster) -> None:
    async with cluster.running():
        await cluster.accepted(ONE, TWO)
        cluster.controllers[ONE].refusal = ("STREAM_SUPERSEDED", "a newer one")
        await cluster.controllers[ONE].stop()
        await cluster.controllers[ONE].start(cluster.folder / ONE.host)
        await cluster.heard("record_superseded", ONE)
        two = cluster.controllers[TWO]
        await two.until(lambda: two.streams[0].ended)
        dialled = len(cluster.dialer.dialled)
        cluster.svids.change(CA.svid(AGENT))
        cluster.resolver.answers[NAME] = frozenset({ONE, TWO, Address("10.0.0.3", 1)})
        await asyncio.sleep(0.1)
        assert len(cluster.dialer.dialled) == dialled
        assert len(cluster.recorder.of("record_superseded")) == 1


async def test_bad_news_goes_to_every_replica(cluster: Cluster) -> None:
    async with cluster.running() as replicas:
        await cluster.accepted(ONE, TWO)
        replicas.send_notice(xid())
        for controller in cluster.controllers.values():
            await controller.until(lambda: bool(controller.all_news))  # noqa: B023 -- awaited here


async def test_bad_news_waits_for_a_stream(cluster: Cluster) -> None:
    cluster.svids.svid = None
    cluster.resolver.answers[NAME] = frozenset({ONE})
    async with cluster.running() as replicas:
        await cluster.heard("add_replica", ONE)
        replicas.send_notice(xid())
        cluster.svids.change(SVID)
        one = cluster.controllers[ONE]
        await one.until(lambda: bool(one.all_evidence))
        [news], [evidence] = one.all_news, one.all_evidence
        assert (news.seq, evidence.seq) == (1, 2)


async def test_what_was_not_acknowledged_is_reported_on_the_next_stream(cluster: Cluster) -> None:
    cluster.resolver.answers[NAME] = frozenset({ONE})
    one = cluster.controllers[ONE]
    one.refuse_notice = "ENROLLMENT_STALE"
    async with cluster.running() as replicas:
        await cluster.accepted(ONE)
        replicas.send_notice(xid())
        await one.until(lambda: bool(one.all_news))
        await one.stop()
        one.refuse_notice = None
        await one.start(cluster.folder / ONE.host)
        await one.until(lambda: one.streams[-1].news != [] and len(one.streams) > 1)
    assert set(one.failures) == {("xid", 79)}


async def test_what_one_replica_holds_needs_no_keeping(cluster: Cluster) -> None:
    cluster.controllers[TWO].refuse_notice = "ENROLLMENT_STALE"
    async with cluster.running() as replicas:
        await cluster.accepted(ONE, TWO)
        replicas.send_notice(xid())
        assert await cluster.kept.get() == (xid(),)
        assert await asyncio.wait_for(cluster.kept.get(), HANG_S) == ()


async def test_a_replica_that_comes_later_hears_what_nobody_holds(cluster: Cluster) -> None:
    cluster.resolver.answers[NAME] = frozenset({ONE})
    cluster.controllers[ONE].refuse_notice = "ENROLLMENT_STALE"
    async with cluster.running() as replicas:
        await cluster.accepted(ONE)
        replicas.send_notice(xid())
        cluster.resolver.answers[NAME] = frozenset({ONE, TWO})
        two = cluster.controllers[TWO]
        await two.until(lambda: bool(two.all_news))


async def test_what_an_earlier_process_could_not_report_is_reported(cluster: Cluster) -> None:
    cluster.unacknowledged = (xid(48),)
    async with cluster.running():
        for controller in cluster.controllers.values():
            await controller.until(lambda: bool(controller.all_news))  # noqa: B023 -- awaited here
            assert controller.failures == [("xid", 48)]


async def test_an_svid_that_is_gone_before_it_was_used(cluster: Cluster) -> None:
    async with cluster.running():
        cluster.svids.change(None)
        cluster.svids.change(SVID)
        await cluster.accepted(ONE, TWO)
