"""Claims GPUs for a pod, and decides what becomes of the attempt until its pod is bound.

A claim is all or nothing. An attempt ends as Confirmed, Releasing, Expired or Revoked. A live pod
whose record was lost gets it again. Must not decide when a GPU is free after its pod has ended.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from controller.ledger.record import (
    MAX_HOLDERS,
    GpuRecord,
    Holder,
    HolderState,
    Origin,
    PodRef,
    ShareGroup,
    demand_gpus,
)
from controller.ledger.reservation_id import nonce_of
from controller.ledger.store import (
    LedgerSnapshot,
    LedgerStore,
    LedgerUnavailableError,
    Written,
    change_record,
)
from gpuwarden.reasons import ReasonCode, Refusal

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
        """What each GPU's record holds at first; raises RecordInvalidError."""
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
        return Taken(_refusal(f"{record.gpu}: the reservation is another pod's"))
    if mine.state is HolderState.CONFIRMED:
        return Held()
    if mine.state is not HolderState.PROPOSED:
        ended = Refusal(ReasonCode.RESERVATION_EXPIRED, f"{record.gpu}: its pod has ended")
        return Taken(ended)
    if _has_strangers(record, claim.share):
        return Taken(_refusal(f"{record.gpu} is another pod's too"))
    if mine.call == claim.call:
        return Held()
    return Write(record.with_holder(replace(mine, answers=mine.answers + 1)))


def _join(record: GpuRecord, claim: Claim) -> Write | Taken:
    if claim.share is None or not record.is_shared_by(claim.share):
        return Taken(_refusal(f"{record.gpu} is reserved"))
    if not claim.share.includes(claim.pod):
        return Taken(_refusal(f"{record.gpu}: the pod is not of its share group"))
    if len(record.holders) >= MAX_HOLDERS:
        return Taken(_refusal(f"{record.gpu}: {MAX_HOLDERS} pods share it already"))
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
