"""Which events take trust away, and how the thread waits for them."""

import queue

import pytest

from agent.gpu.events import UNAVAILABLE_EVENT, XID_EVENT, EventPump, Happening, failure_notice
from agent.gpu.nvml import Nvml
from agent.gpu.reading import EventKind
from agent.gpu.worker import CallWatch, Deadlines
from tests.hang import HANG_S

# --- gpu events


@pytest.mark.parametrize("xid", [1, 13, 31, 48, 62, 63, 64, 74, 94, 95, 119, 120, 140, 999])
def test_every_xid_is_reported(xid: int) -> None:
    """Also an application's own: what follows from it is the controller's policy."""
    news = failure_notice(Happening("GPU-1", XID_EVENT, xid))
    assert (news.kind, news.gpu, news.xid) == (EventKind.XID, "GPU-1", xid)


def test_off_the_bus_and_unavailable_are_lost() -> None:
    for happening in (Happening("GPU-1", XID_EVENT, 79), Happening("GPU-1", UNAVAILABLE_EVENT, 0)):
        news = failure_notice(happening)
        assert (news.kind, news.gpu) == (EventKind.GPU_LOST, "GPU-1")


def test_unavailable_with_a_number_of_an_application_xid_is_lost_all_the_same() -> None:
    news = failure_notice(Happening("GPU-1", UNAVAILABLE_EVENT, 13))
    assert (news.kind, news.xid) == (EventKind.GPU_LOST, None)


# --- event waits


class Waits:
    """An EventSet in which nothing happens; each wait is noted, and ends when the test says."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.go_on: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wait(self, _nvml: Nvml, milliseconds: int) -> None:
        self.asked.put(milliseconds)
        self.go_on.get(timeout=HANG_S)


@pytest.mark.parametrize(("expected", "milliseconds"), [(True, 100), (False, 1000)])
def test_where_each_reading_begins_a_session_none_waits_long_for_it(
    *, expected: bool, milliseconds: int
) -> None:
    pump = EventPump(CallWatch(), Deadlines(), lambda _: None)
    waits = Waits()
    pump.expect_pauses(expected=not expected)
    pump.install(waits)  # type: ignore[arg-type] # in the place of an EventSet
    try:
        waits.asked.get(timeout=HANG_S)
        pump.expect_pauses(expected=expected)
        waits.go_on.put(None)
        assert waits.asked.get(timeout=HANG_S) == milliseconds
    finally:
        pump.close()
        waits.go_on.put(None)
