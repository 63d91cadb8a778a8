import asyncio

from controller.app import Supervisor
from tests.hang import HANG_S


async def test_a_task_that_fails_or_returns_is_a_fault() -> None:
    faults: list[tuple[str, BaseException | None]] = []
    done = asyncio.Event()

    def fault(name: str, error: BaseException | None) -> None:
        faults.append((name, error))
        if len(faults) == 2:
            done.set()

    async def fails() -> None:
        raise RuntimeError("bug")

    async def returns() -> None:
        return

    supervisor = Supervisor(fault)
    supervisor.watch("fails", fails())
    supervisor.watch("returns", returns())
    await asyncio.wait_for(done.wait(), HANG_S)
    by_name = dict(faults)
    assert isinstance(by_name["fails"], RuntimeError)
    assert by_name["returns"] is None
    await supervisor.stop()


async def test_stopping_is_no_fault_and_waits_for_the_tasks() -> None:
    faults: list[str] = []
    cleaned = asyncio.Event()

    async def serves() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    supervisor = Supervisor(lambda name, _error: faults.append(name))
    supervisor.watch("serves", serves())
    await asyncio.sleep(0)
    await supervisor.stop()
    assert cleaned.is_set()
    assert faults == []
