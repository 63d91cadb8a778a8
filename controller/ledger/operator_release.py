"""An operator's word that nothing is left of a pod: one holder's end without its node's. Pure.

It replaces what a silent node does not say, and never what a node says or the API server: refused
while the pod lives, and while the node's last report, not older than its lease, shows use by it.
"""

from dataclasses import dataclass
from typing import Final

from controller.ledger.pods import PodSight, is_over
from controller.ledger.record import GpuRecord, PodRef
from controller.ledger.release import UseReport, card_of, has_successor
from controller.ledger.states import HolderState
from gpuwarden.reasons import ReasonCode, Refusal

_INSTEAD: Final = {
    HolderState.PROPOSED: "an attempt expires by itself",
    HolderState.CONFIRMED: "delete its pod first",
}


@dataclass(frozen=True, slots=True)
class Known:
    """What an operator's word is judged by."""

    pod: PodSight
    """At its newest; PodGone for one that was never born."""
    report: UseReport | None
    """The node's last; None where its lease is over, or nothing was heard."""


def released_by_operator(
    record: GpuRecord | None, reservation: str, known: Known
) -> GpuRecord | Refusal | None:
    """The record without that holder, or why not; None where the GPU is free of it already.

    Other holders keep the GPU. RESERVATION_IN_FORCE: its pod has not ended, as far as is known.
    RESERVATION_IN_USE: the node shows something of it.
    """
    holder = None if record is None else record.holder(reservation)
    if record is None or holder is None:
        return None
    if holder.state is not HolderState.RELEASING:
        instead = _INSTEAD.get(holder.state, "it has ended")
        return Refusal(ReasonCode.RESERVATION_IN_FORCE, f"it is {holder.state}: {instead}")
    if not is_over(known.pod):
        return Refusal(ReasonCode.RESERVATION_IN_FORCE, "its pod has not ended: delete it first")
    succeeded = has_successor(record, holder)
    shown = shown_use(known.report, holder.pod, record.gpu, succeeded=succeeded)
    if shown is not None:
        return Refusal(ReasonCode.RESERVATION_IN_USE, f"{record.node} shows {shown}")
    return record.moved(reservation, HolderState.RELEASED)


def shown_use(
    report: UseReport | None, pod: PodRef, gpu: str, *, succeeded: bool = False
) -> str | None:
    """What a report positively shows of the pod, in words; what was not read shows nothing.

    A process of it counts wherever it runs, as in `is_quiet`, and so does `succeeded`.
    """
    if report is None:
        return None
    users = report.users or {}
    used = sorted(uuid for uuid, uids in users.items() if pod.uid is not None and pod.uid in uids)
    if used:
        return f"a process of the pod on {used[0]}"
    if pod.uid is not None and pod.uid in (report.pods or ()):
        return "a process of the pod"
    name = (pod.namespace, pod.name)
    given = (x for x in report.given or () if (x.namespace, x.pod) == name)
    if not succeeded and any(card_of(x.device) == gpu for x in given):
        return "that kubelet gives it to a pod of that name"
    return None
