"""One stream to one controller replica over grpc.aio: drives the machine, signs, sends.

A stream lives on the SVID it was opened with: its own tunnel, its own channel, its
signer with the leaf of that tunnel. It decides nothing: `machine` does.
Every wait that leaves the process has a deadline, either here or in the machine.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import grpc
from cryptography import x509

from agent.attester import (
    AttestedStream,
    Attester,
    EvidenceTooLargeError,
    SignedMessage,
    Signer,
    SigningTime,
)
from agent.challenge import ChallengeRefusal, SignedChallenge
from agent.claims.pods import NOT_LOOKED, PodsReading
from agent.gpu.reading import GpuEvent, InventoryReading
from agent.session import machine
from agent.session.machine import (
    About,
    Acknowledged,
    Answer,
    End,
    EndReason,
    Late,
    Read,
    Report,
    SendNotice,
    Verdict,
)
from agent.witness import CheckpointWitness
from gpuwarden.audit.witness import Shown
from gpuwarden.clock import Clock
from gpuwarden.evidence.model import WANT_FAILURES, WANT_PODS
from gpuwarden.evidence.strict_json import EvidenceError, quote
from gpuwarden.identity.svid import Svid
from gpuwarden.moment import NS_PER_MS, NS_PER_S, utc
from gpuwarden.reasons import ReasonCode
from gpuwarden.settings.values import Address
from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import UNANSWERED, Round, Rounds, join_round, span
from gpuwarden.wire.error_metadata import REASON_KEY
from gpuwarden.wire.transport import client_options
from gpuwarden.wire.v1 import attestation_pb2 as wire
from gpuwarden.wire.v1.attestation_pb2_grpc import AttestationServiceStub

MAX_RECEIVED_BYTES: Final = 256 * 1024
"""Five certificates and a challenge fit twice."""
_UNKNOWN_CODE: Final = "UNKNOWN"
_WRITE_S: Final = 5.0
_FAREWELL_S: Final = 1.0
_READ_AHEAD: Final = 8
_TEXT: Final = 200
_WORD: Final = 80
_OPTIONS: Final = client_options(max_received_bytes=MAX_RECEIVED_BYTES)

_Call = grpc.aio.StreamStreamCall[wire.AttestRequest, wire.AttestResponse]


class DialError(Exception):
    """No way to the controller could be opened; one line for people."""


class Line(Protocol):
    """A private way to one controller, made with one SVID."""

    @property
    def target(self) -> str:
        """What a gRPC channel connects to; only this process can reach it."""

    @property
    def signer(self) -> Signer:
        """Signs with the SVID that this way presents."""

    def fault(self) -> str:
        """Why the last connection through it failed, as far as known, else empty."""


class Dialer(Protocol):
    """Opens lines; the real one is the TLS tunnel."""

    def dial(self, svid: Svid, address: Address) -> AbstractAsyncContextManager[Line]:
        """A line to `address` that presents `svid`; raises DialError when entered."""


class StreamRecorder(Protocol):
    """Shows streams and replicas in readiness, metrics and log.

    `agent.recorder` is above this layer; simulated nodes have a recorder of their own.
    """

    def add_replica(self, replica: Address) -> None:
        """This replica is to have a stream."""

    def remove_replica(self, replica: Address) -> None:
        """It no longer is."""

    def record_unresolved(self, controller: Address, detail: str) -> None:
        """A name could not be resolved; its replicas stay as they are."""

    def record_superseded(self, replica: Address) -> None:
        """Another instance speaks for this node; all links fall silent."""

    def record_opened(self, replica: Address, stream: int) -> None:
        """Hello was sent."""

    def record_verdict(self, replica: Address, stream: int, verdict: Verdict, about: About) -> None:
        """A verdict came."""

    def record_lost_round(self, replica: Address, stream: int) -> None:
        """The GPUs were not read in time."""

    def record_end(self, replica: Address, stream: int, end: End) -> None:
        """The stream is over."""


class StreamIds(Container[str], Protocol):
    """Stream ids of all streams of this process, so that none is used twice."""

    def add(self, stream_id: str) -> None:
        """Remember one."""


async def not_looked() -> PodsReading:
    """In the place of a look at the pods."""
    return NOT_LOOKED


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPorts:
    """What all streams of this process share."""

    attester: Attester
    dialer: Dialer
    read: Callable[[], Awaitable[InventoryReading]]
    """Reads the GPUs, beginning after the call."""
    pods: Callable[[], Awaitable[PodsReading]] = not_looked
    """Looks which pods run, beginning after the call."""
    roots: Callable[[], Sequence[x509.Certificate]]
    """Current trust bundle of the own trust domain."""
    witness: CheckpointWitness
    recorder: StreamRecorder
    stream_ids: StreamIds
    clock: Clock
    timing: machine.StreamTiming = field(default_factory=machine.StreamTiming)


@dataclass(frozen=True, slots=True)
class _Received:
    message: wire.AttestResponse


class Session:
    """One stream from dial to end. `run` once; `send_notice` and `stop` at any time, same loop."""

    def __init__(
        self,
        ports: SessionPorts,
        *,
        svid: Svid,
        replica: Address,
        stream: int,
        arrived: Callable[[], None] = lambda: None,
        accepted: Callable[[], None],
        acknowledged: Callable[[tuple[GpuEvent, ...]], None] = lambda _events: None,
    ) -> None:
        """`arrived` hears of the first challenge, `accepted` of each evidence that was accepted.

        `acknowledged` hears which failures this controller holds from now on.
        """
        self._ports = ports
        self._svid = svid
        self._replica = replica
        self._number = stream
        self._is_open = False
        self._arrived = arrived
        self._accepted = accepted
        self._acknowledged = acknowledged
        self._events: asyncio.Queue[machine.Event | _Received] = asyncio.Queue()
        self._read_ahead = asyncio.Semaphore(_READ_AHEAD)

    def send_notice(self, event: GpuEvent) -> None:
        """Send a failure notice for the event, now or as soon as a spare nonce is there."""
        self._events.put_nowait(machine.GpuFailed(event))

    def stop(self, detail: str) -> None:
        """Ask for the end of the stream."""
        self._events.put_nowait(machine.StopAsked(detail))

    async def run(self) -> End:
        """Dial, converse, close everything; returns why it ended, never raises for a peer."""
        try:
            async with self._ports.dialer.dial(self._svid, self._replica) as line:
                end = await self._connect(line)
        except DialError as error:
            end = End(EndReason.PEER, quote(str(error), _TEXT))
        self._ports.recorder.record_end(self._replica, self._number, end)
        return end

    async def _connect(self, line: Line) -> End:
        async with grpc.aio.insecure_channel(line.target, options=_OPTIONS) as channel:
            call = AttestationServiceStub(channel).Attest()
            async with asyncio.TaskGroup() as tasks:
                receiver = tasks.create_task(self._receive(call, line))
                conversation = _Conversation(
                    self._ports, line.signer, call, tasks, self._events, replica=self._replica
                )
                try:
                    end = await self._drive(conversation)
                    await _say_farewell(call, end)
                finally:
                    conversation.leave()
                    receiver.cancel()
                    call.cancel()
        return end

    async def _drive(self, conversation: "_Conversation") -> End:
        now_ns = self._ports.clock.boottime_ns()
        state = machine.greeted(now_ns, self._ports.timing)
        event: machine.Event | None = await conversation.greet()
        while True:
            if event is None:
                event = await self._next(state, conversation)
            state, actions = machine.step(state, event, self._ports.clock.boottime_ns())
            event = None
            for action in actions:
                match action:
                    case End():
                        return action
                    case Report(verdict, about):
                        self._report(verdict, about)
                        if about is not About.NOTICE:
                            conversation.rounds.end(verdict.challenge_id, verdict.code)
                    case Acknowledged(events):
                        self._acknowledged(events)
                    case Late(challenge_id):
                        conversation.rounds.end(challenge_id, "late")
                        self._ports.recorder.record_lost_round(self._replica, self._number)
                    case Read() | Answer() | SendNotice():
                        event = event or await conversation.perform(action)

    async def _next(self, state: machine.State, conversation: "_Conversation") -> machine.Event:
        deadline_ns = state.deadline_ns or 0
        left_s = max(0.0, (deadline_ns - self._ports.clock.boottime_ns()) / NS_PER_S)
        try:
            async with asyncio.timeout(left_s):
                event = await self._events.get()
        except TimeoutError:
            return machine.Due()
        if not isinstance(event, _Received):
            return event
        self._read_ahead.release()
        found = conversation.understand(event.message)
        if isinstance(found, machine.Challenged) and not self._is_open:
            # Hello waits in a buffer until there is a connection: only an answer shows one.
            self._is_open = True
            self._ports.recorder.record_opened(self._replica, self._number)
            self._arrived()
        return found

    def _report(self, verdict: Verdict, about: About) -> None:
        self._ports.recorder.record_verdict(self._replica, self._number, verdict, about)
        if verdict.accepted and about is About.EVIDENCE:
            self._accepted()

    async def _receive(self, call: _Call, line: Line) -> None:
        """Pass on what comes, a few messages ahead, until the stream ends."""
        while True:
            await self._read_ahead.acquire()
            try:
                message = await call.read()
            except grpc.aio.AioRpcError as error:
                return self._events.put_nowait(_ended(error, line))
            if message is grpc.aio.EOF:
                return self._events.put_nowait(machine.PeerEnded("the controller ended the stream"))
            if not isinstance(message, wire.AttestResponse):
                # grpc.aio logs what it cannot parse and hands on None.
                return self._events.put_nowait(machine.Malformed("a message does not parse"))
            self._events.put_nowait(_Received(message))


class _Conversation:
    """The sending half: signs and writes, and remembers what was said."""

    def __init__(
        self,
        ports: SessionPorts,
        signer: Signer,
        call: _Call,
        tasks: asyncio.TaskGroup,
        events: asyncio.Queue[machine.Event | _Received],
        *,
        replica: Address,
    ) -> None:
        self.rounds = Rounds()
        """For traces."""
        self._replica = replica
        self._ports = ports
        self._signer = signer
        self._call = call
        self._tasks = tasks
        self._events = events
        self._hello = ports.attester.hello(ports.witness.checkpoints())
        self._stream: AttestedStream = ports.attester.open_stream(self._hello, signer.leaf)
        self._reading: asyncio.Task[None] | None = None

    async def greet(self) -> machine.Event | None:
        """Send Hello."""
        return await self._write(
            wire.AttestRequest(hello=wire.Hello(document=self._hello)),
        )

    def understand(self, message: wire.AttestResponse) -> machine.Event:
        """What a message means to the machine; a challenge is verified here."""
        match message.WhichOneof("message"):
            case "challenge":
                return self._verify(message.challenge)
            case "verdict":
                return machine.VerdictReceived(_verdict(message.verdict))
            case None:
                return machine.Malformed("a message without content")

    async def perform(self, action: Read | Answer | SendNotice) -> machine.Event | None:
        """Carry an action out; returns what went wrong as an event."""
        if isinstance(action, Read):
            self.cancel_reading()
            traced = self.rounds.of(action.challenge_id)
            self._reading = self._tasks.create_task(self._read(action.challenge_id, traced))
            return None
        assert self._stream.challenge is not None  # noqa: S101 -- the machine answers challenges
        traced = self.rounds.of(self._stream.challenge.document.challenge_id)
        with (
            traced.inside(),
            span(Span.EVIDENCE, kind="answer" if isinstance(action, Answer) else "notice"),
        ):
            return await self._say(action)

    async def _say(self, action: Answer | SendNotice) -> machine.Event | None:
        try:
            message = self._sign(action)
        except (EvidenceTooLargeError, EvidenceError) as error:
            return machine.EvidenceFailed(quote(str(error), _TEXT))
        # Said once signed: whether or not the write succeeds, no nonce is used again.
        self._stream = message.stream
        return await self._write(message.request)

    def leave(self) -> None:
        """The stream is over."""
        self.cancel_reading()
        self.rounds.end_all(UNANSWERED)

    def cancel_reading(self) -> None:
        """Wait for the GPUs no longer."""
        if self._reading is not None:
            self._reading.cancel()

    def _sign(self, action: Answer | SendNotice) -> SignedMessage:
        clock = self._ports.clock
        at = SigningTime(clock.wall_ns() // NS_PER_MS, clock.boottime_ns() // NS_PER_MS)
        match action:
            case Answer(reading):
                witness = self._ports.witness
                return self._ports.attester.evidence(
                    self._stream,
                    reading,
                    witness.checkpoints(),
                    alarms=witness.alarms(),
                    signer=self._signer,
                    at=at,
                )
            case SendNotice(events):
                return self._ports.attester.failure_notice(
                    self._stream, events, signer=self._signer, at=at
                )

    async def _write(self, request: wire.AttestRequest) -> machine.Event | None:
        try:
            async with asyncio.timeout(_WRITE_S):
                await self._call.write(request)
        except TimeoutError:
            return machine.PeerEnded(f"a message could not be written within {_WRITE_S:.0f} s")
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The stream is dead; the receiver reports why in a moment. (Where the status came
            # while this write was under way, gRPC replaces it by INTERNAL: rare, and the
            # next stream gets the same status.)
            return None
        return None

    async def _read(self, challenge_id: str, traced: Round) -> None:
        with traced.inside(), span(Span.INVENTORY) as active:
            reading = await self._ports.read()
            if self._wants_pods():
                reading = replace(reading, pods=await self._ports.pods())
            active.set_attribute("gpus", len(reading.inventory.gpus))
        self._events.put_nowait(machine.ReadingDone(challenge_id, reading))

    def _wants_pods(self) -> bool:
        challenge = self._stream.challenge
        return challenge is not None and WANT_PODS in challenge.document.want

    def _verify(self, challenge: wire.Challenge) -> machine.Event:
        signed = SignedChallenge(
            challenge.envelope.payload,
            challenge.envelope.payload_type,
            challenge.envelope.signature,
            tuple(challenge.certificate_chain),
        )
        is_first = self._stream.challenge is None
        judged = self._ports.attester.challenged(
            self._stream,
            signed,
            roots=self._ports.roots(),
            now=utc(self._ports.clock.wall_ns()),
            used_stream_ids=self._ports.stream_ids,
        )
        if isinstance(judged, ChallengeRefusal):
            return machine.ChallengeDenied(f"{judged.defect}: {quote(judged.detail, _TEXT)}")
        self._stream = judged
        assert judged.challenge is not None  # noqa: S101 -- `challenged` opened one
        document = judged.challenge.document
        if is_first:
            self._ports.stream_ids.add(document.stream_id)
        if document.checkpoint is not None:
            self._ports.witness.witness(
                Shown(
                    document.checkpoint,
                    document.consistency_proof,
                    document.log_key or "",
                    document.log_key_changes,
                )
            )
        self.rounds.begin(
            document.challenge_id,
            join_round(Span.ATTESTATION, document.challenge_id, replica=str(self._replica)),
        )
        return machine.Challenged(
            document.challenge_id,
            document.ttl_ms,
            document.interval_ms,
            wants_failures=WANT_FAILURES in document.want,
        )


async def _say_farewell(call: _Call, end: End) -> None:
    """End this side's half cleanly where the other side is still there to see it."""
    if end.reason is not EndReason.STOPPED:
        return
    try:
        async with asyncio.timeout(_FAREWELL_S):
            await call.done_writing()
            await call.code()
    except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return


def _ended(error: grpc.aio.AioRpcError, line: Line) -> machine.PeerEnded:
    code = _trailer(error)
    detail = f"{error.code().name}: {error.details() or ''}"
    if not code and (fault := line.fault()):
        detail = f"{detail} ({fault})"
    return machine.PeerEnded(quote(detail, _TEXT), code)


def _trailer(error: grpc.aio.AioRpcError) -> str:
    for key, value in error.trailing_metadata() or ():
        if key == REASON_KEY:
            return _known(value if isinstance(value, str) else "")
    return ""


def _known(code: str) -> str:
    return code if code in ReasonCode.__members__ else _UNKNOWN_CODE


def _verdict(verdict: wire.Verdict) -> Verdict:
    return Verdict(
        challenge_id=verdict.challenge_id.hex()[:_WORD],
        accepted=verdict.outcome == wire.OUTCOME_ACCEPTED,
        code=_known(verdict.code),
        detail=quote(verdict.detail, _TEXT),
        attestation_hash=quote(verdict.attestation_hash, _TEXT),
        level=quote(verdict.level, _WORD),
        fresh_for_ms=verdict.fresh_for_ms,
        next_challenge_ms=verdict.next_challenge_ms,
    )
