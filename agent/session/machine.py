"""What one stream does next: a table of (phase, event) that returns the new state and actions.

Greeted -> challenged -> answered -> waiting -> challenged … -> ended. A pair that
is not listed ends the stream: a controller that speaks out of turn is not one to
go on talking to. What is signed, and with which nonce, is the Attester's matter.

A failure notice is sent under the spare nonce of the latest challenge and again under that of a
later one until the controller has acknowledged it. Each message gets one verdict, in order.

Pure: reads no clock, waits for nothing; `now_ns` is CLOCK_BOOTTIME.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from agent.gpu.reading import GpuEvent, InventoryReading, merged
from gpuwarden.evidence.model import MAX_FAILURES
from gpuwarden.moment import NS_PER_MS, NS_PER_S
from gpuwarden.reasons import ReasonCode

REPEAT_NS: Final = 5 * NS_PER_S
"""The same trouble is reported again after this, however often it happens: each notice asks for a
new challenge, and a storm must leave time to answer one."""
_MAX_UNJUDGED: Final = 8
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
    wants_failures: bool = False
    """Whether one notice may name several failures."""


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

    events: tuple[GpuEvent, ...]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The controller holds these for as long as they last: nobody has to report them again."""

    events: tuple[GpuEvent, ...]


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


Action = Read | Answer | SendNotice | Acknowledged | Report | Late | End


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that has no verdict yet."""

    challenge_id: str
    about: About


@dataclass(frozen=True, slots=True)
class State:
    """One stream. `deadline_ns` is when Due is to be fed; None only once ended."""

    phase: Phase
    deadline_ns: int | None
    timing: StreamTiming
    challenge_id: str = ""
    wait_ms: int = 0
    """Announced distance of challenges, from the latest challenge."""
    wants_failures: bool = False
    """Of the latest challenge."""
    unjudged: tuple[Sent, ...] = ()
    """Oldest first."""
    notice_challenge_id: str = ""
    """Challenge under whose spare nonce the last failure notice was sent."""
    in_flight: tuple[GpuEvent, ...] = ()
    """What that notice named, until its verdict comes."""
    queue: tuple[GpuEvent, ...] = ()
    """GPU events that wait for a spare nonce, oldest first, one of each key."""
    acknowledged: tuple[tuple[GpuEvent, int], ...] = ()
    """What was acknowledged lately, and when."""

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
            return _send_or_queue(state, gpu_event, now_ns)
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
        wants_failures=event.wants_failures,
    )
    # What happened before this challenge is reported before its fresh reading.
    state, actions = _send_waiting(state, now_ns)
    return state, (*actions, Read(event.challenge_id))


def _read(state: State, event: ReadingDone, now_ns: int) -> Step:
    if event.challenge_id != state.challenge_id or state.phase is not Phase.CHALLENGED:
        return state, ()  # read for a challenge that has passed
    state = replace(
        state,
        phase=Phase.ANSWERED,
        unjudged=_with(state, About.EVIDENCE),
        deadline_ns=now_ns + _ns(state.timing.verdict_s),
    )
    return state, (Answer(event.reading),)


def _judged(state: State, verdict: Verdict, now_ns: int) -> Step:
    sent = _judged_message(state, verdict)
    about = sent.about if sent else About.STREAM
    report = Report(verdict, about)
    if verdict.accepted and sent is None:
        return _end(state, EndReason.PROTOCOL, "accepted what was not sent")
    if not verdict.accepted and (verdict.code in _STOPPING or verdict.next_challenge_ms == 0):
        reason = _reason_of(verdict.code, EndReason.REFUSED)
        state, end = _end(state, reason, verdict.detail or verdict.code, verdict.code)
        return state, (report, *end)
    if sent is None:
        return state, (report,)
    position = state.unjudged.index(sent)
    left = (*state.unjudged[:position], *state.unjudged[position + 1 :])
    state = replace(state, unjudged=left)
    if about is About.EVIDENCE:
        return _after_evidence_verdict(state, verdict, now_ns), (report,)
    state, actions = _after_notice_verdict(state, verdict, now_ns)
    return state, (report, *actions)


def _judged_message(state: State, verdict: Verdict) -> Sent | None:
    """Evidence and notice of one challenge carry the same ID; only evidence can earn a hash."""
    earned = About.EVIDENCE if verdict.attestation_hash else About.NOTICE
    for sent in state.unjudged:
        if sent.challenge_id == verdict.challenge_id and (
            not verdict.accepted or sent.about is earned
        ):
            return sent
    return None


def _after_evidence_verdict(state: State, verdict: Verdict, now_ns: int) -> State:
    """A newer challenge may be open already."""
    if state.phase is Phase.ANSWERED and verdict.challenge_id == state.challenge_id:
        return _waiting(state, verdict.next_challenge_ms, now_ns)
    return state


def _after_notice_verdict(state: State, verdict: Verdict, now_ns: int) -> Step:
    """What was not taken goes first the next time, which may be now."""
    named = state.in_flight
    state = replace(state, in_flight=())
    if verdict.accepted:
        acknowledged = tuple((x, at) for x, at in state.acknowledged if now_ns < at + REPEAT_NS)
        acknowledged = (*acknowledged, *((x, now_ns) for x in named))
        return replace(state, acknowledged=acknowledged), (Acknowledged(named),)
    queue = named
    for event in state.queue:
        queue = merged(queue, event)
    return _send_waiting(replace(state, queue=queue), now_ns)


def _send_or_queue(state: State, event: GpuEvent, now_ns: int) -> Step:
    if any(x.includes(event) for x in (*state.in_flight, *(x for x, _ in state.acknowledged))):
        return state, ()
    return _send_waiting(replace(state, queue=merged(state.queue, event)), now_ns)


def _send_waiting(state: State, now_ns: int) -> Step:
    if not state.has_spare or state.in_flight:
        return state, ()
    recent = {x.key for x, at in state.acknowledged if now_ns < at + REPEAT_NS}
    ripe = [x for x in state.queue if x.key not in recent]
    named = tuple(ripe[: MAX_FAILURES if state.wants_failures else 1])
    if not named:
        return state, ()
    state = replace(
        state,
        queue=tuple(x for x in state.queue if x not in named),
        in_flight=named,
        notice_challenge_id=state.challenge_id,
        unjudged=_with(state, About.NOTICE),
    )
    return state, (SendNotice(named),)


def _with(state: State, about: About) -> tuple[Sent, ...]:
    return (*state.unjudged, Sent(state.challenge_id, about))[-_MAX_UNJUDGED:]


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
