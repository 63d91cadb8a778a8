"""Decides which lost records are written again: of live pods, and of what a log or a memory has.

Pure. Must not take a record from its holder.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.ledger.record import (
    GpuRecord,
    Holder,
    HolderState,
    Origin,
    PodRef,
    ShareGroup,
    demand_gpus,
    key_of,
)
from controller.ledger.store import (
    Entry,
    LedgerSnapshot,
)

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


def restored_for_pod(
    record: GpuRecord | None, live: LivePod, gpu: str, call: str
) -> GpuRecord | None:
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
        return record.with_holder(part if live.share == record.share else part.without_owner())
    if mine.state is HolderState.PROPOSED:
        return record.moved(live.reservation, HolderState.CONFIRMED)
    return None


def _part(live: LivePod, call: str, state: HolderState) -> Holder:
    demand_gpus(live.gpus)
    return Holder(
        live.reservation, live.pod, live.gpus, live.origin, call, state=state, restored=True
    )


# --- what the ledger has lost
# After a rollback the store may show a GPU as free that was given to a pod which the API server
# has lost too. Its containers may run on, idle, so that no report shows them. The replica that
# gave the GPU has this in its audit log. The GPU is held as Releasing until the node shows
# that nothing of the pod is left. The same is true where the old copy has an attempt and the pod
# was bound after the copy.


@dataclass(frozen=True, slots=True)
class LoggedGrant:
    """One GPU of a reservation that was made and whose end is not known."""

    gpu: str
    node: str
    reservation: str
    pod: PodRef
    """With its UID."""
    gpus: tuple[str, ...]
    """All of the reservation, in claiming order."""
    bound: bool = False
    """Whether it was more than an attempt."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The GPU is recorded on another node: what is to be held waits until that record has ended.

    A part in it would be let go by that node's reports, whatever runs on this one.
    """

    node: str


Grants = Mapping[tuple[str, str], LoggedGrant]
"""By `key_of(gpu)` and reservation."""


def grants_of(entries: Iterable[Entry]) -> Grants:
    """What the ledger has, in the same words; a pod without a UID was never born."""
    return {
        (entry.record.key, holder.reservation): LoggedGrant(
            entry.record.gpu,
            entry.record.node,
            holder.reservation,
            holder.pod,
            holder.gpus,
            bound=holder.state is not HolderState.PROPOSED,
        )
        for entry in entries
        for holder in entry.record.holders
        if holder.pod.uid is not None
    }


def granted_to(pod: LivePod, gpu: str) -> LoggedGrant:
    """What a live pod says that it has, in the same words."""
    return LoggedGrant(gpu, pod.node, pod.reservation, pod.pod, pod.gpus, bound=True)


def lost_grants(
    grants: Grants, snapshot: LedgerSnapshot, live: Iterable[LivePod]
) -> tuple[LoggedGrant, ...]:
    """Those that the ledger lacks, or has as attempts again, by GPU.

    Leaves out what live pods hold: `restored_for_pod` restores or confirms their records.
    """
    live_parts = {(key_of(gpu), pod.reservation) for pod in live for gpu in pod.gpus}
    found = (
        grant
        for (key, reservation), grant in grants.items()
        if (key, reservation) not in live_parts and not _is_held(snapshot, key, grant)
    )
    return tuple(sorted(found, key=lambda x: (key_of(x.gpu), x.reservation)))


def restored_as_releasing(
    record: GpuRecord | None, grant: LoggedGrant, call: str
) -> GpuRecord | Elsewhere | None:
    """The record to write so that `grant`'s GPU is held for it; None where it is already.

    Beside others it is of no share group, for nobody knows which one it was of. `call` as in a
    claim. Raises RecordInvalidError.
    """
    demand_gpus(grant.gpus)
    if record is None:
        made = GpuRecord(grant.gpu, grant.node, (_released_again(grant, call),))
    elif record.node != grant.node:
        return Elsewhere(record.node)
    elif (held := record.holder(grant.reservation)) is None:
        made = record.with_holder(_released_again(grant, call).without_owner())
    elif _is_attempt_again(held, grant):
        made = record.moved(grant.reservation, HolderState.RELEASING)
    else:
        return None
    made.demand_valid()
    return made


def _released_again(grant: LoggedGrant, call: str) -> Holder:
    return Holder(
        grant.reservation,
        grant.pod,
        grant.gpus,
        Origin.BINDING_WEBHOOK,
        call,
        state=HolderState.RELEASING,
        restored=True,
    )


def _is_held(snapshot: LedgerSnapshot, key: str, grant: LoggedGrant) -> bool:
    entry = snapshot.entries.get(key)
    if entry is None or entry.record.node != grant.node:
        return False
    held = entry.record.holder(grant.reservation)
    return held is not None and not _is_attempt_again(held, grant)


def _is_attempt_again(held: Holder, grant: LoggedGrant) -> bool:
    return grant.bound and held.state is HolderState.PROPOSED
