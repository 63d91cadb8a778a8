"""GPUs and kubelet's allocations in one reading, at once."""

import asyncio
from dataclasses import dataclass, field

import pytest

from agent.attester import GpuInventorySource
from agent.claims.allocations import NOT_ASKED, AllocationReading
from agent.gpu.facts import DriverReloadedError, Failed
from agent.session.readings import NoAllocations, NodeSource
from gpuwarden.evidence.model import Allocation
from tests.fakes.agent_ports import FakeGpus

HELD = AllocationReading((Allocation("a", "b", "c", "nvidia.com/gpu", "GPU-1"),))


@dataclass
class FakeAllocations:
    answer: AllocationReading = HELD
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    begun: int = 0
    cancelled: int = 0

    async def read(self) -> AllocationReading:
        self.begun += 1
        try:
            await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.answer

    async def aclose(self) -> None:
        return


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_both_are_asked_at_once_and_waited_for() -> None:
    gpus, kubelet = FakeGpus(hold=asyncio.Event()), FakeAllocations()
    source: GpuInventorySource = NodeSource(gpus, kubelet)
    reading_ = asyncio.create_task(source.read())
    await settle()
    assert (gpus.begun, kubelet.begun) == (1, 1)
    assert gpus.hold is not None
    gpus.hold.set()
    await settle()
    assert not reading_.done()
    kubelet.hold.set()
    found = await reading_
    assert found.allocations == HELD
    assert found.inventory == gpus.answer.inventory


async def test_a_driver_that_was_exchanged_ends_both() -> None:
    kubelet = FakeAllocations()
    source = NodeSource(
        FakeGpus(fault=DriverReloadedError(Failed("nvmlInitWithFlags", "LIB_RM_VERSION_MISMATCH"))),
        kubelet,
    )
    with pytest.raises(DriverReloadedError):
        await source.read()
    await settle()
    assert kubelet.begun == kubelet.cancelled


async def test_whoever_stops_waiting_stops_both() -> None:
    kubelet = FakeAllocations()
    reading_ = asyncio.create_task(NodeSource(FakeGpus(), kubelet).read())
    await settle()
    reading_.cancel()
    await settle()
    assert (kubelet.begun, kubelet.cancelled) == (1, 1)


async def test_kubelet_may_be_left_alone() -> None:
    gpus, nobody = FakeGpus(), NoAllocations()
    assert (await NodeSource(gpus, nobody).read()).allocations is NOT_ASKED
    await nobody.aclose()
