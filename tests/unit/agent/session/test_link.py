from dataclasses import replace

import pytest

from agent.session.link import (
    Accepted,
    Action,
    Arrived,
    Close,
    Due,
    Ended,
    Event,
    Halt,
    Identity,
    IdentityChanged,
    Link,
    LinkTiming,
    Open,
    Superseded,
    backoff_s,
    step,
)
from agent.session.machine import EndReason

S = 1_000_000_000
HOUR = 3600 * S
TIMING = LinkTiming()


def identity(generation: int = 1, ends_ns: int = HOUR) -> Identity:
    return Identity(generation, ends_ns, HOUR)


class Driver:
    """Feeds events at a time that the test moves."""

    def __init__(self, timing: LinkTiming = TIMING) -> None:
        self.link = Link(timing)
        self.now_ns = 0
        self.jitter = 0.5

    def feed(self, event: Event) -> tuple[Action, ...]:
        self.link, actions = step(self.link, event, self.now_ns, self.jitter)
        return actions

    def wait(self) -> tuple[Action, ...]:
        deadline_ns = self.link.deadline_ns
        assert deadline_ns is not None
        self.now_ns = max(self.now_ns, deadline_ns)
        return self.feed(Due())

    def accepted(self, generation: int = 1) -> None:
        self.feed(IdentityChanged(identity(generation)))
        assert self.wait() == (Open(1, generation),)
        assert self.feed(Arrived(1)) == ()
        assert self.feed(Accepted(1)) == ()


def test_nothing_is_opened_without_an_svid() -> None:
    driver = Driver()
    assert driver.feed(IdentityChanged(None)) == ()
    assert driver.link.deadline_ns is None
    assert driver.feed(Due()) == ()


def test_the_first_svid_opens_at_once() -> None:
    driver = Driver()
    driver.feed(IdentityChanged(identity()))
    assert driver.link.deadline_ns == 0
    assert driver.wait() == (Open(1, 1),)


def test_rotation_makes_before_it_breaks() -> None:
    driver = Driver()
    driver.accepted()
    assert driver.feed(IdentityChanged(identity(2))) == ()
    assert driver.wait() == (Open(2, 2),)
    assert driver.feed(Accepted(1)) == ()
    assert driver.feed(Accepted(2)) == (Close(1, "its successor was accepted"),)
    assert driver.feed(Ended(1, EndReason.STOPPED)) == ()
    assert driver.link.current is not None
    assert (driver.link.current.stream, driver.link.successor) == (2, None)


def test_rotation_is_spread_but_never_past_the_margin() -> None:
    driver = Driver()
    driver.accepted()
    driver.jitter = 0.999
    driver.feed(IdentityChanged(identity(2)))
    assert driver.link.deadline_ns is not None
    assert 9 * S < driver.link.deadline_ns < 10 * S
    short = Driver()
    short.feed(IdentityChanged(Identity(1, 8 * S, 8 * S)))
    short.wait()
    short.feed(Arrived(1))
    short.now_ns, short.jitter = 5 * S, 0.999
    short.feed(IdentityChanged(Identity(2, 16 * S, 8 * S)))
    assert short.link.open_ns is not None
    assert short.link.open_ns - 5 * S < S * 3 // 8
    short.now_ns = 7 * S
    short.link = replace(short.link, open_ns=None)
    short.feed(IdentityChanged(Identity(3, 16 * S, 8 * S)))
    assert short.link.open_ns == 7 * S


def test_an_svid_whose_authority_left_the_bundle_is_replaced_at_once() -> None:
    """The controller would refuse the next evidence under it."""
    driver = Driver()
    driver.jitter = 0.999
    old = Identity(1, HOUR, HOUR, b"old", frozenset({b"old"}))
    driver.feed(IdentityChanged(old))
    driver.wait()
    driver.feed(Arrived(1))
    driver.feed(Accepted(1))
    driver.now_ns = S
    driver.feed(IdentityChanged(Identity(2, HOUR, HOUR, b"new", frozenset({b"old", b"new"}))))
    assert driver.link.deadline_ns is not None
    assert driver.link.deadline_ns > 9 * S  # still trusted: with the rest of the fleet
    driver.feed(IdentityChanged(Identity(3, HOUR, HOUR, b"new", frozenset({b"new"}))))
    assert driver.link.deadline_ns == S
    assert driver.wait() == (Open(2, 3),)


def test_an_authority_that_no_certificate_names_is_no_reason_to_hurry() -> None:
    driver = Driver()
    driver.accepted()
    driver.jitter = 0.999
    driver.feed(IdentityChanged(Identity(2, HOUR, HOUR, b"new", frozenset({b"new"}))))
    assert driver.link.deadline_ns is not None
    assert driver.link.deadline_ns > 9 * S


def test_the_same_svid_again_changes_nothing() -> None:
    driver = Driver()
    driver.accepted()
    before = driver.link
    assert driver.feed(IdentityChanged(identity())) == ()
    assert driver.link == before


def test_a_successor_with_an_outdated_svid_is_replaced() -> None:
    driver = Driver()
    driver.accepted()
    driver.feed(IdentityChanged(identity(2)))
    assert driver.wait() == (Open(2, 2),)
    assert driver.feed(Arrived(2)) == ()
    assert driver.feed(IdentityChanged(identity(3))) == (Close(2, "its SVID was replaced"),)
    assert driver.feed(Ended(2, EndReason.STOPPED)) == ()
    assert driver.wait() == (Open(3, 3),)
    assert driver.feed(Accepted(3)) == (Close(1, "its successor was accepted"),)


def test_renewal_comes_before_the_controller_ends_the_stream() -> None:
    for jitter, expected in ((0.0, 27 * 60), (0.5, 28 * 60), (0.999, 29 * 60)):
        driver = Driver()
        driver.jitter = jitter
        driver.accepted()
        assert driver.link.deadline_ns is not None
        assert abs(driver.link.deadline_ns - expected * S) < S
    driver = Driver()
    driver.accepted()
    assert driver.wait() == (Open(2, 1),)
    assert driver.feed(Accepted(2)) == (Close(1, "its successor was accepted"),)


def test_a_renewal_that_fails_is_tried_again_and_the_old_stream_stays() -> None:
    driver = Driver()
    driver.accepted()
    assert driver.wait() == (Open(2, 1),)
    assert driver.feed(Ended(2, EndReason.PEER)) == ()
    assert driver.link.current is not None
    assert driver.link.current.stream == 1
    assert driver.wait() == (Open(3, 1),)


def test_a_due_that_comes_too_early_does_nothing() -> None:
    driver = Driver()
    driver.accepted()
    before = driver.link
    assert driver.feed(Due()) == ()
    assert driver.link == before


def test_the_old_stream_may_end_while_its_successor_is_on_its_way() -> None:
    driver = Driver()
    driver.accepted()
    driver.feed(IdentityChanged(identity(2)))
    driver.wait()
    assert driver.feed(Ended(1, EndReason.PEER)) == ()
    assert driver.link.open_ns is None
    assert driver.feed(Accepted(2)) == ()
    assert driver.link.current is not None
    assert driver.link.current.accepted


def test_backoff_grows_is_capped_and_is_reset_by_acceptance() -> None:
    driver = Driver()
    driver.jitter = 0.999
    driver.feed(IdentityChanged(identity()))
    waits = []
    for number in range(1, 9):
        assert driver.wait() == (Open(number, 1),)
        driver.feed(Ended(number, EndReason.PEER))
        assert driver.link.open_ns is not None
        waits.append(round((driver.link.open_ns - driver.now_ns) / S))
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    driver.wait()
    driver.feed(Accepted(9))
    driver.feed(Ended(9, EndReason.PEER))
    assert driver.link.open_ns is not None
    assert driver.link.open_ns - driver.now_ns < S


def test_a_new_svid_does_not_cut_a_backoff_short() -> None:
    driver = Driver()
    driver.feed(IdentityChanged(identity()))
    driver.wait()
    driver.feed(Ended(1, EndReason.UNPROVEN))
    before = driver.link.open_ns
    driver.feed(IdentityChanged(identity(2)))
    assert driver.link.open_ns == before
    assert driver.wait() == (Open(2, 2),)


def test_without_an_svid_a_backoff_waits_for_the_next_one() -> None:
    driver = Driver()
    driver.accepted()
    driver.feed(IdentityChanged(None))
    driver.feed(Ended(1, EndReason.PEER))
    assert driver.link.deadline_ns is None
    driver.feed(IdentityChanged(identity(2)))
    assert driver.wait() == (Open(2, 2),)


@pytest.mark.parametrize("successor", [False, True])
def test_superseded_renews_nothing(successor: bool) -> None:
    driver = Driver()
    driver.accepted()
    if successor:
        driver.feed(IdentityChanged(identity(2)))
        driver.wait()
        actions = driver.feed(Ended(2, EndReason.SUPERSEDED))
        assert actions == (Close(1, "another instance took over"), Superseded())
    else:
        assert driver.feed(Ended(1, EndReason.SUPERSEDED)) == (Superseded(),)
    assert driver.link.halted
    assert driver.link.deadline_ns is None
    for event in (IdentityChanged(identity(3)), Due(), Accepted(1)):
        assert driver.feed(event) == ()


def test_being_superseded_by_our_own_successor_is_a_plain_end() -> None:
    driver = Driver()
    driver.accepted()
    driver.feed(IdentityChanged(identity(2)))
    driver.wait()
    assert driver.feed(Ended(1, EndReason.SUPERSEDED)) == ()
    assert not driver.link.halted
    assert driver.feed(Accepted(2)) == ()


def test_an_svid_that_comes_while_a_stream_is_on_its_way_waits_until_it_has_arrived() -> None:
    """The controller takes the stream that comes last for the newest."""
    driver = Driver()
    driver.feed(IdentityChanged(identity()))
    assert driver.wait() == (Open(1, 1),)
    assert driver.feed(IdentityChanged(identity(2))) == ()
    assert driver.link.deadline_ns is None
    assert driver.feed(Arrived(1)) == ()
    assert driver.wait() == (Open(2, 2),)
    assert driver.feed(IdentityChanged(identity(3))) == ()
    assert driver.link.deadline_ns is None
    assert driver.feed(Arrived(2)) == (Close(2, "its SVID was replaced"),)
    assert driver.wait() == (Open(3, 3),)
    assert driver.feed(Arrived(3)) == ()
    assert driver.feed(Accepted(3)) == (Close(1, "its successor was accepted"),)


def test_a_stream_that_never_arrives_is_followed_by_one_with_the_newest_svid() -> None:
    driver = Driver()
    driver.feed(IdentityChanged(identity()))
    driver.wait()
    driver.feed(IdentityChanged(identity(2)))
    assert driver.feed(Ended(1, EndReason.SILENT)) == ()
    assert driver.wait() == (Open(2, 2),)


def test_one_that_arrives_without_an_svid_opens_nothing() -> None:
    driver = Driver()
    driver.feed(IdentityChanged(identity()))
    driver.wait()
    driver.feed(IdentityChanged(None))
    assert driver.feed(Arrived(1)) == ()
    assert driver.link.open_ns is None


@pytest.mark.parametrize("first", [1, 2])
def test_another_instance_supersedes_both_streams(first: int) -> None:
    driver = Driver()
    driver.accepted()
    driver.feed(IdentityChanged(identity(2)))
    assert driver.wait() == (Open(2, 2),)
    assert driver.feed(Ended(first, EndReason.SUPERSEDED))[-1:] == (
        () if first == 1 else (Superseded(),)
    )
    assert driver.feed(Ended(3 - first, EndReason.SUPERSEDED)) == (
        (Superseded(),) if first == 1 else ()
    )
    assert driver.link.halted


def test_halt_closes_everything() -> None:
    driver = Driver()
    driver.accepted()
    driver.feed(IdentityChanged(identity(2)))
    driver.wait()
    assert driver.feed(Halt()) == (Close(1, "this agent stops"), Close(2, "this agent stops"))
    assert driver.feed(Halt()) == ()


def test_streams_that_are_not_ours_any_more_are_ignored() -> None:
    driver = Driver()
    driver.accepted()
    before = driver.link
    assert driver.feed(Arrived(7)) == ()
    assert driver.feed(Accepted(7)) == ()
    assert driver.feed(Ended(7, EndReason.SUPERSEDED)) == ()
    assert driver.link == before


def test_backoff_never_overflows() -> None:
    assert backoff_s(10**9, TIMING, 0.999) < TIMING.backoff_cap_s
