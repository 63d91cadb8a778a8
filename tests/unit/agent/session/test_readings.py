"""GPUs and allocations in one reading, and readings that are shared."""

import asyncio
from dataclasses import dataclass, field

import pytest

from agent.attester import GpuInventorySource
from agent.claims.allocations import NOT_ASKED, AllocationReading
from agent.gpu.facts import DriverReloadedError, Failed
from agent.session.readings import NoAllocations, NodeSource, SharedReadings
from gpuwarden.clock import SystemClock
from gpuwarden.evidence.model import Allocation
from tests.builders.attesting import reading
from tests.fakes.agent_ports import FakeGpus, RecordingRecorder

# --- node source


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


# --- readings


async def test_who_asks_during_a_reading_gets_the_next_one() -> None:
    gpus, recorder = FakeGpus(hold=asyncio.Event()), RecordingRecorder()
    readings = SharedReadings(gpus, SystemClock(), recorder.record_reading)
    serving = asyncio.create_task(readings.run())
    first = asyncio.create_task(readings.read())
    await settle()
    assert gpus.begun == 1
    late = [asyncio.create_task(readings.read()) for _ in range(3)]
    await settle()
    assert gpus.begun == 1
    old, gpus.answer = gpus.answer, reading(2)
    assert gpus.hold is not None
    gpus.hold.set()
    assert (await first).inventory == gpus.answer.inventory
    assert [await task for task in late] == [gpus.answer] * 3
    assert gpus.begun == 2
    assert old != gpus.answer
    assert len(recorder.of("record_reading")) == 2
    serving.cancel()


async def test_nothing_is_read_for_those_who_have_gone() -> None:
    gpus = FakeGpus()
    readings = SharedReadings(gpus, SystemClock(), RecordingRecorder().record_reading)
    asking = asyncio.create_task(readings.read())
    await settle()
    asking.cancel()
    await settle()
    serving = asyncio.create_task(readings.run())
    await settle()
    assert gpus.begun == 0
    assert await readings.read() == gpus.answer
    serving.cancel()


async def test_one_of_several_may_go() -> None:
    gpus = FakeGpus(hold=asyncio.Event())
    readings = SharedReadings(gpus, SystemClock(), RecordingRecorder().record_reading)
    asking = [asyncio.create_task(readings.read()) for _ in range(2)]
    await settle()
    serving = asyncio.create_task(readings.run())
    await settle()
    asking[0].cancel()
    assert gpus.hold is not None
    gpus.hold.set()
    assert await asking[1] == gpus.answer
    serving.cancel()
