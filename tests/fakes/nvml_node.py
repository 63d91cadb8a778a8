"""A node whose NVML is the stand-in library, loaded into this very process.

The library is loaded once, before pynvml asks for it by its soname: one process, one
library. What it shows is a scenario that a test can replace at any time.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from agent.claims.host import HostFacts
from agent.gpu.inventory import KnownGpu
from agent.gpu.source import NvmlInventorySource
from agent.gpu.worker import Deadlines
from sandbox.nvml.build import LIBRARY, build
from sandbox.nvml.scenario import VARIABLE, FakeEvent, FakeGpu, Faults, Scenario, write

HOST = HostFacts(
    arch="x86_64",
    boot_id="0b3f6f1e-7f0c-4f6e-9d55-0c6ce6f6f0aa",
    system_uuid="4c4c4544-0042-3510-8054-b4c04f4d5033",
)

USUAL = Deadlines(wait_s=0.02)
SHORT = Deadlines(call_s=0.2, pass_s=0.6, wait_s=0.02)

UNINITIALIZED = 1


class NvmlNode:
    """What the library shows, and sources that read it."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(build() / LIBRARY))
        self.path = path
        self.scenario = Scenario()
        self._sources: list[NvmlInventorySource] = []
        os.environ[VARIABLE] = str(path)

    def shows(self, *gpus: FakeGpu, **fields: object) -> None:
        """Show these GPUs and nothing of what was before, except past events."""
        events = {"events": self.scenario.events}
        self._write(Scenario(gpus=gpus, **(events | fields)))  # type: ignore[arg-type] # fields of Scenario

    def change(self, index: int, **fields: object) -> None:
        """Change one GPU."""
        gpus = list(self.scenario.gpus)
        gpus[index] = msgspec.structs.replace(gpus[index], **fields)
        self._write(msgspec.structs.replace(self.scenario, gpus=tuple(gpus)))

    def breaks(self, index: int, **faults: object) -> None:
        """Let calls of one GPU go wrong."""
        self.change(index, faults=Faults(**faults))  # type: ignore[arg-type] # fields of Faults

    def host_breaks(self, **faults: object) -> None:
        """Let calls go wrong that are about no GPU."""
        broken = Faults(**faults)  # type: ignore[arg-type] # fields of Faults
        self._write(msgspec.structs.replace(self.scenario, faults=broken))

    def happens(self, index: int, xid: int, kind: int = 8) -> None:
        """An event of one GPU."""
        event = FakeEvent(pci_bus_id=self.scenario.gpus[index].pci_bus_id, data=xid, type=kind)
        events = (*self.scenario.events, event)
        self._write(msgspec.structs.replace(self.scenario, events=events))

    def driver_unloads(self) -> None:
        """Without a scenario there is no driver."""
        self.path.unlink()

    def source(
        self,
        deadlines: Deadlines = USUAL,
        known: tuple[KnownGpu, ...] = (),
        pod_of: Callable[[int], str | None] = lambda _: None,
    ) -> NvmlInventorySource:
        """A source over this process's library; closed by `aclose`."""
        source = NvmlInventorySource(HOST, pod_of, deadlines=deadlines, known=known)
        self._sources.append(source)
        return source

    async def end(self, source: NvmlInventorySource) -> None:
        """End one source before the others; only with no session left is hardware listed again."""
        self._sources.remove(source)
        await source.aclose()

    async def aclose(self) -> None:
        """End everything that was started; what a broken driver kept open is closed here."""
        self.shows()
        for source in self._sources:
            await source.aclose()
        while self.library.nvmlShutdown() != UNINITIALIZED:
            pass
        del os.environ[VARIABLE]

    def _write(self, scenario: Scenario) -> None:
        self.scenario = scenario
        write(self.path, scenario)
