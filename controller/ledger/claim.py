"""Claims GPUs for a pod, and decides what becomes of the attempt until its pod is bound.

A claim is all or nothing. An attempt ends as Confirmed, Releasing, Expired or Revoked. A live pod
whose record was lost gets it again. Must not decide when a GPU is free after its pod has ended.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from controller.ledger.record import (
    MAX_HOLDERS,
    GpuRecord,
    Holder,
    HolderState,
    Origin,
    PodGone,
    PodRef,
    PodSeen,
    PodSight,
    ShareGroup,
    demand_gpus,
    is_over,
    nonce_of,
)
from controller.ledger.store import (
    LedgerSnapshot,
    LedgerStore,
    LedgerUnavailableError,
    Written,
    change_record,
)
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode, Refusal

# --- what becomes of an attempt
# An answer is no binding: a later admission step may refuse it, two Bindings may be in flight,
# and one may be stored a minute late. An attempt expires only when no Binding can be stored any
# more: its time is over, the pod was requeued since (a Binding carries the resourceVersion that
# it was made from), and the answer to that requeue shows the pod unbound. A pod with a
# reservation from its creation may appear a minute after its UID was reported. That it is missing
# proves nothing earlier. Time is this replica's CLOCK_BOOTTIME since it first saw the attempt as
# it is. No timestamp of another machine is believed.


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
    """The reservation's part in each GPU, as first seen `since_ns`."""
    since_ns: int
    touched: PodSeen | PodGone | None = None
    """The pod in the answer to the last requeue."""
    requeued_ns: int = 0
    """When that was asked."""


def watch_attempt(
    watch: AttemptWatch | None, parts: tuple[Holder, ...], now_ns: int
) -> AttemptWatch:
    """Go on watching, or again where anything about the attempt has changed."""
    if watch is not None and watch.parts == parts:
        return watch
    return AttemptWatch(parts, now_ns)


def after_requeue(watch: AttemptWatch, answer: PodSeen | PodGone, asked_ns: int) -> AttemptWatch:
    """Remember what a requeue showed; one without an answer shows nothing."""
    return replace(watch, touched=answer, requeued_ns=asked_ns)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before `until_ns`, unless something is seen."""

    until_ns: int


@dataclass(frozen=True, slots=True)
class Touch:
    """Change the pod's metadata, by UID, so that older Bindings fail; then `after_requeue`.

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
    if watch.touched is None or watch.requeued_ns < until_ns:
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
    if holder.origin is Origin.BINDING_WEBHOOK:
        return limits.binding_webhook_ns
    return limits.pending_ns if isinstance(pod, PodSeen) else limits.unborn_ns


# --- a live pod without its record
# After a start, and when records were lost or rolled back, live pods get their records again
# before anything is granted. The pod must be bound and alive now, by a quorum read, and its
# reservation ID must be authentic for this pod, node and GPUs. A record is never taken from its
# holder. So a GPU may have two holders; then nobody else gets it until both have ended.


@dataclass(frozen=True, slots=True)
class LivePod:
    """A bound pod that has not ended, by a quorum read or the first list, with its own word."""

    pod: PodRef
    node: str
    reservation: str
    gpus: tuple[str, ...]
    """In claiming order; authentic together with the id."""
    origin: Origin = Origin.BINDING_WEBHOOK
    share: ShareGroup | None = None


def adopted_on(record: GpuRecord | None, live: LivePod, gpu: str, call: str) -> GpuRecord | None:
    """The record to write so that `gpu` is held for the pod; None where there is none to write.

    It is held already, or recorded on another node: by that node's reports a part in it would end
    while the pod runs. Then the pod goes without until that record has ended. `call` as in a
    claim. Raises RecordInvalidError.
    """
    if record is None:
        return GpuRecord(gpu, live.node, (_part(live, call, HolderState.CONFIRMED),), live.share)
    if record.node != live.node:
        return None
    mine = record.holder(live.reservation)
    if mine is None:
        part = _part(live, call, HolderState.CONFIRMED)
        return record.with_holder(part if live.share == record.share else part.as_stranger())
    if mine.state is HolderState.PROPOSED:
        return record.moved(live.reservation, HolderState.CONFIRMED)
    return None


def _part(live: LivePod, call: str, state: HolderState) -> Holder:
    demand_gpus(live.gpus)
    return Holder(
        live.reservation, live.pod, live.gpus, live.origin, call, state=state, adopted=True
    )


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

    `authentic`: the id is one of ours for this pod, node and GPUs (`reservation_id`).
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


# --- one claim and one record
# Three rules make a claim of several GPUs all or nothing: every claim takes GPUs in one order, a
# claim that meets another holder takes back what this call added, and it takes back nothing else.
# A claim that finds its reservation made by another call counts itself in (`Holder.answers`), so
# that the other call no longer takes it back.


@dataclass(frozen=True, slots=True)
class Claim:
    """One reservation to be made, whole or not at all."""

    reservation: str
    pod: PodRef
    node: str
    gpus: tuple[str, ...]
    """In claiming order (`in_claiming_order`)."""
    origin: Origin
    call: str
    """Drawn for this very claim: hex digits."""
    share: ShareGroup | None = None
    """The group that each of the GPUs may be shared in; None = nobody else may have them."""

    def part(self) -> Holder:
        """What stands in each GPU's record at first; raises RecordInvalidError."""
        demand_gpus(self.gpus)
        return Holder(self.reservation, self.pod, self.gpus, self.origin, self.call)


@dataclass(frozen=True, slots=True)
class Write:
    """The record to be written."""

    record: GpuRecord


@dataclass(frozen=True, slots=True)
class Held:
    """This call has written it already, or the reservation is confirmed."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Somebody else has it, or the reservation has ended."""

    refusal: Refusal
    by: Holder | None = None


def claim_on(record: GpuRecord | None, claim: Claim, gpu: str) -> Write | Held | Taken:
    """What `claim` does with the record of `gpu`, one of its GPUs."""
    if record is None:
        return Write(GpuRecord(gpu, claim.node, (claim.part(),), claim.share))
    if (record.gpu, record.node) != (gpu, claim.node):
        return Taken(_refusal(f"{gpu} is reserved on node {record.node}"))
    mine = record.holder(claim.reservation)
    return _join(record, claim) if mine is None else _again(record, claim, mine)


def rolled_back(record: GpuRecord | None, claim: Claim) -> GpuRecord | None:
    """The successor without what `claim` added; None where nothing is to be taken back.

    What somebody else relies on by now is left: it expires if nothing comes of it.
    """
    mine = None if record is None else record.holder(claim.reservation)
    if record is None or mine != claim.part():
        return None
    return record.moved(claim.reservation, HolderState.REVOKED)


def open_attempt(snapshot: LedgerSnapshot, pod_uid: str, node: str) -> Holder | None:
    """The attempt of a pod on a node that a further claim of it must take up again.

    One per pod and node: whoever chooses GPUs asks this first. Two replicas that choose at
    the same moment may open two; the one that the pod is not bound under is withdrawn.
    """
    found = [
        holder
        for entry, holder in snapshot.parts_of(pod_uid)
        if entry.record.node == node and holder.state is HolderState.PROPOSED
    ]
    whole = [x for x in found if len(snapshot.holding(x.reservation)) == len(x.gpus)]
    return min(whole or found, key=lambda x: x.reservation, default=None)


def bound_to_pod(record: GpuRecord, reservation: str, pod: PodRef) -> GpuRecord | Refusal:
    """The successor in which an unborn pod's reservation is `pod`'s, once and for all."""
    mine = record.holder(reservation)
    if mine is None:
        return Refusal(ReasonCode.RESERVATION_EXPIRED, "the reservation is gone")
    if mine.state is not HolderState.PROPOSED or pod.namespace != mine.pod.namespace:
        return Refusal(ReasonCode.RESERVATION_CONFLICT, "the reservation is another pod's")
    if mine.pod.uid not in {None, pod.uid} or pod.uid is None:
        return Refusal(ReasonCode.RESERVATION_CONFLICT, "the reservation is another pod's")
    if _has_strangers(record, record.share):
        return Refusal(ReasonCode.RESERVATION_CONFLICT, f"{record.gpu} is another pod's too")
    return record.with_holder(replace(mine, pod=pod, answers=mine.answers + 1))


def _again(record: GpuRecord, claim: Claim, mine: Holder) -> Write | Held | Taken:
    if not _is_same_pod(mine.pod, claim.pod) or mine.gpus != claim.gpus:
        return Taken(_refusal(f"{record.gpu}: the reservation is another pod's"), mine)
    if mine.state is HolderState.CONFIRMED:
        return Held()
    if mine.state is not HolderState.PROPOSED:
        ended = Refusal(ReasonCode.RESERVATION_EXPIRED, f"{record.gpu}: its pod has ended")
        return Taken(ended, mine)
    if _has_strangers(record, claim.share):
        return Taken(_refusal(f"{record.gpu} is another pod's too"), mine)
    if mine.call == claim.call:
        return Held()
    return Write(record.with_holder(replace(mine, answers=mine.answers + 1)))


def _join(record: GpuRecord, claim: Claim) -> Write | Taken:
    first = record.holders[0]
    if claim.share is None or not record.is_shared_by(claim.share):
        return Taken(_refusal(f"{record.gpu} is reserved"), first)
    if not claim.share.includes(claim.pod):
        return Taken(_refusal(f"{record.gpu}: the pod is not of its share group"), first)
    if len(record.holders) >= MAX_HOLDERS:
        return Taken(_refusal(f"{record.gpu}: {MAX_HOLDERS} pods share it already"), first)
    return Write(record.with_holder(claim.part()))


def _has_strangers(record: GpuRecord, share: ShareGroup | None) -> bool:
    """Whether a pod has the GPU beside the attempt, and got it by no claim of its group."""
    return len(record.holders) > 1 and not record.is_shared_by(share)


def _is_same_pod(a: PodRef, b: PodRef) -> bool:
    return (a.namespace, a.uid) == (b.namespace, b.uid)


def _refusal(text: str) -> Refusal:
    return Refusal(ReasonCode.LEDGER_CONFLICT, text)


# --- the claim of several GPUs
# GPUs are claimed one after the other, each by compare-and-set. What this call wrote is known by
# its `call`. What a crash or a dead store leaves behind is an attempt that expires.


@dataclass(frozen=True, slots=True)
class Claimed:
    """All GPUs of the claim are held by its reservation, and were at one moment together."""

    claim: Claim


class Claimant:
    """One per process; claims may run side by side."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store

    async def claim(self, claim: Claim) -> Claimed | Refusal:
        """Reserve all GPUs, or none.

        Refused with LEDGER_CONFLICT, LEDGER_UNAVAILABLE, or RESERVATION_EXPIRED where its pod
        has ended. The same reservation for the same pod again succeeds. Raises
        RecordInvalidError for a claim that cannot be one.
        """
        claim.part().demand_valid()
        for position, gpu in enumerate(claim.gpus):
            refusal = await self._claim_one(claim, gpu)
            if refusal is not None:
                await self._take_back(claim, reversed(claim.gpus[: position + 1]))
                return refusal
        return Claimed(claim)

    async def withdraw(self, claim: Claim) -> tuple[str, ...]:
        """Take back what `claim` added, after its answer was not given after all.

        The GPUs that were taken back. What somebody else relies on stays, and so does what
        cannot be reached: it expires.
        """
        return await self._take_back(claim, reversed(claim.gpus))

    async def _claim_one(self, claim: Claim, gpu: str) -> Refusal | None:
        async def decide(record: GpuRecord | None) -> GpuRecord | Held | Taken:
            verdict = claim_on(record, claim, gpu)
            return verdict.record if isinstance(verdict, Write) else verdict

        try:
            found = await change_record(self._store, gpu, decide)
        except LedgerUnavailableError as error:
            return Refusal(ReasonCode.LEDGER_UNAVAILABLE, str(error))
        if isinstance(found, Taken):
            return found.refusal
        return found if isinstance(found, Refusal) else None

    async def _take_back(self, claim: Claim, gpus: Iterable[str]) -> tuple[str, ...]:
        return tuple([gpu for gpu in gpus if await self._take_one_back(claim, gpu)])

    async def _take_one_back(self, claim: Claim, gpu: str) -> bool:
        async def decide(record: GpuRecord | None) -> GpuRecord | None:
            return rolled_back(record, claim)

        try:
            return isinstance(await change_record(self._store, gpu, decide), Written)
        except LedgerUnavailableError:
            return False


# --- reservations at a pod's creation
# After a refusal in a later admission step the API server asks again for what looks like another
# pod. So an owner has one reservation at a time for a pod that nobody has seen. The owner's next
# pod gets that one, or waits.


def held_early(snapshot: LedgerSnapshot, reservation: str, pod_uid: str | None) -> Holder | None:
    """The part of a whole reservation that is an attempt, or confirmed, for just this pod."""
    parts = tuple(
        holder
        for entry in snapshot.holding(reservation)
        if (holder := entry.record.holder(reservation)) is not None
    )
    if not parts or len(parts) != len(parts[0].gpus):
        return None
    live = {HolderState.PROPOSED, HolderState.CONFIRMED}
    fits = all(x.pod.uid == pod_uid and x.state in live for x in parts)
    return parts[0] if fits else None


def answered_before(snapshot: LedgerSnapshot, namespace: str, nonce: str) -> Holder | None:
    """What was reserved for the very same request."""
    found = (x for x in _attempts(snapshot, namespace) if nonce_of(x.reservation) == nonce)
    return min(found, key=lambda x: x.reservation, default=None)


def open_proposals(snapshot: LedgerSnapshot, pod: PodRef) -> tuple[Holder, ...]:
    """The attempts made at their creation for pods of the same owner, the unborn ones first.

    Without an owner: for pods of the same name, where that is known.
    """
    found = {x.reservation: x for x in _attempts(snapshot, pod.namespace) if _is_akin(x.pod, pod)}
    return tuple(sorted(found.values(), key=lambda x: (x.pod.uid is not None, x.reservation)))


def _is_akin(one: PodRef, other: PodRef) -> bool:
    if one.owner is not None or other.owner is not None:
        return one.owner == other.owner
    return one.name is not None and one.name == other.name


def _attempts(snapshot: LedgerSnapshot, namespace: str) -> Iterator[Holder]:
    for entry in snapshot.entries.values():
        for holder in entry.record.holders:
            is_early = holder.origin is Origin.ADMISSION
            is_open = holder.state is HolderState.PROPOSED
            if is_early and is_open and holder.pod.namespace == namespace:
                yield holder
