import asyncio
import threading

import pynvml
import pytest

from agent.gpu.facts import Failed
from agent.gpu.nvml import Nvml
from agent.gpu.worker import CallOverdueError, CallWatch, Deadlines, NvmlThread, PassAbandonedError
from tests.hang import HANG_S

BRIEF = Deadlines(call_s=0.05, pass_s=0.1)


def test_a_call_is_marked_while_it_runs() -> None:
    watch = CallWatch()
    with watch.calling("nvmlDeviceGetSerial"):
        record = watch.current
        assert record
        assert record.name == "nvmlDeviceGetSerial"
        assert watch.overdue(5.0, record.started + 5.0) is None
        assert watch.overdue(5.0, record.started + 5.1) is record
    assert watch.current is None


def test_an_abandoned_pass_starts_no_further_call() -> None:
    watch = CallWatch()
    watch.abandon()
    with pytest.raises(PassAbandonedError), watch.calling("never"):
        pass
    watch.renew()
    with watch.calling("again"):
        assert watch.current


async def idle(thread: NvmlThread) -> None:
    async with asyncio.timeout(HANG_S):
        busy = True
        while busy:
            await asyncio.sleep(0.001)
            busy = thread.busy


@pytest.fixture
def thread() -> NvmlThread:
    return NvmlThread(CallWatch(), BRIEF)


async def test_values_and_exceptions_come_back(thread: NvmlThread) -> None:
    assert await thread.run(lambda: threading.current_thread().name) == "nvml"
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    thread.close()


async def test_python_work_is_bounded_by_the_pass(thread: NvmlThread) -> None:
    release = threading.Event()
    with pytest.raises(CallOverdueError, match="pass over all GPUs has not returned"):
        await thread.run(release.wait)
    with pytest.raises(CallOverdueError):
        await thread.run(lambda: None)
    release.set()
    await idle(thread)
    assert await thread.run(lambda: 7) == 7
    thread.close()


async def test_a_pass_that_nobody_waits_for_is_ended_after_its_call() -> None:
    watch, inside, release, calls = CallWatch(), threading.Event(), threading.Event(), []
    thread = NvmlThread(watch, Deadlines(call_s=HANG_S, pass_s=HANG_S))

    def work() -> None:
        for name in ("first", "second"):
            with watch.calling(name):
                calls.append(name)
                inside.set()
                release.wait()

    waiting = asyncio.create_task(thread.run(work))
    await asyncio.to_thread(inside.wait)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    ending = asyncio.create_task(thread.finish())
    await asyncio.sleep(0)
    release.set()
    await ending
    assert await thread.run(lambda: calls) == ["first"]
    await thread.finish()
    thread.close()


async def test_a_pass_that_does_not_end_is_overdue(thread: NvmlThread) -> None:
    release = threading.Event()
    waiting = asyncio.create_task(thread.run(release.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    with pytest.raises(CallOverdueError):
        await thread.finish()
    release.set()
    await idle(thread)
    thread.close()


async def test_a_pass_that_was_given_up_makes_no_further_call() -> None:
    watch, release, calls = CallWatch(), threading.Event(), []
    thread = NvmlThread(watch, BRIEF)

    def work() -> None:
        for name in ("first", "second"):
            with watch.calling(name):
                calls.append(name)
                release.wait()

    with pytest.raises(CallOverdueError, match="first has not returned"):
        await thread.run(work)
    release.set()
    await idle(thread)
    assert calls == ["first"]
    thread.close()


async def test_a_failure_that_nobody_waits_for_is_dropped(thread: NvmlThread) -> None:
    release = threading.Event()

    def fail() -> None:
        release.wait()
        raise ValueError

    with pytest.raises(CallOverdueError):
        await thread.run(fail)
    release.set()
    await idle(thread)
    thread.close()


async def test_a_reader_that_is_cancelled_leaves_the_thread_usable(thread: NvmlThread) -> None:
    release = threading.Event()
    waiting = asyncio.create_task(thread.run(release.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    busy = thread.busy
    assert busy
    release.set()
    await idle(thread)
    assert await thread.run(lambda: 7) == 7
    thread.close()


def test_a_result_for_a_loop_that_is_gone_is_dropped() -> None:
    release, done = threading.Event(), threading.Event()
    thread = NvmlThread(CallWatch(), BRIEF)

    def work() -> None:
        release.wait()
        done.set()

    with pytest.raises(CallOverdueError):
        asyncio.run(thread.run(work))
    release.set()
    thread.close()
    assert done.wait(HANG_S)


def test_what_the_binding_does_not_know_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(CallWatch())
    for call in ("nvmlDeviceGetModuleId", "nvmlDeviceGetUUID"):
        monkeypatch.delattr(pynvml, call)
    assert nvml.ask("nvmlDeviceGetModuleId") is None
    assert nvml.ask("nvmlDeviceGetUUID") == Failed("nvmlDeviceGetUUID", "FUNCTION_NOT_FOUND")
    assert nvml.fill("nvmlDeviceGetUUID", None, "c_nvmlNoStruct_t", to=bool) is None
