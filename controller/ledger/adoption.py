"""Re-adoption: what is written for a pod that runs on a GPU which the ledger does not give it.

After a start, and when records were lost or put back (deleted by hand, a store restored from
a backup), live pods with reservation ids of ours get their records again before anything is
granted. Only a bound, living pod is adopted, as the API server has it now, whose id was
found authentic for exactly this pod, node and GPUs; a record that is there is never taken
away from its holder, so a GPU may end with two holders: then nobody else gets it until both
have gone. Pure.
"""

from dataclasses import dataclass

from controller.ledger.record import GpuRecord, Holder, PodRef, ShareGroup, demand_gpus
from controller.ledger.states import HolderState, Origin


@dataclass(frozen=True, slots=True)
class LivePod:
    """A bound pod that has not ended, by a quorum read or the first list, with its own word."""

    pod: PodRef
    node: str
    reservation: str
    gpus: tuple[str, ...]
    """In claiming order; authentic together with the id."""
    origin: Origin = Origin.GATE
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
