"""Decides what becomes of a reservation until its pod is bound, and confirms it.

Pure. Must not decide when a GPU is free after its pod has ended.
"""

from dataclasses import dataclass, replace
from typing import Final

from controller.ledger.record import (
    GpuRecord,
    Holder,
    HolderState,
    Origin,
    PodGone,
    PodSeen,
    PodSight,
    is_over,
)
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode, Refusal

# --- what becomes of an attempt
# An answer is no binding: a later admission step may refuse it, two Bindings may be in flight,
# and one may be stored a minute late. An attempt expires only when no Binding can be stored any
# more: its time is over, the pod was requeued since (a Binding carries the resourceVersion that
# it was made from), and the answer to that requeue shows the pod unbound. A pod with a
# reservation from its creation may appear a minute after its UID was reported. That it is missing
# proves nothing earlier. Time is this replica's CLOCK_BOOTTIME since it first saw the attempt,
# which is soon after its first answer: a retry that is answered with the same reservation makes an
# earlier requeue void, and does not begin the time again, or a pod whose Bindings are refused for
# ever would hold its GPU for ever. No timestamp of another machine is believed.


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """How long an attempt is left alone, in nanoseconds."""

    binding_webhook_ns: int = 90 * NS_PER_S
    """Longer than a request of the API server may take (60 s)."""
    unborn_ns: int = 120 * NS_PER_S
    """For a pod that nobody has seen yet."""
    pending_ns: int = 600 * NS_PER_S
    """`reservation.maxPending`: for a pod that waits with a reservation from its admission."""


DEFAULT_LIMITS: Final = AttemptLimits()


@dataclass(frozen=True, slots=True)
class AttemptWatch:
    """What this replica remembers of one attempt: since when, and the answer to its requeue."""

    parts: tuple[Holder, ...]
    """The reservation's part in each GPU."""
    since_ns: int
    """When they were first seen, whatever answers came since."""
    requeue_answer: PodSeen | PodGone | None = None
    """The pod in the answer to the last requeue."""
    requeued_ns: int = 0
    """When that was asked."""


def watch_attempt(
    watch: AttemptWatch | None, parts: tuple[Holder, ...], now_ns: int
) -> AttemptWatch:
    """Go on watching, or again where the attempt is another one.

    What a requeue showed counts for the very answers that were given before it. A claim of the
    same reservation by another call may have followed an end that another replica has written.
    """
    if watch is not None and watch.parts == parts:
        return watch
    is_same = watch is not None and _whoever_answered(watch.parts) == _whoever_answered(parts)
    return AttemptWatch(parts, watch.since_ns if watch is not None and is_same else now_ns)


def _whoever_answered(parts: tuple[Holder, ...]) -> tuple[Holder, ...]:
    return tuple(replace(x, answers=1, call="") for x in parts)


def after_requeue(watch: AttemptWatch, answer: PodSeen | PodGone, asked_ns: int) -> AttemptWatch:
    """Remember what a requeue showed; one without an answer shows nothing."""
    return replace(watch, requeue_answer=answer, requeued_ns=asked_ns)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until_ns`, unless something is seen."""

    until_ns: int


@dataclass(frozen=True, slots=True)
class Requeue:
    """Change the pod's metadata, by UID, so that older Bindings fail; then `after_requeue`.

    The answer is the pod as stored. A pod that is not there, or has another UID, is gone.
    """


@dataclass(frozen=True, slots=True)
class Move:
    """Write the state into each of the reservation's records, each by compare-and-set."""

    to: HolderState
    cause: str
    evidence: str = ""
    """Digest of the node's evidence that shows it; empty where that is not what decides."""


Step = Wait | Requeue | Move


def attempt_step(
    watch: AttemptWatch, node: str, pod: PodSight, now_ns: int, limits: AttemptLimits
) -> Step:
    """What to do about an attempt on `node`; the pod's sight is of the holder's UID.

    The write that follows replaces exactly the records that `watch` holds the parts of: a
    claim that took the attempt up meanwhile has changed them, and wins.
    """
    sight = watch.requeue_answer or pod
    if is_over(sight) or is_over(pod):
        return Move(HolderState.RELEASING, "its pod has ended")
    holder = watch.parts[0]
    if isinstance(pod, PodSeen) and pod.node:
        sight = pod
    if isinstance(sight, PodSeen) and sight.node:
        return _bound(holder, node, sight)
    until_ns = watch.since_ns + _patience_ns(holder, sight, limits)
    if now_ns < until_ns:
        return Wait(until_ns)
    if holder.pod.uid is None:
        return Move(HolderState.EXPIRED, "its pod never came")
    if watch.requeue_answer is None or watch.requeued_ns < until_ns:
        return Requeue()
    return Move(HolderState.EXPIRED, "it was never bound")


def move_of_part(move: Move, part: Holder) -> Move:
    """What the attempt's move is for one part of it.

    An early reservation is given to its pod one GPU after the other, and the pod is stored only
    after the last one. Where that was broken off, a part without a UID was no pod's: nothing can
    run on its GPU, and no report could ever show the end of a pod that it does not name.
    """
    if part.pod.uid is None and move.to is HolderState.RELEASING:
        return Move(HolderState.EXPIRED, "its pod never came")
    return move


def _bound(holder: Holder, node: str, pod: PodSeen) -> Move:
    if pod.node != node:
        return Move(HolderState.REVOKED, "its pod was bound to another node")
    if pod.reservation == holder.reservation:
        return Move(HolderState.CONFIRMED, "its pod is bound")
    # On this very node nobody but the node can tell which GPUs the pod uses.
    return Move(HolderState.RELEASING, "its pod is bound under another reservation")


SEEN_LATER_NS: Final = 15 * NS_PER_S
"""By how much a replica may see an attempt later than the one that ends it."""


def has_run_out(
    watch: AttemptWatch, step: Step | None, pod: PodSight, now_ns: int, limits: AttemptLimits
) -> bool:
    """Whether Bindings of the pod were let through, and none was stored in the attempt's time.

    `step`: what is to be done about the attempt; None where it is gone, so that another replica
    may have given it up already.
    """
    if watch.parts[0].origin is not Origin.BINDING_WEBHOOK:
        return False
    if step is None:
        until_ns = watch.since_ns + limits.binding_webhook_ns
        is_unbound = isinstance(pod, PodSeen) and not pod.node and not pod.has_ended
        return is_unbound and now_ns >= until_ns - SEEN_LATER_NS
    return isinstance(step, Requeue) or (isinstance(step, Move) and step.to is HolderState.EXPIRED)


def _patience_ns(holder: Holder, pod: PodSight, limits: AttemptLimits) -> int:
    if holder.origin is Origin.BINDING_WEBHOOK:
        return limits.binding_webhook_ns
    return limits.pending_ns if isinstance(pod, PodSeen) else limits.unborn_ns


# --- confirmation
# The watch confirms (`attempt_step`), or the pod itself (`POST /finalize`), which counts only
# together with a live pod that is bound. Nothing is confirmed without a claim.


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Confirmed already: the same again is no error."""


def finalize_on(
    record: GpuRecord | None, reservation: str, pod: PodSight, pod_uid: str, *, authentic: bool
) -> GpuRecord | Confirmed | Refusal:
    """What a finalize call for one GPU does: the record to write, or why not.

    `authentic`: gpuwarden made the id for this pod, node and GPUs (`reservation_id`).
    RESERVATION_UNKNOWN is HTTP 404; RESERVATION_CONFLICT and RESERVATION_EXPIRED are 409.
    """
    holder = None if record is None else record.holder(reservation)
    if record is None or holder is None:
        return _without_part(record, authentic=authentic)
    refusal = _against(holder, pod) or _against_place(record, holder, pod)
    if refusal is not None:
        return refusal
    if holder.pod.uid != pod_uid:
        return Refusal(ReasonCode.RESERVATION_CONFLICT, "the reservation is another pod's")
    if holder.state is HolderState.CONFIRMED:
        return Confirmed()
    return record.moved(reservation, HolderState.CONFIRMED)


def _without_part(record: GpuRecord | None, *, authentic: bool) -> Refusal:
    if authentic:
        return Refusal(ReasonCode.RESERVATION_EXPIRED, "the reservation is over")
    if record is None:
        return Refusal(ReasonCode.RESERVATION_UNKNOWN, "no such reservation")
    return Refusal(ReasonCode.RESERVATION_CONFLICT, "the GPU is reserved for another pod")


def _against(holder: Holder, pod: PodSight) -> Refusal | None:
    if holder.state is HolderState.RELEASING or is_over(pod):
        return Refusal(ReasonCode.RESERVATION_EXPIRED, "the pod has ended")
    return None


def _against_place(record: GpuRecord, holder: Holder, pod: PodSight) -> Refusal | None:
    if not isinstance(pod, PodSeen) or pod.uid != holder.pod.uid or pod.node != record.node:
        text = "the pod is not bound to the GPU's node"
        return Refusal(ReasonCode.RESERVATION_CONFLICT, text)
    if pod.reservation != holder.reservation:
        return Refusal(ReasonCode.RESERVATION_CONFLICT, "the pod is bound under another one")
    return None
