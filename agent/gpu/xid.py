"""Which NVML events take trust away.

An XID is the driver's error number (NVIDIA: XID errors). Most mean that hardware or
driver state is no longer what was attested; a few are the application's own fault and
happen on healthy GPUs. Pure.
"""

from dataclasses import dataclass
from typing import Final

from agent.gpu.reading import EventKind, GpuEvent

XID_EVENT: Final = 0x0008
UNAVAILABLE_EVENT: Final = 0x4000
WANTED: Final = XID_EVENT | UNAVAILABLE_EVENT
"""The event types that are registered for."""

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})
"""Faults of a program, not of the GPU: graphics engine exception (13), page fault (31),
channel reset (43), pre-emptive cleanup (45), video processor exception (68), context
switch timeout (109). NVIDIA's device plugin leaves out the same ones."""

OFF_THE_BUS: Final = 79
"""The GPU has fallen off the bus."""


@dataclass(frozen=True, slots=True)
class Happening:
    """One event as NVML tells it, with the GPU it is about."""

    gpu: str | None
    type: int
    data: int


def failure_notice(happening: Happening) -> GpuEvent | None:
    """The event to report; null for an application's fault."""
    if happening.type == UNAVAILABLE_EVENT:
        return GpuEvent(EventKind.GPU_LOST, happening.gpu, None, "NVML: GPU unavailable")
    if happening.data in APPLICATION_XIDS:
        return None
    if happening.data == OFF_THE_BUS:
        return GpuEvent(EventKind.GPU_LOST, happening.gpu, happening.data, "fallen off the bus")
    return GpuEvent(EventKind.XID, happening.gpu, happening.data, f"XID {happening.data}")
