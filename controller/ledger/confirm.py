"""Confirmation: the pod is bound under its reservation. Pure.

By the watch (`attempt.attempt_step`) or by the pod's own word (`POST /finalize`), which
counts only together with a live pod that is bound. Nothing is confirmed without a claim.
"""

from dataclasses import dataclass

from controller.ledger.pods import PodSeen, PodSight, is_over
from controller.ledger.record import GpuRecord, Holder
from controller.ledger.states import HolderState
from gpuwarden.reasons import ReasonCode, Refusal


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
