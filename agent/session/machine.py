"""What one stream does next: a table of (phase, event) that returns the new state and actions.

Greeted -> challenged -> answered -> waiting -> challenged … -> ended. A pair that
is not listed ends the stream: a controller that speaks out of turn is not one to
go on talking to. What is signed, and with which nonce, is the Attester's matter.

Pure: reads no clock, waits for nothing; `now_ns` is CLOCK_BOOTTIME.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from agent.gpu.reading import GpuEvent, InventoryReading
from gpuwarden.moment import NS_PER_MS, NS_PER_S
from gpuwarden.reasons import ReasonCode

MAX_QUEUED_NOTICES: Final = 16
_MAX_UNJUDGED: Final = 4
_STOPPING: Final = frozenset({ReasonCode.STREAM_SUPERSEDED, ReasonCode.DUPLICATE_AGENT})


class Phase(StrEnum):
    """State of the conversation."""

    GREETED = "greeted"
    CHALLENGED = "challenged"
    ANSWERED = "answered"
    WAITING = "waiting"
    ENDED = "ended"


class EndReason(StrEnum):
    """Why a stream ended; a metric label."""

    PEER = "peer"
    """The controller or the network ended it."""
    REFUSED = "refused"
    """The controller refused the stream and said why."""
    SUPERSEDED = "superseded"
    """Another instance speaks for this node now; this one must not come back."""
    UNPROVEN = "unproven"
    """A challenge that the configured controller did not make for this stream."""
    SILENT = "silent"
    """Nothing came in time."""
    PROTOCOL = "protocol"
    """Something came out of turn."""
    LOCAL = "local"
    """Evidence could not be made."""
    STOPPED = "stopped"
    """This side asked for it."""


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """Limits of waiting on one stream, seconds."""

    greeting_s: float = 10.0
    verdict_s: float = 15.0
    slack_s: float = 10.0
    """Beyond the announced time of the next challenge and its jitter of a tenth."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict of the controller, sizes bounded, text escaped."""

    challenge_id: str
    accepted: bool
    code: str
    detail: str
    attestation_hash: str
    level: str
    fresh_for_ms: int
    next_challenge_ms: int
    """0 when the controller ends the stream."""


@dataclass(frozen=True, slots=True)
class Challenged:
    """A challenge that proved its controller."""

    challenge_id: str
    ttl_ms: int
    interval_ms: int


@dataclass(frozen=True, slots=True)
class ChallengeDenied:
    """A challenge that did not."""

    detail: str


@dataclass(frozen=True, slots=True)
class ReadingDone:
    """The GPUs were read for this challenge, after it came."""

    challenge_id: str
    reading: InventoryReading


@dataclass(frozen=True, slots=True)
class EvidenceFailed:
    """What was to be sent could not be made."""

    detail: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """The controller sent what is no message of the protocol."""

    detail: str


@dataclass(frozen=True, slots=True)
class VerdictReceived:
    """The controller has judged."""

    verdict: Verdict


@dataclass(frozen=True, slots=True)
class GpuFailed:
    """A GPU went bad."""

    event: GpuEvent


@dataclass(frozen=True, slots=True)
class PeerEnded:
    """The stream is over on the other side; `code` is the reason code in its trailer, if any."""

    detail: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class Due:
    """The state's deadline has passed."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    """This side wants to end the stream."""

    detail: str


Event = (
    Challenged
    | ChallengeDenied
    | ReadingDone
    | EvidenceFailed
    | Malformed
    | VerdictReceived
    | GpuFailed
    | PeerEnded
    | Due
    | StopAsked
)


class About(StrEnum):
    """What a verdict judges."""

    STREAM = "stream"
    EVIDENCE = "evidence"
    NOTICE = "notice"


@dataclass(frozen=True, slots=True)
class Read:
    """Read the GPUs, beginning now, for this challenge."""

    challenge_id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Send evidence for the open challenge."""

    reading: InventoryReading


@dataclass(frozen=True, slots=True)
class SendNotice:
    """Send a failure notice under the spare nonce."""

    event: GpuEvent


@dataclass(frozen=True, slots=True)
class Report:
    """Show a verdict in readiness, metrics and log."""

    verdict: Verdict
    about: About


@dataclass(frozen=True, slots=True)
class Late:
    """The GPUs were not read while the challenge lived: this round is lost."""

    challenge_id: str


@dataclass(frozen=True, slots=True)
class End:
    """Close the stream."""

    reason: EndReason
    detail: str
    code: str = ""
    """Reason code of the controller, if it gave one."""


Action = Read | Answer | SendNotice | Report | Late | End


@dataclass(frozen=True, slots=True)
class State:
    """One stream. `deadline_ns` is when Due is to be fed; None only once ended."""

    phase: Phase
    deadline_ns: int | None
    timing: StreamTiming
    challenge_id: str = ""
    wait_ms: int = 0
    """Announced distance of challenges, from the latest challenge."""
    unjudged: tuple[str, ...] = ()
    """Challenges whose evidence was sent and has no verdict yet, oldest first."""
    notice_challenge_id: str = ""
    """Challenge under whose spare nonce a failure notice was sent."""
    queue: tuple[GpuEvent, ...] = ()
    """GPU events that wait for a spare nonce, oldest first."""

    @property
    def has_spare(self) -> bool:
        """Whether the spare nonce of the latest challenge may still be used."""
        return bool(self.challenge_id) and self.notice_challenge_id != self.challenge_id


Step = tuple[State, tuple[Action, ...]]


def greeted(now_ns: int, timing: StreamTiming) -> State:
    """A stream whose Hello has just been sent."""
    return State(Phase.GREETED, now_ns + _ns(timing.greeting_s), timing)


def step(state: State, event: Event, now_ns: int) -> Step:  # noqa: C901, PLR0911 -- one case per event
    """The one transition function; an ended stream stays ended and does nothing."""
    if state.phase is Phase.ENDED:
        return state, ()
    match event:
        case Challenged():
            return _challenged(state, event, now_ns)
        case ChallengeDenied(detail):
            return _end(state, EndReason.UNPROVEN, detail)
        case ReadingDone():
            return _read(state, event, now_ns)
        case EvidenceFailed(detail):
            return _end(state, EndReason.LOCAL, detail)
        case Malformed(detail):
            return _end(state, EndReason.PROTOCOL, detail)
        case VerdictReceived(verdict):
            return _judged(state, verdict, now_ns)
        case GpuFailed(gpu_event):
            return _send_or_queue(state, gpu_event)
        case PeerEnded(detail, code):
            return _end(state, _reason_of(code, EndReason.PEER), detail, code)
        case Due():
            return _due(state, now_ns)
        case StopAsked(detail):
            return _end(state, EndReason.STOPPED, detail)


def _challenged(state: State, event: Challenged, now_ns: int) -> Step:
    """A newer challenge always takes over: the older one can no longer be answered."""
    state = replace(
        state,
        phase=Phase.CHALLENGED,
        deadline_ns=now_ns + event.ttl_ms * NS_PER_MS,
        challenge_id=event.challenge_id,
        wait_ms=event.interval_ms,
    )
    read = Read(event.challenge_id)
    if not state.queue:
        return state, (read,)
    # What happened before this challenge is reported before its fresh reading.
    oldest, *others = state.queue
    state = replace(state, queue=tuple(others), notice_challenge_id=event.challenge_id)
    return state, (SendNotice(oldest), read)


def _read(state: State, event: ReadingDone, now_ns: int) -> Step:
    if event.challenge_id != state.challenge_id or state.phase is not Phase.CHALLENGED:
        return state, ()  # read for a challenge that has passed
    state = replace(
        state,
        phase=Phase.ANSWERED,
        unjudged=(*state.unjudged, event.challenge_id)[-_MAX_UNJUDGED:],
        deadline_ns=now_ns + _ns(state.timing.verdict_s),
    )
    return state, (Answer(event.reading),)


def _judged(state: State, verdict: Verdict, now_ns: int) -> Step:
    if verdict.accepted:
        return _accepted(state, verdict, now_ns)
    about = _about(state, verdict)
    report = Report(verdict, about)
    if verdict.code in _STOPPING or verdict.next_challenge_ms == 0:
        state, actions = _end(
            state,
            _reason_of(verdict.code, EndReason.REFUSED),
            verdict.detail or verdict.code,
            verdict.code,
        )
        return state, (report, *actions)
    if about is About.EVIDENCE:
        state = _after_evidence_verdict(state, verdict, now_ns)
    return state, (report,)


def _accepted(state: State, verdict: Verdict, now_ns: int) -> Step:
    about = _about(state, verdict)
    if about is About.STREAM:
        return _end(state, EndReason.PROTOCOL, "accepted what was not sent")
    if about is About.EVIDENCE:
        state = _after_evidence_verdict(state, verdict, now_ns)
    return state, (Report(verdict, about),)


def _after_evidence_verdict(state: State, verdict: Verdict, now_ns: int) -> State:
    """Evidence has its verdict; a newer challenge may be open already."""
    if (
        verdict.accepted or state.notice_challenge_id != verdict.challenge_id
    ):  # else it may be the notice's
        unjudged = tuple(x for x in state.unjudged if x != verdict.challenge_id)
        state = replace(state, unjudged=unjudged)
    if state.phase is Phase.ANSWERED and verdict.challenge_id == state.challenge_id:
        return _waiting(state, verdict.next_challenge_ms, now_ns)
    return state


def _about(state: State, verdict: Verdict) -> About:
    """Evidence and notice of one challenge carry the same ID; only evidence can earn a hash."""
    is_ack = verdict.accepted and not verdict.attestation_hash
    if verdict.challenge_id in state.unjudged and not is_ack:
        return About.EVIDENCE
    if state.notice_challenge_id and verdict.challenge_id == state.notice_challenge_id:
        return About.NOTICE
    return About.STREAM


def _send_or_queue(state: State, event: GpuEvent) -> Step:
    if state.has_spare:
        return replace(state, notice_challenge_id=state.challenge_id), (SendNotice(event),)
    if event in state.queue:
        return state, ()
    return replace(state, queue=(*state.queue, event)[-MAX_QUEUED_NOTICES:]), ()


def _due(state: State, now_ns: int) -> Step:
    if state.phase is Phase.CHALLENGED:
        return _waiting(state, state.wait_ms, now_ns), (Late(state.challenge_id),)
    missing = {
        Phase.GREETED: "no challenge after Hello",
        Phase.ANSWERED: "no verdict on evidence",
        Phase.WAITING: "no next challenge",
    }
    return _end(state, EndReason.SILENT, missing[state.phase])


def _waiting(state: State, next_ms: int, now_ns: int) -> State:
    longest_ns = (next_ms or state.wait_ms) * NS_PER_MS * 11 // 10 + _ns(state.timing.slack_s)
    return replace(state, phase=Phase.WAITING, deadline_ns=now_ns + longest_ns)


def _reason_of(code: str, otherwise: EndReason) -> EndReason:
    return EndReason.SUPERSEDED if code in _STOPPING else otherwise


def _end(state: State, reason: EndReason, detail: str, code: str = "") -> Step:
    state = replace(state, phase=Phase.ENDED, deadline_ns=None, queue=())
    return state, (End(reason, detail, code),)


def _ns(seconds: float) -> int:
    return int(seconds * NS_PER_S)
