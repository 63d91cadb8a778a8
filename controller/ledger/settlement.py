"""Settlement: what is written for a GPU that kubelet gave to a pod by its own choice. Pure.

On a node with a stock device plugin nothing can be claimed before kubelet has chosen. The
record is made from what the node's agent then shows in signed evidence: which pod has which
GPU. It begins as Confirmed, since there is nothing left that could come to nothing: the pod is
bound and has the GPU. Each GPU is a reservation of its own, so a report that says more only
adds. As in `adoption`, a record that is there is never taken away from its holder.

Kubelet tells pods by their names alone. A pod that has the name of one that is still being
released may be shown with what the other had, so it waits until nothing of that one runs.
"""

from dataclasses import dataclass

from controller.ledger.record import MAX_HOLDERS, GpuRecord, Holder, PodRef
from controller.ledger.release import UseReport
from controller.ledger.states import HolderState, Origin


@dataclass(frozen=True, slots=True)
class GivenGpu:
    """A GPU that kubelet has given to a bound pod that has not ended."""

    pod: PodRef
    """With its UID."""
    node: str
    gpu: str


def settled_on(
    record: GpuRecord | None, given: GivenGpu, reservation: str, call: str, report: UseReport
) -> GpuRecord | None:
    """The record to write so that the GPU is held for the pod; None where there is none to write.

    `report`: the one that shows it. `call` as in a claim. Raises RecordInvalidError.
    """
    part = Holder(
        reservation,
        given.pod,
        (given.gpu,),
        Origin.SETTLEMENT,
        call,
        HolderState.CONFIRMED,
        adopted=True,
    )
    if record is None:
        return GpuRecord(given.gpu, given.node, (part,))
    if record.node != given.node or record.of_pod(given.pod.uid or "") is not None:
        return None
    if len(record.holders) >= MAX_HOLDERS or any(
        _may_be_meant(x, given.pod, report) for x in record.holders
    ):
        return None
    return record.with_holder(part)


def _may_be_meant(holder: Holder, pod: PodRef, report: UseReport) -> bool:
    """Whether the holder is an earlier pod of that name of which something may run."""
    if (holder.pod.namespace, holder.pod.name) != (pod.namespace, pod.name):
        return False
    return report.may_run(holder.pod.uid)
