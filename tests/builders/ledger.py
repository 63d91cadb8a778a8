"""Reservations for tests."""

from dataclasses import replace

from controller.ledger.claim import Claim
from controller.ledger.record import GpuRecord, Holder, HolderState, Origin, PodRef, ShareGroup

CALL = "0123456789abcdef"
POD = PodRef("team-a", "train-0", "uid-0", "owner-a")
OTHER_POD = PodRef("team-a", "train-1", "uid-1", "owner-a")
SHARE = ShareGroup("team-a", "owner-a", "gpu-1:0")


def claim(*gpus: str, pod: PodRef = POD, call: str = CALL, **more: object) -> Claim:
    made = Claim(f"v1.k.{pod.uid or pod.name}", pod, "gpu-1", gpus, Origin.BINDING_WEBHOOK, call)
    return replace(made, **more)  # type: ignore[arg-type] # fields of Claim


def holder(*gpus: str, pod: PodRef = POD, **more: object) -> Holder:
    made = Holder(
        f"v1.k.{pod.uid or pod.name}", pod, gpus or ("GPU-a",), Origin.BINDING_WEBHOOK, CALL
    )
    return replace(made, **more)  # type: ignore[arg-type] # fields of Holder


def record(*holders: Holder, gpu: str = "GPU-a", share: ShareGroup | None = None) -> GpuRecord:
    return GpuRecord(gpu, "gpu-1", holders or (holder(),), share)


def in_state(state: HolderState, *gpus: str) -> GpuRecord:
    return record(holder(*gpus, state=state))
