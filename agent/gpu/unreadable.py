"""Decides when nothing can be read for so long that only a new container may help. Pure.

A container that lost its access to the devices, that was started before the library was there, or
whose library is of another version than the driver never reads again. Whoever runs the process
ends it then. Each such end that helped nothing doubles the time until the next, up to an hour.

A reading that succeeds ends the count: one GPU that can be read whole, or a node without GPUs. A
GPU that says itself that it is lost is no reason: another container finds it as lost.
"""

from typing import Final

from agent.gpu.facts import LOST
from agent.gpu.reading import InventoryReading, NvmlState
from gpuwarden.evidence.class_document import CLASS_FACTS
from gpuwarden.evidence.node_identity import IDENTITY_FACTS
from gpuwarden.moment import NS_PER_S

LONGEST_NS: Final = 3600 * NS_PER_S
"""No end is put off for longer than this, or than the configured time where that is longer."""

_NEEDED: Final = CLASS_FACTS | IDENTITY_FACTS
_MOST_DOUBLINGS: Final = 16


def why_unreadable(reading: InventoryReading) -> str:
    """Why nothing could be read that a new container might read; empty where that is not so."""
    if reading.state is not NvmlState.READY:
        return reading.detail
    reads = [x for x in reading.failed_reads if x.fact in _NEEDED]
    unhealthy = {x.gpu for x in reads}
    if any(not unhealthy & {x.uuid, x.pci_bus_id} for x in reading.inventory.gpus):
        return ""
    found = [f"{x.call}: {x.error}" for x in reads if x.error not in LOST]
    found += [f"{x.uuid}: {x.error}" for x in reading.inventory.lost if x.error not in LOST]
    return next(iter(found), "")


class UnreadableWatch:
    """One per process."""

    def __init__(self, after_s: float, ends: int) -> None:
        """`ends`: processes that ended for this before, since a reading succeeded."""
        self._after_ns = int(after_s * NS_PER_S)
        self._ends = ends
        self._since_ns: int | None = None
        self._why = ""

    @property
    def ends(self) -> int:
        """What to remember while the process lives."""
        return self._ends

    @property
    def limit_ns(self) -> int:
        """For how long readings must have failed."""
        put_off = self._after_ns << min(self._ends, _MOST_DOUBLINGS)
        return min(put_off, max(LONGEST_NS, self._after_ns))

    def saw(self, reading: InventoryReading, now_ns: int) -> None:
        """A reading ended."""
        self._why = why_unreadable(reading)
        if not self._why:
            self._since_ns, self._ends = None, 0
        elif self._since_ns is None:
            self._since_ns = now_ns

    def overdue(self, now_ns: int) -> str:
        """Why the process should end; empty while it should not."""
        if self._since_ns is None or now_ns - self._since_ns < self.limit_ns:
            return ""
        seconds = (now_ns - self._since_ns) // NS_PER_S
        return f"NVML has read nothing for {seconds} s: {self._why}"
