"""AttestationService: one stream from its first byte to its end, who speaks when, for how long.

Hello, then Challenge -> Evidence -> Verdict at the set interval, and sooner where a release
waits for a report; failure notices in between. What counts is decided by the Verifier and
carried out by the intake; this module keeps time, pops nonces before anything is checked, and
ends the stream: at its age, with its certificate, when the peer falls silent or does not read,
when it is superseded, refused or drained.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn, Protocol

import grpc
from google.protobuf.message import DecodeError as WireError

from controller.access import PeerUsage
from controller.fleet.attestation_result import (
    Accepted,
    FailureNoticeAccepted,
    Refused,
    StreamState,
    refused,
)
from controller.rpc.calls import Context, RequestReader, Wakeup, abort_with, peer_key, stream_facts
from controller.rpc.challenges import Challenger, NoSvidError
from controller.rpc.intake import EvidenceIntake
from controller.rpc.strict_messages import MessageTooLargeError
from controller.verifier.challenge import (
    ChallengeStore,
)
from controller.verifier.context import (
    ReceivedMessage,
    Snapshots,
    StreamFacts,
)
from controller.verifier.session import check_limits
from controller.verifier.verifier import Verifier
from gpuwarden.evidence.model import WitnessedCheckpoint
from gpuwarden.moment import NS_PER_MS, NS_PER_S, Moment
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import Rounds, open_round, span
from gpuwarden.wire.v1 import attestation_pb2 as pb
from gpuwarden.wire.v1 import attestation_pb2_grpc as pb_grpc

# --- messages

_U32: Final = 2**32 - 1


def received(evidence: pb.Evidence) -> ReceivedMessage:
    """The message with its bytes as they came."""
    envelope = evidence.envelope
    return ReceivedMessage(
        stream_id=evidence.stream_id,
        challenge_id=evidence.challenge_id,
        nonce=evidence.nonce,
        payload=envelope.payload,
        payload_type=envelope.payload_type,
        signature=envelope.signature,
    )


def accepted_verdict(
    challenge_id: bytes, accepted: Accepted, *, now_ns: int, next_ns: int
) -> pb.AttestResponse:
    """Evidence counts: hash, level, and for how long."""
    return pb.AttestResponse(
        verdict=pb.Verdict(
            challenge_id=challenge_id,
            outcome=pb.OUTCOME_ACCEPTED,
            code=ReasonCode.ACCEPTED,
            attestation_hash=accepted.attestation_hash,
            level=accepted.level,
            fresh_for_ms=_ms(accepted.fresh_until_ns - now_ns),
            next_challenge_ms=_at_least_one(next_ns),
        )
    )


def noted_verdict(challenge_id: bytes) -> pb.AttestResponse:
    """A failure notice was taken; a challenge follows at once. A notice earns no hash."""
    return pb.AttestResponse(
        verdict=pb.Verdict(
            challenge_id=challenge_id,
            outcome=pb.OUTCOME_ACCEPTED,
            code=ReasonCode.ACCEPTED,
            detail="failure notice taken",
            next_challenge_ms=1,
        )
    )


def refused_verdict(
    challenge_id: bytes, code: ReasonCode, detail: str, *, next_ns: int | None
) -> pb.AttestResponse:
    """It does not count; `next_ns` is None when the stream ends."""
    return pb.AttestResponse(
        verdict=pb.Verdict(
            challenge_id=challenge_id,
            outcome=pb.OUTCOME_REFUSED,
            code=code,
            detail=detail,
            next_challenge_ms=0 if next_ns is None else _at_least_one(next_ns),
        )
    )


def _ms(nanoseconds: int) -> int:
    return min(max(nanoseconds, 0) // NS_PER_MS, _U32)


def _at_least_one(nanoseconds: int) -> int:
    """0 would say that the stream ends."""
    return max(1, _ms(nanoseconds))


# --- open streams


@dataclass(slots=True)
class StreamTable:
    """Open streams by node, oldest first.

    Make-before-break: an agent opens a second stream, and only when that one is accepted is the
    first ended. A new process of the agent does the same to the old one. So an accepted stream ends
    all older ones of its node and no newer one. State of one event loop; must not await.
    """

    _by_node: dict[str, list["AttestSession"]] = field(default_factory=dict)

    def add(self, node: str, stream: "AttestSession") -> None:
        """A stream of `node` was admitted; not accepted yet."""
        self._by_node.setdefault(node, []).append(stream)

    def remove(self, node: str, stream: "AttestSession") -> None:
        """A stream is over; no matter whether it was ever added."""
        streams = self._by_node.get(node, [])
        if stream in streams:
            streams.remove(stream)
        if not streams:
            self._by_node.pop(node, None)

    def accepted(self, node: str, stream: "AttestSession") -> None:
        """Evidence of `stream` counts: every older stream of the node is superseded."""
        streams = self._by_node.get(node, [])
        if stream not in streams:
            return
        for older in streams[: streams.index(stream)]:
            older.end(Refusal(ReasonCode.STREAM_SUPERSEDED, "a newer stream of this node counts"))

    def is_connected(self, node: str) -> bool:
        """Whether the node has a stream."""
        return node in self._by_node

    def ask(self, node: str) -> None:
        """Challenge a node as soon as it has no open challenge: which stream counts may change."""
        for stream in tuple(self._by_node.get(node, ())):
            stream.ask()

    def end_node(self, node: str, refusal: Refusal) -> None:
        """End every stream of a node."""
        for stream in tuple(self._by_node.get(node, ())):
            stream.end(refusal)

    def end_all(self) -> None:
        """End every stream in an orderly way."""
        for stream in tuple(self):
            stream.end(None)

    def counts(self) -> Mapping[str, int]:
        """How many are open for each node that has any."""
        return {node: len(streams) for node, streams in self._by_node.items()}

    def witnesses(self) -> Iterator[tuple[str, WitnessedCheckpoint]]:
        """The checkpoints that each connected agent last said it knows, by node."""
        for node in sorted(self._by_node):
            for one in self._by_node[node][-1].witnessed:
                yield node, one

    def __iter__(self) -> Iterator["AttestSession"]:
        for streams in self._by_node.values():
            yield from streams


# --- one stream

_JITTER: Final = 0.1
_GRAIN_S: Final = 0.001
"""Of the event loop's timers: what is waited for must have come when one fires."""


@dataclass(frozen=True, slots=True)
class SessionTiming:
    """Limits of waiting, seconds."""

    hello_s: float = 10.0
    write_s: float = 10.0
    age_s: float = 30 * 60.0


class StreamObserver(Protocol):
    """Takes note of streams, for metrics and logs. Must return at once.

    The recorder that implements it is above this layer.
    """

    def opened(self, stream: StreamState) -> None:
        """A stream was admitted."""

    def challenged(self, cause: str) -> None:
        """A challenge went out: `first`, `interval`, `failure-notice` or `release`."""

    def ended(self, peer: str, node: str | None, cause: str, detail: str) -> None:
        """A stream is over; `cause` is a reason code or one of a few words."""


class AttestationService(pb_grpc.AttestationServiceServicer):
    """The servicer of the agents' listener, and what all its streams share."""

    def __init__(
        self,
        *,
        verifier: Verifier,
        intake: EvidenceIntake,
        challenger: Challenger,
        usage: PeerUsage,
        table: StreamTable,
        known: Callable[[], Snapshots],
        now: Callable[[], Moment],
        jitter: Callable[[], float],
        observer: StreamObserver,
        heard: Callable[[str], None] = lambda _node: None,
        timing: SessionTiming = SessionTiming(),
    ) -> None:
        """`jitter` is uniform in [0, 1). `heard` is called once evidence of a node counts."""
        self.verifier = verifier
        self.intake = intake
        self.challenger = challenger
        self.usage = usage
        self.table = table
        self.known = known
        self.now = now
        self.jitter = jitter
        self.observer = observer
        self.heard = heard
        self.timing = timing

    async def Attest(  # type: ignore[override]  # noqa: N802 - grpc.aio's reader-writer form of the generated method
        self, request_iterator: AsyncIterator[pb.AttestRequest], context: Context
    ) -> None:
        """Run one stream; it is counted from its first moment to its last."""
        del request_iterator
        auth = context.auth_context()
        peer = peer_key(auth)
        occupancy = self.usage.open(peer, self.now().boottime_ns)
        try:
            facts = stream_facts(auth, occupancy)
            del auth  # what gRPC says of the peer would be kept for as long as the stream
            await AttestSession(self, context, peer, facts).run()
        finally:
            self.usage.close(peer)


class _End(Exception):  # noqa: N818 - no error: the way out of the conversation
    """The stream is to end now; made again for each end, because exceptions carry tracebacks."""

    def __init__(
        self,
        cause: str,
        status: grpc.StatusCode,
        detail: str,
        refusal: Refusal | None = None,
        challenge_id: bytes = b"",
    ) -> None:
        super().__init__(cause)
        self.cause = cause
        self.status = status
        self.detail = detail
        self.refusal = refusal
        """Sent to the peer in a verdict, before the status, as the answer to `challenge_id`."""
        self.challenge_id = challenge_id


class AttestSession:
    """One stream. `run` once; `end` at any time, same event loop."""

    def __init__(
        self, service: AttestationService, context: Context, peer: str, facts: StreamFacts
    ) -> None:
        self._service = service
        self._context = context
        self._peer = peer
        self._facts = facts
        self._node: str | None = None
        self._ending: _End | None = None
        self._wakeup = Wakeup()
        self._reader = RequestReader(context, self._wakeup.ring)
        self._peer_left = False
        self._challenges = ChallengeStore()
        self._rounds = Rounds()
        self._next_ns = 0
        self._is_asked = False
        self._heard_ns = 0
        self._ends_ns = 0
        self.witnessed: tuple[WitnessedCheckpoint, ...] = ()
        """Audit checkpoints that the agent last said it knows."""

    def ask(self) -> None:
        """Challenge before the interval is over: now, or when no challenge is open any more."""
        self._is_asked = True
        self._wakeup.ring()

    def end(self, refusal: Refusal | None, /) -> None:
        """End soon with this reason; None is an orderly end because the controller stops."""
        if self._ending is None:
            self._ending = _drained() if refusal is None else _refusal_end(refusal)
            self._wakeup.ring()

    async def run(self) -> None:
        """Converse until the end; raises only what ends a gRPC call."""
        end = _End("peer", grpc.StatusCode.OK, "the peer ended the stream")
        try:
            await self._converse()
        except _End as reason:
            end = reason.with_traceback(None)  # its frames and this session would keep each other
            await self._finish(end)
        except (_PeerLeftError, asyncio.InvalidStateError):
            end = _End("peer", grpc.StatusCode.CANCELLED, "the peer is gone")
        finally:
            self._rounds.end_all(end.cause)
            self._reader.leave()
            if self._node is not None:
                self._service.table.remove(self._node, self)
            self._service.observer.ended(self._peer, self._node, end.cause, end.detail)

    async def _converse(self) -> None:
        with span(Span.STREAM):
            state = await self._admit()
        self._node = state.node
        self._service.table.add(state.node, self)
        self.witnessed = state.witnessed
        self._service.observer.opened(state)
        await self._challenge(state, "first")
        while True:
            message = await self._receive(min(self._due_ns, self._ends_ns, self._silent_ns))
            if message is not None:
                state = await self._judge_in_its_round(state, message)
                self.witnessed = state.witnessed
                del message  # otherwise it would stay in memory until the next one
            elif self._peer_left:
                return
            else:
                await self._act_on_time(state)

    async def _admit(self) -> StreamState:
        """Step 1 before anything is awaited; the rest once Hello is there."""
        settings = self._service.verifier.settings
        if refusal := check_limits(self._facts, settings.limits):
            await self._refuse_stream(refused(refusal, None))
        opened = self._service.now()
        self._heard_ns = opened.boottime_ns
        hello = await self._receive(
            opened.boottime_ns + int(self._service.timing.hello_s * NS_PER_S)
        )
        if self._peer_left:
            raise _PeerLeftError
        if hello is None:
            raise _End("silent", grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello in time")
        if hello.WhichOneof("message") != "hello":
            await self._refuse_stream(refused(_OUT_OF_TURN, None))
        state = self._service.verifier.appraise_stream(
            self._facts,
            hello.hello.document,
            stream_id=self._service.challenger.stream_id(),
            known=self._service.known(),
            now=self._service.now(),
        )
        if isinstance(state, Refused):
            await self._refuse_stream(state)
        self._ends_ns = self._end_of(state, opened)
        return state

    def _end_of(self, state: StreamState, opened: Moment) -> int:
        left_s = (state.leaf.not_valid_after_utc - opened.wall).total_seconds()
        return opened.boottime_ns + int(min(left_s, self._service.timing.age_s) * NS_PER_S)

    async def _refuse_stream(self, refusal: Refused) -> NoReturn:
        await self._service.intake.refuse(refusal, self._peer)
        raise _refusal_end(Refusal(refusal.code, refusal.detail))

    async def _judge_in_its_round(
        self, state: StreamState, request: pb.AttestRequest
    ) -> StreamState:
        traced = self._rounds.of(request.evidence.challenge_id.hex())
        with traced.inside(), span(Span.MESSAGE):
            return await self._judge(state, request)

    async def _judge(self, state: StreamState, request: pb.AttestRequest) -> StreamState:
        now_ns = self._heard_ns = self._service.now().boottime_ns
        if refusal := self._service.usage.message(self._peer, now_ns):
            await self._refuse_stream(refused(refusal, state.node))
        if request.WhichOneof("message") != "evidence":
            await self._refuse_stream(refused(_OUT_OF_TURN, state.node))
        message = received(request.evidence)
        self._challenges, issued = self._challenges.pop(message, now_ns)
        result = await self._service.intake.take(state, message, issued)
        match result:
            case Accepted():
                self._service.table.accepted(state.node, self)
                self._service.heard(state.node)
                await self._answer_accepted(message.challenge_id, result)
                self._rounds.end(message.challenge_id.hex(), ReasonCode.ACCEPTED.value)
                return result.stream
            case FailureNoticeAccepted():
                await self._write(noted_verdict(message.challenge_id))
                await self._challenge(result.stream, "failure-notice")
                return result.stream
            case Refused():
                return await self._answer_refused(message.challenge_id, result)

    async def _answer_accepted(self, challenge_id: bytes, accepted: Accepted) -> None:
        now_ns = self._service.now().boottime_ns
        await self._write(
            accepted_verdict(challenge_id, accepted, now_ns=now_ns, next_ns=self._next_ns - now_ns)
        )

    async def _answer_refused(self, challenge_id: bytes, refusal: Refused) -> StreamState:
        if refusal.stream is None:
            raise _refusal_end(Refusal(refusal.code, refusal.detail), challenge_id)
        left_ns = self._next_ns - self._service.now().boottime_ns
        await self._write(
            refused_verdict(challenge_id, refusal.code, refusal.detail, next_ns=left_ns)
        )
        self._rounds.end(challenge_id.hex(), refusal.code.value)
        return refusal.stream

    async def _challenge(self, state: StreamState, cause: str) -> None:
        settings = self._service.verifier.settings
        spread = 1 + _JITTER * (2 * self._service.jitter() - 1)
        gap_ns = int(settings.interval_ns * spread)
        now = self._service.now()
        try:
            message, issued = self._service.challenger.challenge(state, now, gap_ns)
        except NoSvidError as error:
            raise _End("no-svid", grpc.StatusCode.UNAVAILABLE, str(error)) from error
        self._challenges = self._challenges.issue(issued)
        self._rounds.begin(
            issued.challenge_id,
            open_round(
                Span.CONTROLLER_ATTESTATION, issued.challenge_id, node=state.node, cause=cause
            ),
        )
        self._next_ns = now.boottime_ns + gap_ns
        self._is_asked = False
        self._service.observer.challenged(cause)
        await self._write(message)

    async def _act_on_time(self, state: StreamState) -> None:
        """Whatever is due: the end of the stream before another challenge."""
        now = self._service.now()
        if now.boottime_ns >= self._ends_ns:
            if now.wall >= state.leaf.not_valid_after_utc:
                raise _refusal_end(Refusal(ReasonCode.SVID_EXPIRED, "the peer's SVID ended"))
            raise _End("age", grpc.StatusCode.UNAVAILABLE, "the stream has reached its age")
        if now.boottime_ns >= self._silent_ns:
            raise _End("silent", grpc.StatusCode.DEADLINE_EXCEEDED, "no answer for a whole lease")
        if now.boottime_ns >= self._next_ns:
            await self._challenge(state, "interval")
        elif now.boottime_ns >= self._due_ns:
            await self._challenge(state, "release")

    @property
    def _due_ns(self) -> int:
        """When the next challenge goes out. A newer one would replace what the agent reads for."""
        if not self._is_asked:
            return self._next_ns
        return min(self._next_ns, self._challenges.open_until_ns)

    @property
    def _silent_ns(self) -> int:
        return self._heard_ns + self._service.verifier.settings.lease_ns

    async def _receive(self, until_ns: int) -> pb.AttestRequest | None:
        """The next message; None at `until_ns`, or at the peer's end (`_peer_left`)."""
        reading = self._reader.pending()
        if self._ending is None and not reading.done():
            seconds = max(0, until_ns - self._service.now().boottime_ns) / NS_PER_S
            await self._wakeup.wait(seconds + _GRAIN_S)
        if self._ending is not None:
            raise self._ending
        if not reading.done():
            return None
        try:
            message = self._reader.take()
        except MessageTooLargeError as error:
            refusal = Refusal(ReasonCode.MSG_TOO_LARGE, str(error))
            await self._refuse_stream(refused(refusal, self._node))
        except WireError:
            refusal = Refusal(ReasonCode.MSG_MALFORMED, "a message does not parse")
            await self._refuse_stream(refused(refusal, self._node))
        if isinstance(message, pb.AttestRequest):
            return message
        self._peer_left = True
        return None

    async def _write(self, message: pb.AttestResponse) -> None:
        try:
            async with asyncio.timeout(self._service.timing.write_s):
                await self._context.write(message)
        except TimeoutError as error:
            raise _End(
                "unread", grpc.StatusCode.DEADLINE_EXCEEDED, "the peer does not read"
            ) from error

    async def _finish(self, end: _End) -> None:
        """Send verdict and status; a peer that cannot be sent the first still gets the second."""
        if end.refusal is None:
            await self._context.abort(end.status, end.detail)
        code, detail = end.refusal.code, end.refusal.detail
        with contextlib.suppress(_End):
            await self._write(refused_verdict(end.challenge_id, code, detail, next_ns=None))
        await abort_with(self._context, end.refusal)


_OUT_OF_TURN: Final = Refusal(
    ReasonCode.TYPE_UNEXPECTED, "Hello is the first message of a stream and only that"
)


class _PeerLeftError(Exception):
    """The peer ended the stream before it said anything."""


def _drained() -> _End:
    return _End(
        "drained", grpc.StatusCode.UNAVAILABLE, "this controller is stopping; others are not"
    )


def _refusal_end(refusal: Refusal, challenge_id: bytes = b"") -> _End:
    """The status follows from the refusal's code."""
    return _End(refusal.code.value, grpc.StatusCode.UNKNOWN, refusal.detail, refusal, challenge_id)
