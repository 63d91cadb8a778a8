"""What one claim may do with one GPU's record, and how it is undone. Pure.

All-or-nothing over several GPUs comes from three rules: everybody claims in one order,
whoever meets somebody else takes back what this very call added, and nothing else. A claim
that finds its reservation made by another call (a retry, another replica) counts itself in
(`Holder.answers`), so that whoever made it no longer takes it back.
"""

from dataclasses import dataclass, replace

from controller.ledger.record import (
    MAX_HOLDERS,
    GpuRecord,
    Holder,
    PodRef,
    ShareGroup,
    demand_gpus,
)
from controller.ledger.states import HolderState, Origin
from controller.ledger.store import LedgerSnapshot
from gpuwarden.reasons import ReasonCode, Refusal


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
    """Whether somebody stands beside the attempt who was let in by no claim of its group."""
    return len(record.holders) > 1 and not record.is_shared_by(share)


def _is_same_pod(a: PodRef, b: PodRef) -> bool:
    return (a.namespace, a.uid) == (b.namespace, b.uid)


def _refusal(text: str) -> Refusal:
    return Refusal(ReasonCode.LEDGER_CONFLICT, text)
