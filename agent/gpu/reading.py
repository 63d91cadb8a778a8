"""What the GPU side of the agent hands to the Attester: one reading, and events between readings.

Values only. This module must not read anything.
"""

from dataclasses import dataclass, replace
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
    happened_ms: int = 0
    """The node's CLOCK_BOOTTIME in milliseconds when the agent heard of it."""
    count: int = 1
    """How often it happened; the others of the same key were not reported apart."""

    @property
    def key(self) -> tuple[EventKind, str | None, int | None]:
        """What two reports of the same trouble have in common."""
        return self.kind, self.gpu, self.xid

    def includes(self, other: "GpuEvent") -> bool:
        """Whether whoever knows this one need not hear of `other`."""
        return self.key == other.key and other.happened_ms <= self.happened_ms


def merged(waiting: tuple[GpuEvent, ...], event: GpuEvent) -> tuple[GpuEvent, ...]:
    """What waits to be reported, with `event`: one entry for each key, which counts."""
    for position, known in enumerate(waiting):
        if known.includes(event):
            return waiting
        if known.key == event.key:
            both = replace(event, count=known.count + event.count)
            return (*waiting[:position], both, *waiting[position + 1 :])
    return (*waiting, event)
