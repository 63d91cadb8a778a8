import asyncio
import threading
from dataclasses import dataclass, field

import pytest

from agent.detached import detached
from agent.state import AgentState, StateNotKeptError, StateWriter

STATE = AgentState(instance_id="a", boot_id="b", logs=(), log_alarms=(), gpus=())


@dataclass
class FakeStore:
    kept: list[AgentState] = field(default_factory=list)
    fault: Exception | None = None
    hang: threading.Event | None = None

    def keep(self, state: AgentState) -> None:
        if self.hang is not None:
            self.hang.wait(5)
        if self.fault is not None:
            raise self.fault
        self.kept.append(state)


async def until(holds: object) -> None:
    async with asyncio.timeout(5):
        while not (callable(holds) and holds()):  # noqa: ASYNC110 -- filled by a thread
            await asyncio.sleep(0.002)


async def test_changes_are_kept_and_failures_told() -> None:
    store, told = FakeStore(), list[str]()
    writer = StateWriter(store, lambda: STATE, failed=told.append, write_s=0.05)
    task = asyncio.create_task(writer.run())
    writer.changed()
    await until(lambda: store.kept == [STATE])
    store.fault = StateNotKeptError("Read-only file system")
    writer.changed()
    await until(lambda: told == ["Read-only file system"])
    store.hang = threading.Event()
    writer.changed()
    await until(lambda: len(told) == 2)
    assert told[1] == "the disk did not answer within 0.05 s"
    store.hang.set()
    task.cancel()


async def test_a_detached_call_gives_its_result_or_error() -> None:
    assert await detached(lambda: 7, deadline_s=5, name="t") == 7

    def fail() -> int:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await detached(fail, deadline_s=5, name="t")


def test_a_detached_call_may_outlive_its_loop() -> None:
    go_on, done = threading.Event(), threading.Event()

    def late() -> None:
        go_on.wait(5)
        done.set()

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            await detached(late, deadline_s=0.01, name="late")

    asyncio.run(ask())
    go_on.set()
    assert done.wait(5)
