"""How long the event thread waits at a time."""

import queue

import pytest

from agent.gpu.events import EventPump
from agent.gpu.nvml import Nvml
from agent.gpu.worker import CallWatch, Deadlines


class Waits:
    """An EventSet in which nothing happens; each wait is noted, and ends when the test says."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.go_on: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(self, _nvml: Nvml, milliseconds: int) -> None:
        self.asked.put(milliseconds)
        self.go_on.get(timeout=60)


@pytest.mark.parametrize(("expected", "milliseconds"), [(True, 100), (False, 1000)])
def test_where_each_reading_begins_a_session_none_waits_long_for_it(
    *, expected: bool, milliseconds: int
) -> None:
    pump = EventPump(CallWatch(), Deadlines(), lambda _: None, lambda _: None)
    waits = Waits()
    pump.expect_pauses(expected=not expected)
    pump.install(waits)  # type: ignore[arg-type] # in the place of an EventSet
    try:
        waits.asked.get(timeout=60)
        pump.expect_pauses(expected=expected)
        waits.go_on.put(None)
        assert waits.asked.get(timeout=60) == milliseconds
    finally:
        pump.close()
        waits.go_on.put(None)
