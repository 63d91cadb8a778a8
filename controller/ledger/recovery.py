"""What a log knows of reservations and the ledger does not: found, and held again. Pure.

A store that was put back to an old copy may say that a GPU is free which was given away
since, to a pod that the API server has forgotten as well. Its containers may run on, idle, so
that no report shows them. Whoever gave the GPU has it in its audit log: it is held again,
as Releasing, until the node itself shows that nothing of the pod is left. The same holds where
the old copy has it as an attempt, and the pod was bound after the copy: an attempt expires,
however much still runs.
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

    Live pods get their records by adoption, or are confirmed.
    """
    adopted = {(key_of(gpu), pod.reservation) for pod in live for gpu in pod.gpus}
    found = (
        grant
        for (key, reservation), grant in grants.items()
        if (key, reservation) not in adopted and not _is_held(snapshot, key, grant)
    )
    return tuple(sorted(found, key=lambda x: (key_of(x.gpu), x.reservation)))


def held_again(
    record: GpuRecord | None, grant: LoggedGrant, call: str
) -> GpuRecord | Elsewhere | None:
    """The record to write so that `grant`'s GPU is held for it; None where it is already.

    Beside others it is a stranger, for nobody knows which share group it was of. `call` as in a
    claim. Raises RecordInvalidError.
    """
    demand_gpus(grant.gpus)
    if record is None:
        made = GpuRecord(grant.gpu, grant.node, (_released_again(grant, call),))
    elif record.node != grant.node:
        return Elsewhere(record.node)
    elif (held := record.holder(grant.reservation)) is None:
        made = record.with_holder(_released_again(grant, call).as_stranger())
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
        Origin.GATE,
        call,
        state=HolderState.RELEASING,
        adopted=True,
    )


def _is_held(snapshot: LedgerSnapshot, key: str, grant: LoggedGrant) -> bool:
    entry = snapshot.entries.get(key)
    if entry is None or entry.record.node != grant.node:
        return False
    held = entry.record.holder(grant.reservation)
    return held is not None and not _is_attempt_again(held, grant)


def _is_attempt_again(held: Holder, grant: LoggedGrant) -> bool:
    return grant.bound and held.state is HolderState.PROPOSED
