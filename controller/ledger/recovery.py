"""What a log knows of reservations and the ledger does not: found, and held again. Pure.

A store that was put back to an old copy may say that a GPU is free which was given away
since, to a pod that the API server has forgotten as well. Its containers may run on, idle, so
that no report shows them. Whoever gave the GPU has it in its audit log: it is held again,
as Releasing, until the node itself shows that nothing of the pod is left.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller.ledger.adoption import LivePod
from controller.ledger.record import GpuRecord, Holder, PodRef, demand_gpus, key_of
from controller.ledger.states import HolderState, Origin
from controller.ledger.store import Entry, LedgerSnapshot


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


Grants = Mapping[tuple[str, str], LoggedGrant]
"""By `key_of(gpu)` and reservation."""


def grants_of(entries: Iterable[Entry]) -> Grants:
    """What the ledger has, in the same words; a pod without a UID was never born."""
    return {
        (entry.record.key, holder.reservation): LoggedGrant(
            entry.record.gpu, entry.record.node, holder.reservation, holder.pod, holder.gpus
        )
        for entry in entries
        for holder in entry.record.holders
        if holder.pod.uid is not None
    }


def lost_grants(
    grants: Grants, snapshot: LedgerSnapshot, live: Iterable[LivePod]
) -> tuple[LoggedGrant, ...]:
    """Those that the ledger lacks, by GPU; live pods get their records by adoption."""
    adopted = {(key_of(gpu), pod.reservation) for pod in live for gpu in pod.gpus}
    found = (
        grant
        for (key, reservation), grant in grants.items()
        if (key, reservation) not in adopted and not _is_held(snapshot, key, reservation)
    )
    return tuple(sorted(found, key=lambda x: (key_of(x.gpu), x.reservation)))


def held_again(record: GpuRecord | None, grant: LoggedGrant, call: str) -> GpuRecord | None:
    """The record to write so that `grant`'s GPU is held for it; None where it is already.

    A GPU that is recorded on another node stays there: it is nobody's to grant. `call` as in
    a claim. Raises RecordInvalidError.
    """
    demand_gpus(grant.gpus)
    part = Holder(
        grant.reservation,
        grant.pod,
        grant.gpus,
        Origin.GATE,
        call,
        state=HolderState.RELEASING,
        adopted=True,
    )
    if record is None:
        made = GpuRecord(grant.gpu, grant.node, (part,))
    elif record.holder(grant.reservation) is not None or record.node != grant.node:
        return None
    else:
        made = record.with_holder(part)
    made.demand_valid()
    return made


def _is_held(snapshot: LedgerSnapshot, key: str, reservation: str) -> bool:
    entry = snapshot.entries.get(key)
    return entry is not None and entry.record.holder(reservation) is not None
