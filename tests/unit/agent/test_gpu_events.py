import pytest

from agent.gpu.events import UNAVAILABLE_EVENT, XID_EVENT, Happening, failure_notice
from agent.gpu.reading import EventKind


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 68, 109])
def test_an_applications_fault_is_no_bad_news(xid: int) -> None:
    assert failure_notice(Happening("GPU-1", XID_EVENT, xid)) is None


@pytest.mark.parametrize("xid", [1, 48, 62, 63, 64, 74, 94, 95, 119, 120, 140, 999])
def test_every_other_xid_is(xid: int) -> None:
    news = failure_notice(Happening("GPU-1", XID_EVENT, xid))
    assert news
    assert (news.kind, news.gpu, news.xid) == (EventKind.XID, "GPU-1", xid)


def test_off_the_bus_and_unavailable_are_lost() -> None:
    for happening in (Happening("GPU-1", XID_EVENT, 79), Happening("GPU-1", UNAVAILABLE_EVENT, 0)):
        news = failure_notice(happening)
        assert news
        assert (news.kind, news.gpu) == (EventKind.GPU_LOST, "GPU-1")


def test_unavailable_with_a_number_of_an_application_xid_is_lost_all_the_same() -> None:
    assert failure_notice(Happening("GPU-1", UNAVAILABLE_EVENT, 13))
