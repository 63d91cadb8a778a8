from datetime import UTC, datetime, timedelta, timezone

import pytest

from gpuwarden.moment import NS_PER_S, Moment, rfc3339, utc, wall_ns

NOON_NS = 1_772_366_400_123_456_789
NOON = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("digits", "text"),
    [
        (0, "2026-03-01T12:00:00Z"),
        (3, "2026-03-01T12:00:00.123Z"),
        (6, "2026-03-01T12:00:00.123456Z"),
        (9, "2026-03-01T12:00:00.123456789Z"),
    ],
)
def test_a_date_is_written_with_the_digits_that_are_wanted(digits: int, text: str) -> None:
    assert rfc3339(NOON_NS, digits) == text


def test_a_date_is_written_with_milliseconds_and_cut_not_rounded() -> None:
    assert rfc3339(999_999_999) == "1970-01-01T00:00:00.999Z"


def test_a_date_is_cut_to_microseconds_and_comes_back() -> None:
    assert utc(NOON_NS) == NOON
    assert wall_ns(NOON) == 1_772_366_400_123_456_000


def test_a_date_of_another_time_zone_is_the_same_point_in_time() -> None:
    assert wall_ns(NOON.astimezone(timezone(timedelta(hours=5)))) == wall_ns(NOON)


def test_a_moment_shows_its_wall_clock_in_other_units() -> None:
    moment = Moment(boottime_ns=0, wall_ns=NOON_NS)
    assert (moment.wall, moment.wall_ms) == (NOON, 1_772_366_400_123)


def test_dates_are_turned_into_boot_time() -> None:
    moment = Moment(boottime_ns=50 * NS_PER_S, wall_ns=1_000 * NS_PER_S)
    assert moment.boottime_of(1_060) == 110 * NS_PER_S
    assert moment.boottime_of(0) == -950 * NS_PER_S
