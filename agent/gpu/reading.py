"""What the GPU side of the agent hands to the Attester: one reading, and events between readings.

Values only. This module must not read anything.
"""

from dataclasses import dataclass
from enum import StrEnum

from agent.claims.allocations import NOT_ASKED, AllocationReading
from agent.claims.pods import NOT_LOOKED, PodsReading
from gpuwarden.evidence.model import FailedRead, GpuProcess, Inventory


class NvmlState(StrEnum):
    """Whether NVML answers at all; shown in readiness, metrics and log."""

    READY = "READY"
    UNAVAILABLE = "NVML_UNAVAILABLE"
    """Library or driver missing: no inventory can be had, and nothing crashed."""


class EventKind(StrEnum):
    """The kinds of failure notices, spelled as `FailureNotice.kind` on the wire."""

    XID = "xid"
    GPU_LOST = "gpu-lost"
    DRIVER_RELOAD = "driver-reload"
    NVML_UNAVAILABLE = "nvml-unavailable"


@dataclass(frozen=True, slots=True)
class InventoryReading:
    """One complete pass over NVML, the host and the GPU processes.

    While `state` is UNAVAILABLE the inventory has no GPUs and `failed_reads`
    has an entry for the fact `gpus`; evidence made from it is INVENTORY_INCOMPLETE.
    """

    inventory: Inventory
    failed_reads: tuple[FailedRead, ...]
    processes: tuple[GpuProcess, ...] | None
    """Null where processes could not be listed on any GPU."""
    state: NvmlState
    allocations: AllocationReading = NOT_ASKED
    """Kubelet's account, where it was read beside the GPUs."""
    pods: PodsReading = NOT_LOOKED
    """The pods that run, where the challenge wants them."""
    detail: str = ""
    """For people: why the state is not READY; one line, no secrets."""


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """Something that takes trust away between two readings."""

    kind: EventKind
    gpu: str | None
    """UUID, where the event is about one GPU that is known."""
    xid: int | None
    detail: str
    """For people and the log: one line, at most 200 characters."""
