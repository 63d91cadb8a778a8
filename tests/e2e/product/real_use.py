"""Who uses the GPUs of the real node: kubelet's own account, and processes that a test makes up."""

from dataclasses import replace
from pathlib import Path

from agent.claims.kubelet import KubeletAllocations
from agent.gpu.reading import InventoryReading
from gpuwarden.evidence.model import GpuProcess


class RealUse:
    """For `Agents.start`; a test changes `processes`."""

    def __init__(self, socket: Path, *resources: str) -> None:
        """`socket`: kubelet's PodResources."""
        self._allocations = KubeletAllocations(socket, resources)
        self.processes: tuple[GpuProcess, ...] = ()
        self.given: dict[str, str] = {}
        """Pods by device, as kubelet last said."""

    async def __call__(self, reading: InventoryReading) -> InventoryReading:
        """The reading with kubelet's answer to this very question."""
        found = await self._allocations.read()
        self.given = {x.device: x.pod for x in found.allocations or ()}
        return replace(reading, allocations=found, processes=self.processes)
