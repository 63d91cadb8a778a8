import asyncio

from agent.session.readings import SharedReadings
from gpuwarden.clock import SystemClock
from tests.builders.attesting import reading
from tests.fakes.agent_ports import FakeGpus, RecordingRecorder


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_asks_during_a_reading_gets_the_next_one() -> None:
    gpus, recorder = FakeGpus(hold=asyncio.Event()), RecordingRecorder()
    readings = SharedReadings(gpus, SystemClock(), recorder)
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
    assert len(recorder.of("reading_done")) == 2
    serving.cancel()


async def test_nothing_is_read_for_those_who_have_gone() -> None:
    gpus = FakeGpus()
    readings = SharedReadings(gpus, SystemClock(), RecordingRecorder())
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
    readings = SharedReadings(gpus, SystemClock(), RecordingRecorder())
    asking = [asyncio.create_task(readings.read()) for _ in range(2)]
    await settle()
    serving = asyncio.create_task(readings.run())
    await settle()
    asking[0].cancel()
    assert gpus.hold is not None
    gpus.hold.set()
    assert await asking[1] == gpus.answer
    serving.cancel()
