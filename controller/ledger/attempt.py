"""The next step of an attempt: what becomes of a reservation while it is Proposed. Pure.

An answer is no binding: a later admission step may refuse it, two Bindings may be in flight,
and one may land a minute late. So an attempt is given up only when none can land any more: its
time is over, the pod was touched since (a Binding carries the resourceVersion it was made
from), and the answer to that very touch shows it unbound. A pod that was reserved for at its
creation may come into being a minute after its UID was told: that there is none proves nothing
earlier, and nobody asks. Time runs by this replica's CLOCK_BOOTTIME since it first saw the
attempt as it is; no timestamp of anybody else's is believed.
"""

from dataclasses import dataclass, replace
from typing import Final

from controller.ledger.pods import PodGone, PodSeen, PodSight, is_over
from controller.ledger.record import Holder
from controller.ledger.states import HolderState, Origin

_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """How long an attempt is left alone, in nanoseconds."""

    gate_ns: int = 90 * _SECOND
    """Longer than a request of the API server may take (60 s)."""
    unborn_ns: int = 120 * _SECOND
    """For a pod that nobody has seen yet."""
    pending_ns: int = 600 * _SECOND
    """`reservation.maxPending`: for a pod that waits with a reservation from its admission."""


DEFAULT_LIMITS: Final = AttemptLimits()


@dataclass(frozen=True, slots=True)
class AttemptWatch:
    """What this replica remembers of one attempt: since when, and the answer to its touch."""

    parts: tuple[Holder, ...]
    """The reservation's part in each GPU, as first seen `since_ns`."""
    since_ns: int
    touched: PodSeen | PodGone | None = None
    """The pod in the answer to the last touch."""
    touched_ns: int = 0
    """When that was asked."""


def watch_attempt(
    watch: AttemptWatch | None, parts: tuple[Holder, ...], now_ns: int
) -> AttemptWatch:
    """Go on watching, or anew where anything about the attempt has changed."""
    if watch is not None and watch.parts == parts:
        return watch
    return AttemptWatch(parts, now_ns)


def after_touch(watch: AttemptWatch, answer: PodSeen | PodGone, asked_ns: int) -> AttemptWatch:
    """Remember what a touch showed; a touch that was not answered shows nothing."""
    return replace(watch, touched=answer, touched_ns=asked_ns)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until_ns`, unless something is seen."""

    until_ns: int


@dataclass(frozen=True, slots=True)
class Touch:
    """Change the pod's metadata, by UID, so that older Bindings fail; then `after_touch`.

    The answer is the pod as stored. A pod that is not there, or has another UID, is gone.
    """


@dataclass(frozen=True, slots=True)
class Move:
    """Write the state into each of the reservation's records, each by compare-and-set."""

    to: HolderState
    cause: str


Step = Wait | Touch | Move


def attempt_step(
    watch: AttemptWatch, node: str, pod: PodSight, now_ns: int, limits: AttemptLimits
) -> Step:
    """What to do about an attempt on `node`; the pod's sight is of the holder's UID.

    The write that follows replaces exactly the records that `watch` holds the parts of: a
    claim that took the attempt up meanwhile has changed them, and wins.
    """
    sight = watch.touched or pod
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
    if watch.touched is None or watch.touched_ns < until_ns:
        return Touch()
    return Move(HolderState.EXPIRED, "it was never bound")


def _bound(holder: Holder, node: str, pod: PodSeen) -> Move:
    if pod.node != node:
        return Move(HolderState.REVOKED, "its pod was bound to another node")
    if pod.reservation == holder.reservation:
        return Move(HolderState.CONFIRMED, "its pod is bound")
    # On this very node nobody but the node can tell which GPUs the pod uses.
    return Move(HolderState.RELEASING, "its pod is bound under another reservation")


def _patience_ns(holder: Holder, pod: PodSight, limits: AttemptLimits) -> int:
    if holder.origin is Origin.GATE:
        return limits.gate_ns
    return limits.pending_ns if isinstance(pod, PodSeen) else limits.unborn_ns
