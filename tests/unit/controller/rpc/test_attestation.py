import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

import grpc
import pytest

from controller.access import PeerUsage, Rate
from controller.fleet.enrollment import MemoryEnrollmentStore
from controller.fleet.quarantine import QuarantineEntries
from controller.fleet.registry import FleetRegistry
from controller.rpc.attestation import AttestationService, AttestSession, SessionTiming, StreamTable
from controller.rpc.challenges import Challenger
from controller.rpc.intake import EvidenceIntake
from gpuwarden.clock import SystemClock
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import attestation_pb2 as pb
from tests.builders.ca import TRUST_DOMAIN, SpiffeCa
from tests.builders.evidence import Scene, agent_uri
from tests.builders.svids import FakeSvidSource
from tests.fakes.recording_audit import RecordingAudit
from tests.hang import HANG_S

# --- A session against a peer that misbehaves below the level of messages. No network


class AbortedError(Exception):
    """What gRPC raises in a handler that aborts."""


@dataclass
class FakeContext:
    """The context of a call: reads what a test puts in, writes as the test says."""

    incoming: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    written: list[pb.AttestResponse] = field(default_factory=list)
    wrote: asyncio.Event = field(default_factory=asyncio.Event)
    reading: int = 0
    stuck: bool = False
    dead: bool = False
    status: tuple[grpc.StatusCode, str] | None = None

    async def read(self) -> Any:
        self.reading += 1
        message = await self.incoming.get()
        if isinstance(message, Exception):
            raise message
        return message

    async def write(self, message: pb.AttestResponse) -> None:
        if self.dead:
            raise asyncio.InvalidStateError("RPC already finished.")
        if self.stuck:
            await asyncio.Event().wait()
        self.written.append(message)
        self.wrote.set()

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> NoReturn:
        del trailing_metadata
        self.status = (code, details)
        raise AbortedError


@dataclass
class Observed:
    ends: list[tuple[str | None, str]] = field(default_factory=list)

    def opened(self, stream: Any) -> None: ...

    def challenged(self, cause: str) -> None: ...

    def ended(self, peer: str, node: str | None, cause: str, detail: str) -> None:
        del peer, detail
        self.ends.append((node, cause))

    def appraised(self, result: Any, *, grant: bool, seconds: float) -> None: ...

    def changed(self, changes: Any, actor: str) -> None: ...


class Bench:
    """One session and what it talks to."""

    def __init__(self) -> None:
        clock = SystemClock()
        wall = datetime.fromtimestamp(clock.wall_ns() / 1e9, UTC)
        ca = SpiffeCa()
        self.scene = Scene(ca=ca, wall=wall, boottime_ns=clock.boottime_ns())
        self.context = FakeContext()
        self.observed = Observed()
        self.table = StreamTable()
        store = MemoryEnrollmentStore()
        intake = EvidenceIntake(
            verifier=self.scene.verifier,
            store=store,
            denials=QuarantineEntries(store),
            registry=FleetRegistry(),
            audit=RecordingAudit(),
            known=lambda: self.scene.known,
            now=lambda: self.scene.now,
            observer=self.observed,
        )
        svid = ca.svid(f"spiffe://{TRUST_DOMAIN}/gpuwarden/controller")
        service = AttestationService(
            verifier=self.scene.verifier,
            intake=intake,
            challenger=Challenger(self.scene.settings, FakeSvidSource(svid)),
            usage=PeerUsage(Rate(100.0, 100), Rate(100.0, 100)),
            table=self.table,
            known=lambda: self.scene.known,
            now=lambda: self.scene.now,
            jitter=lambda: 0.5,
            observer=self.observed,
            timing=SessionTiming(write_s=0.05),
        )
        context: Any = self.context
        self.session = AttestSession(service, context, agent_uri(), self.scene.stream_facts())

    def hello(self) -> None:
        document = canonical_json(self.scene.hello_document())
        self.context.incoming.put_nowait(pb.AttestRequest(hello=pb.Hello(document=document)))


async def test_a_peer_that_does_not_read_is_cut_off() -> None:
    bench = Bench()
    bench.context.stuck = True
    bench.hello()
    with pytest.raises(AbortedError):
        await bench.session.run()
    assert bench.context.status == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "the peer does not read",
    )
    assert bench.observed.ends == [("gpu-1", "unread")]
    assert list(bench.table) == []


async def test_writing_to_a_stream_that_is_dead_ends_the_session_quietly() -> None:
    bench = Bench()
    bench.context.dead = True
    bench.hello()
    await bench.session.run()
    assert bench.context.status is None
    assert bench.observed.ends == [("gpu-1", "peer")]


async def test_a_refusal_that_cannot_be_reported_still_ends_the_call() -> None:
    bench = Bench()
    bench.context.stuck = True
    bench.context.incoming.put_nowait(pb.AttestRequest(evidence=pb.Evidence()))
    with pytest.raises(AbortedError):
        await bench.session.run()
    assert bench.context.status is not None
    assert bench.context.status[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert bench.observed.ends == [(None, "TYPE_UNEXPECTED")]


async def test_a_peer_that_leaves_before_hello_is_no_silent_one() -> None:
    bench = Bench()
    bench.context.incoming.put_nowait(object())
    await bench.session.run()
    assert bench.context.status is None
    assert bench.observed.ends == [(None, "peer")]


async def test_a_cancelled_call_leaves_its_read_alone_and_nothing_else() -> None:
    """A read that was begun ends by itself, when its call does."""
    bench = Bench()
    bench.hello()
    running = asyncio.create_task(bench.session.run())
    await asyncio.wait_for(bench.context.wrote.wait(), HANG_S)
    while bench.context.reading < 2:  # noqa: ASYNC110 - a few turns of the loop
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert list(bench.table) == []
    assert bench.observed.ends == [("gpu-1", "peer")]
    (left,) = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left.cancelling()
    bench.context.incoming.put_nowait(RuntimeError("the call is over"))
    await asyncio.wait({left}, timeout=HANG_S)
    assert left.done()
    assert not left.cancelled()


class Stream(AttestSession):
    def __init__(self) -> None:
        self.ends: list[Refusal | None] = []

    def end(self, refusal: Refusal | None, /) -> None:
        self.ends.append(refusal)


def test_an_acceptance_ends_older_streams_of_its_node_and_no_others() -> None:
    table = StreamTable()
    old, accepted, newer, other = Stream(), Stream(), Stream(), Stream()
    for stream in (old, accepted, newer):
        table.add("a", stream)
    table.add("b", other)
    table.accepted("a", accepted)
    assert [end.code for end in old.ends if end] == [ReasonCode.STREAM_SUPERSEDED]
    assert accepted.ends == newer.ends == other.ends == []


def test_a_stream_that_is_gone_ends_nobody() -> None:
    table = StreamTable()
    old, gone = Stream(), Stream()
    table.add("a", old)
    table.accepted("a", gone)
    table.remove("a", gone)
    table.remove("b", gone)
    assert old.ends == []
    assert list(table) == [old]


def test_all_can_be_ended_in_an_orderly_way_and_leave() -> None:
    table = StreamTable()
    one, two = Stream(), Stream()
    table.add("a", one)
    table.add("b", two)
    table.end_all()
    assert one.ends == two.ends == [None]
    table.remove("a", one)
    table.remove("b", two)
    assert list(table) == []


def test_the_streams_of_one_node_can_be_ended_with_a_reason() -> None:
    table = StreamTable()
    one, two = Stream(), Stream()
    table.add("a", one)
    table.add("b", two)
    refusal = Refusal(ReasonCode.NODE_DENIED)
    table.end_node("a", refusal)
    table.end_node("c", refusal)
    assert (one.ends, two.ends) == ([refusal], [])
