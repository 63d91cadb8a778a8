"""One stream over real gRPC on a unix socket, against a controller that can misbehave."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

from agent.challenge import SignedChallenge
from agent.claims.pods import PodsReading
from agent.gpu.reading import GpuEvent
from agent.session.client import Session, SessionPorts
from agent.session.machine import About, End, EndReason, StreamTiming, Verdict
from agent.session.replicas import UsedStreamIds
from gpuwarden.audit.witness import Shown
from gpuwarden.clock import SystemClock
from gpuwarden.evidence.model import (
    Challenge,
    EvidenceWithPods,
    FailedRead,
    LogAlarm,
    WitnessedCheckpoint,
)
from gpuwarden.settings.values import Address
from gpuwarden.wire.v1 import attestation_pb2 as wire
from tests.builders.attesting import AGENT, attester, reading, xid
from tests.builders.ca import SpiffeCa
from tests.builders.challenges import CONTROLLER
from tests.fakes.agent_ports import FakeGpus, FakeWitness, PlainDialer, RecordingRecorder
from tests.fakes.fake_controller import HASH, FakeController, changed
from tests.hang import HANG_S

CA = SpiffeCa()
SVID = CA.svid(AGENT)
CONTROLLER_SVID = CA.svid(CONTROLLER)
REPLICA = Address("10.0.0.1", 9443)


@dataclass
class Bench:
    """A controller, and all that a session needs to reach it."""

    controller: FakeController
    dialer: PlainDialer
    gpus: FakeGpus = field(default_factory=FakeGpus)
    witness: FakeWitness = field(default_factory=FakeWitness)
    recorder: RecordingRecorder = field(default_factory=RecordingRecorder)
    stream_ids: UsedStreamIds = field(default_factory=UsedStreamIds)
    roots: tuple[x509.Certificate, ...] = CA.roots
    timing: StreamTiming = field(default_factory=StreamTiming)
    accepted: int = 0
    streams: int = 0
    acknowledged: list[GpuEvent] = field(default_factory=list)
    looks: int = 0
    """At the pods that run."""

    def session(self) -> Session:
        self.streams += 1
        ports = SessionPorts(
            attester=attester(),
            dialer=self.dialer,
            read=self.gpus.read,
            pods=self.look,
            roots=lambda: self.roots,
            witness=self.witness,
            recorder=self.recorder,
            stream_ids=self.stream_ids,
            clock=SystemClock(),
            timing=self.timing,
        )
        return Session(
            ports,
            svid=SVID,
            replica=REPLICA,
            stream=self.streams,
            accepted=self.on_accepted,
            acknowledged=self.on_acknowledged,
        )

    async def look(self) -> PodsReading:
        self.looks += 1
        return PodsReading(("0" * 32,))

    def on_accepted(self) -> None:
        self.accepted += 1
        self.recorder.hear("accepted")

    def on_acknowledged(self, events: tuple[GpuEvent, ...]) -> None:
        self.acknowledged += events
        self.recorder.hear("acknowledged")

    async def end_of(self, session: Session | None = None) -> End:
        async with asyncio.timeout(HANG_S):
            end = await (session or self.session()).run()
        assert self.recorder.of("record_end")[-1] == (REPLICA, self.streams, end)
        return end

    def verdicts(self) -> list[tuple[Verdict, About]]:
        return [(entry[2], entry[3]) for entry in self.recorder.of("record_verdict")]  # type: ignore[misc] # as recorded


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c"
        controller = FakeController(CONTROLLER_SVID, SVID.leaf)
        await controller.start(path)
        yield Bench(controller, PlainDialer({REPLICA: path}))
        await controller.stop()


@asynccontextmanager
async def running(session: Session) -> AsyncIterator["asyncio.Task[End]"]:
    task = asyncio.create_task(session.run())
    try:
        yield task
    finally:
        session.stop("test is over")
        async with asyncio.timeout(HANG_S):
            await task


async def test_hello_challenge_evidence_verdict(bench: Bench) -> None:
    bench.witness.known = (WitnessedCheckpoint(origin="o", checkpoint="c"),)
    bench.witness.accused = (
        LogAlarm(code="LOG_RESET", origin="o", detail="d", known="k", seen="s", wall_ms="7"),
    )
    session = bench.session()
    async with running(session) as task:
        await bench.recorder.until(lambda: bench.accepted == 1)
        [stream] = bench.controller.streams
        assert stream.hello.node_name == "node-1"
        assert stream.hello.checkpoints == bench.witness.known
        [evidence] = stream.evidence
        assert evidence.inventory == bench.gpus.answer.inventory
        assert evidence.checkpoints == bench.witness.known
        assert evidence.log_alarms == bench.witness.accused
        [(verdict, about)] = bench.verdicts()
        assert (verdict.code, verdict.level, about) == ("ACCEPTED", "L0", About.EVIDENCE)
        assert verdict.attestation_hash == HASH
    assert task.result().reason is EndReason.STOPPED
    assert bench.controller.streams[0].ended


async def test_each_challenge_is_answered_with_a_fresh_reading(bench: Bench) -> None:
    bench.controller.interval_ms = 50
    async with running(bench.session()):
        await bench.controller.until(lambda: len(bench.controller.all_evidence) >= 3)
    stream = bench.controller.streams[0]
    assert [entry.seq for entry in stream.evidence] == list(range(1, len(stream.evidence) + 1))
    assert bench.gpus.begun >= 3


async def test_pods_are_looked_for_when_a_challenge_wants_them(bench: Bench) -> None:
    bench.controller.interval_ms = 50

    def every_second(document: Challenge) -> Challenge:
        wants = len(bench.controller.streams[0].challenges) % 2 == 1
        return changed(document, want=("inventory", "pods")) if wants else document

    bench.controller.alter = every_second
    async with running(bench.session()):
        await bench.controller.until(lambda: len(bench.controller.all_evidence) >= 4)
    told = [isinstance(x, EvidenceWithPods) for x in bench.controller.all_evidence]
    assert told[:4] == [False, True, False, True]
    assert bench.looks <= told.count(True) + 1


async def test_bad_news_uses_the_spare_nonce_while_evidence_is_read(bench: Bench) -> None:
    bench.gpus.hold = asyncio.Event()
    session = bench.session()
    async with running(session):
        await bench.recorder.until(
            lambda: bench.gpus.begun == 1 or "record_opened" in bench.recorder.names()
        )
        session.send_notice(xid())
        await bench.controller.until(lambda: bool(bench.controller.all_news))
        bench.gpus.hold.set()
        await bench.recorder.until(lambda: bench.accepted == 1)
        [news], [evidence] = bench.controller.streams[0].news, bench.controller.streams[0].evidence
        assert (news.seq, evidence.seq) == (1, 2)
        assert bench.controller.failures == [("xid", 79)]
        assert [about for _, about in bench.verdicts()] == [About.NOTICE, About.EVIDENCE]


async def test_one_notice_names_all_failures_where_the_controller_wants_it(bench: Bench) -> None:
    bench.controller.alter = lambda document: changed(document, want=("inventory", "failures"))
    session = bench.session()
    for number in range(60):
        session.send_notice(xid(number))
    async with running(session):
        await bench.controller.until(lambda: bool(bench.controller.all_news))
        await bench.recorder.until(lambda: len(bench.acknowledged) == 60)
    assert len(bench.controller.all_news) == 1
    assert bench.controller.failures == [("xid", number) for number in range(60)]


async def test_what_a_controller_refuses_is_not_acknowledged(bench: Bench) -> None:
    bench.controller.refuse_notice = "ENROLLMENT_STALE"
    session = bench.session()
    session.send_notice(xid())
    async with running(session):
        await bench.recorder.until(lambda: About.NOTICE in [x for _, x in bench.verdicts()])
        assert bench.acknowledged == []
        bench.controller.refuse_notice = None
        await bench.controller.challenge(bench.controller.streams[0])
        await bench.recorder.until(lambda: bench.acknowledged == [xid()])


async def test_a_checkpoint_of_a_verified_challenge_is_witnessed(bench: Bench) -> None:
    shown = Shown("main/0\n1\nx\n", ("proof",), "key", ("change",))
    bench.controller.alter = lambda document: changed(
        document,
        checkpoint=shown.note,
        consistency_proof=shown.proof,
        log_key=shown.key,
        log_key_changes=shown.key_changes,
    )
    async with running(bench.session()):
        await bench.recorder.until(lambda: bench.accepted == 1)
    assert bench.witness.seen == [shown]


ROGUE = CA.svid("spiffe://example.org/gpuwarden/agent/node-9")
FOREIGN = SpiffeCa().svid(CONTROLLER)


@pytest.mark.parametrize(
    ("knob", "value", "defect"),
    [
        ("svid", ROGUE, "identity"),
        ("svid", FOREIGN, "chain"),
        ("forge", lambda message: replace(message, signature=b""), "signature"),
        ("alter", lambda document: changed(document, leaf_sha256="0" * 64), "leaf"),
        ("alter", lambda document: changed(document, hello_sha256="0" * 64), "hello"),
        ("alter", lambda document: changed(document, trust_domain="other"), "domain"),
    ],
)
async def test_who_does_not_prove_to_be_the_controller_gets_nothing(
    bench: Bench, knob: str, value: Any, defect: str
) -> None:
    setattr(bench.controller, knob, value)
    end = await bench.end_of()
    assert end.reason is EndReason.UNPROVEN
    assert end.detail.startswith(f"{defect}: ")
    assert bench.gpus.begun == 0
    assert bench.controller.streams[0].evidence == []


async def test_a_replayed_challenge_is_refused_on_the_same_and_on_a_later_stream(
    bench: Bench,
) -> None:
    kept: list[SignedChallenge] = []

    def keep(message: SignedChallenge) -> SignedChallenge:
        kept.append(message)
        return message

    bench.controller.forge = keep
    async with asyncio.TaskGroup() as tasks:
        ending = tasks.create_task(bench.end_of())
        await bench.recorder.until(lambda: bench.accepted == 1)
        await bench.controller.send(bench.controller.streams[0], kept[0])
    assert ending.result().reason is EndReason.UNPROVEN
    assert ending.result().detail.startswith("replay: ")
    bench.controller.forge = lambda _: kept[0]
    end = await bench.end_of()
    assert (end.reason, end.detail) == (EndReason.UNPROVEN, "replay: the stream id was used before")
    assert len(bench.controller.streams[1].evidence) == 0


async def test_a_refusal_is_shown_and_the_round_goes_on(bench: Bench) -> None:
    bench.controller.interval_ms = 50
    bench.controller.judge = lambda _evidence: {
        "outcome": wire.OUTCOME_REFUSED,
        "code": "INVENTORY_INCOMPLETE",
        "detail": "vbios\x1b[31m missing",
        "attestation_hash": "",
    }
    async with running(bench.session()):
        await bench.controller.until(lambda: len(bench.controller.all_evidence) >= 2)
    verdict, about = bench.verdicts()[0]
    assert (verdict.code, about) == ("INVENTORY_INCOMPLETE", About.EVIDENCE)
    assert verdict.detail == "vbios\\x1b[31m missing"
    assert bench.accepted == 0


async def test_a_stream_that_is_refused_ends_with_the_controller_s_code(bench: Bench) -> None:
    bench.controller.refusal = ("NODE_DENIED", "quarantined by alice")
    end = await bench.end_of()
    assert (end.reason, end.code) == (EndReason.PEER, "NODE_DENIED")
    assert "quarantined by alice" in end.detail


async def test_superseded_by_status_and_by_verdict(bench: Bench) -> None:
    bench.controller.refusal = ("STREAM_SUPERSEDED", "")
    assert (await bench.end_of()).reason is EndReason.SUPERSEDED
    bench.controller.refusal = None
    bench.controller.judge = lambda _evidence: {
        "outcome": wire.OUTCOME_REFUSED,
        "code": "DUPLICATE_AGENT",
    }
    assert (await bench.end_of()).reason is EndReason.SUPERSEDED


@pytest.mark.parametrize("code", ["made up", "", "x" * 1000])
async def test_unknown_codes_are_one_code(bench: Bench, code: str) -> None:
    bench.controller.refusal = (code, "")
    if code != "x" * 1000:
        assert (await bench.end_of()).code == "UNKNOWN"
    bench.controller.refusal = None
    bench.controller.judge = lambda _evidence: {
        "outcome": wire.OUTCOME_REFUSED,
        "code": code,
        "next_challenge_ms": 0,
    }
    assert (await bench.end_of()).code == "UNKNOWN"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (wire.AttestResponse(), EndReason.PROTOCOL),
        (
            wire.AttestResponse(verdict=wire.Verdict(outcome=wire.OUTCOME_ACCEPTED)),
            EndReason.PROTOCOL,
        ),
        (wire.AttestResponse(challenge=wire.Challenge()), EndReason.UNPROVEN),
        (
            wire.AttestResponse(verdict=wire.Verdict(detail="x" * (300 * 1024))),
            EndReason.PEER,
        ),
    ],
)
async def test_what_is_out_of_turn_or_too_large_ends_the_stream(
    bench: Bench, message: wire.AttestResponse, reason: EndReason
) -> None:
    bench.controller.greeting = message
    assert (await bench.end_of()).reason is reason


async def test_a_silent_controller_is_left(bench: Bench) -> None:
    bench.controller.silent = True
    bench.timing = StreamTiming(greeting_s=0.05)
    end = await bench.end_of()
    assert (end.reason, end.detail) == (EndReason.SILENT, "no challenge after Hello")


async def test_a_reading_that_takes_too_long_costs_a_round(bench: Bench) -> None:
    bench.controller.ttl_ms = 50
    bench.controller.interval_ms = 200
    bench.gpus.hold = asyncio.Event()
    async with running(bench.session()):
        await bench.recorder.until(lambda: "record_lost_round" in bench.recorder.names())
        bench.gpus.hold.set()
        bench.controller.ttl_ms = 15_000
        await bench.recorder.until(lambda: bench.accepted == 1)
    assert bench.controller.streams[0].evidence[0].seq == 1


async def test_evidence_that_is_too_large_ends_the_stream(bench: Bench) -> None:
    failed = tuple(
        FailedRead(fact="f" * 200, gpu=None, call="c", error=str(number)) for number in range(1500)
    )
    bench.gpus.answer = reading(failed=failed)
    end = await bench.end_of()
    assert end.reason is EndReason.LOCAL


async def test_a_controller_that_cannot_be_dialled(bench: Bench) -> None:
    bench.dialer.sockets.clear()
    end = await bench.end_of()
    assert end == End(EndReason.PEER, "no way to 10.0.0.1:9443")


async def test_a_controller_that_is_not_there(bench: Bench) -> None:
    await bench.controller.stop()
    end = await bench.end_of()
    assert end.reason is EndReason.PEER
    assert end.detail.startswith("UNAVAILABLE")


async def test_a_controller_that_goes_away(bench: Bench) -> None:
    async with asyncio.TaskGroup() as tasks:
        ending = tasks.create_task(bench.end_of())
        await bench.recorder.until(lambda: bench.accepted == 1)
        await bench.controller.stop()
    assert ending.result().reason is EndReason.PEER


async def test_writing_to_a_dead_stream_is_an_end_and_no_crash(bench: Bench) -> None:
    bench.gpus.hold = asyncio.Event()
    session = bench.session()
    async with asyncio.TaskGroup() as tasks:
        ending = tasks.create_task(bench.end_of(session))
        await bench.controller.until(lambda: bool(bench.controller.streams))
        await bench.controller.stop()
        for _ in range(3):
            session.send_notice(xid())
        bench.gpus.hold.set()
    assert ending.result().reason is EndReason.PEER


@pytest.mark.parametrize(
    ("answer", "reason", "detail"),
    [
        ((b"\xff\xff\xff",), EndReason.PROTOCOL, "a message does not parse"),
        ((), EndReason.PEER, "the controller ended the stream"),
    ],
)
async def test_raw_answers(
    bench: Bench, answer: tuple[bytes, ...], reason: EndReason, detail: str
) -> None:
    async def attest(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        await anext(requests)
        for message in answer:
            yield message

    await bench.controller.stop()
    server = grpc.aio.server()
    handler: Any = grpc.stream_stream_rpc_method_handler(attest)
    service = grpc.method_handlers_generic_handler(
        "gpuwarden.wire.v1.AttestationService", {"Attest": handler}
    )
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"unix:{bench.dialer.sockets[REPLICA]}")
    await server.start()
    end = await bench.end_of()
    await server.stop(None)
    assert (end.reason, end.detail) == (reason, detail)


def test_stream_ids_are_remembered_up_to_a_limit() -> None:
    ids = UsedStreamIds(limit=2)
    for stream_id in ("a", "b", "b", "c"):
        ids.add(stream_id)
    assert [x in ids for x in ("a", "b", "c")] == [False, True, True]
