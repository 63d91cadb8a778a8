"""The watchdog's decisions, over hours in microseconds."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.identity.watchdog import Limits, Step, Watchdog

LIMITS = Limits()
START = Watchdog(LIMITS)
BUILT = START.built(100.0, 225.0)


def test_the_timings_of_a_watch() -> None:
    assert (
        Limits(
            fetch_timeout=5.0,
            first_update_timeout=10.0,
            tick=5.0,
            probe_every=60.0,
            confirm_after=5.0,
            backoff_base=0.2,
            backoff_cap=5.0,
            overdue_retry=60.0,
            max_lifetime=timedelta(days=1),
        )
        == LIMITS
    )


def test_a_watch_begins_with_nothing() -> None:
    nothing = Watchdog(
        LIMITS,
        watching=False,
        failures=0,
        build_at=0.0,
        probe_at=0.0,
        denials=0,
        doubted=False,
    )
    assert nothing == START


def test_the_first_thing_to_do_is_to_build() -> None:
    assert START.step(0.0, overdue=True) is Step.BUILD
    assert START.wait_seconds(0.0, overdue=True) == 0.0


@pytest.mark.parametrize(
    ("now", "overdue", "step"),
    [
        (100.0, False, Step.WAIT),
        (159.9, False, Step.WAIT),
        (160.0, False, Step.PROBE),
        (100.0, True, Step.WAIT),
        (159.9, True, Step.WAIT),
        (160.0, True, Step.BUILD),
    ],
)
def test_a_fresh_watch_is_probed_each_minute_and_rebuilt_if_it_brought_nothing_new(
    now: float, overdue: bool, step: Step
) -> None:
    assert BUILT.step(now, overdue=overdue) is step


def test_a_short_lifetime_shortens_the_wait_for_a_rebuild() -> None:
    assert START.built(100.0, 2.0).step(102.0, overdue=True) is Step.BUILD


def test_a_dead_watch_is_noticed_within_one_tick() -> None:
    assert BUILT.wait_seconds(100.0, overdue=False) == LIMITS.tick
    assert BUILT.wait_seconds(158.0, overdue=False) == 2.0
    assert BUILT.wait_seconds(500.0, overdue=False) == 0.0


@pytest.mark.parametrize(
    ("failures", "ceiling"), [(0, 0.2), (1, 0.4), (4, 3.2), (5, 5.0), (1024, 5.0), (10**6, 5.0)]
)
def test_failures_back_off_with_full_jitter_up_to_the_cap(failures: int, ceiling: float) -> None:
    dog = Watchdog(LIMITS, failures=failures)
    assert dog.failed(10.0, 0.0).build_at == 10.0
    assert dog.failed(10.0, 0.5).build_at == pytest.approx(10.0 + ceiling / 2)
    assert dog.failed(10.0, 0.5).failures == failures + 1


def test_a_watch_that_was_built_forgets_failures() -> None:
    assert START.failed(0.0, 1.0).failed(1.0, 1.0).built(2.0, 60.0).failures == 0


def test_one_denial_is_asked_again_and_the_second_withdraws() -> None:
    once = BUILT.denied(160.0, 0.5)
    assert (once.watching, once.withdrawn) == (True, False)
    assert once.step(164.9, overdue=False) is Step.WAIT
    assert once.step(165.0, overdue=False) is Step.PROBE
    twice = once.denied(165.0, 0.5)
    assert (twice.watching, twice.withdrawn) == (False, True)
    assert twice.wait_seconds(165.0, overdue=True) == pytest.approx(0.1)


def test_a_denial_while_building_is_also_given_time_before_the_second_counts() -> None:
    once = START.denied(0.0, 0.0)
    assert not once.withdrawn
    assert once.step(4.9, overdue=True) is Step.WAIT
    assert once.step(5.0, overdue=True) is Step.BUILD


def test_an_answer_between_two_denials_starts_the_count_again() -> None:
    dog = BUILT.denied(160.0, 0.5).probed(165.0, behind=False).denied(225.0, 0.5)
    assert not dog.withdrawn


def test_a_watch_is_rebuilt_when_it_is_behind_twice_in_a_row() -> None:
    once = BUILT.probed(160.0, behind=True)
    assert (once.watching, once.doubted) == (True, True)
    assert once.step(165.0, overdue=False) is Step.PROBE
    twice = once.probed(165.0, behind=True)
    assert twice.step(165.0, overdue=False) is Step.BUILD
    assert once.probed(165.0, behind=False) == BUILT.probed(165.0, behind=False)


BUSY = Watchdog(
    LIMITS, watching=True, failures=3, build_at=1.0, probe_at=2.0, denials=1, doubted=True
)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (BUSY.built(10.0, 225.0), Watchdog(LIMITS, watching=True, build_at=70.0, probe_at=70.0)),
        (BUSY.ended(), replace(BUSY, watching=False)),
        (
            BUSY.failed(10.0, 0.5),
            replace(BUSY, watching=False, failures=4, doubted=False, build_at=10.8),
        ),
        (
            replace(BUSY, denials=0).denied(10.0, 0.5),
            replace(BUSY, denials=1, build_at=15.0, probe_at=15.0),
        ),
        (
            BUSY.denied(10.0, 0.5),
            replace(
                BUSY,
                watching=False,
                failures=4,
                denials=2,
                doubted=False,
                build_at=10.8,
                probe_at=15.0,
            ),
        ),
        (
            BUSY.probed(10.0, behind=False),
            replace(BUSY, denials=0, doubted=False, probe_at=70.0),
        ),
        (
            replace(BUSY, doubted=False).probed(10.0, behind=True),
            replace(BUSY, denials=0, doubted=True, probe_at=15.0),
        ),
        (
            BUSY.probed(10.0, behind=True),
            replace(BUSY, watching=False, denials=0, doubted=False, build_at=10.0),
        ),
    ],
    ids=["built", "ended", "failed", "denied", "denied again", "fine", "behind", "behind again"],
)
def test_an_event_changes_this_and_nothing_else(after: Watchdog, expected: Watchdog) -> None:
    assert after == expected


def test_what_is_waited_for_is_what_can_be_due() -> None:
    soon = START.built(100.0, 2.0)
    assert soon.wait_seconds(100.0, overdue=False) == 5.0
    assert soon.wait_seconds(100.0, overdue=True) == 2.0
    gone = replace(BUSY, watching=False, build_at=12.0, probe_at=0.0)
    assert gone.wait_seconds(10.0, overdue=False) == 2.0


EVENTS = st.sampled_from(["built", "failed", "denied", "behind", "fine", "ended"])


def happened(dog: Watchdog, event: str, now: float, jitter: float) -> Watchdog:
    match event:
        case "built":
            return dog.built(now, 900.0)
        case "failed":
            return dog.failed(now, jitter)
        case "denied":
            return dog.denied(now, jitter)
        case "ended":
            return dog.ended()
        case _:
            return dog.probed(now, behind=event == "behind")


@given(st.lists(st.tuples(EVENTS, st.floats(0, 1, exclude_max=True), st.booleans())))
@settings(max_examples=100)
def test_whatever_happens_something_is_done_again_within_a_minute(
    events: list[tuple[str, float, bool]],
) -> None:
    dog, now = START, 0.0
    for event, jitter, overdue in events:
        now += dog.wait_seconds(now, overdue=overdue) + 0.01
        dog = happened(dog, event, now, jitter)
        assert dog.step(now + 60.0, overdue=overdue) is not Step.WAIT
        assert 0.0 <= dog.wait_seconds(now, overdue=overdue) <= LIMITS.tick
