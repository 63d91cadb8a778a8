"""Points in time: a reading of both clocks, nanoseconds in other units, dates and their texts.

Pure: it reads no clock. `gpuwarden.clock` does.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_DIGITS: Final = 9
"""Of a second, in nanoseconds."""
_UP_TO_SECONDS: Final = len("1970-01-01T00:00:00")


@dataclass(frozen=True, slots=True)
class Moment:
    """One reading of both clocks."""

    boottime_ns: int
    """Nanoseconds since boot (CLOCK_BOOTTIME): decides trust."""
    wall_ns: int
    """Nanoseconds since the Unix epoch: dates of certificates, and what is recorded."""

    @property
    def wall(self) -> datetime:
        """The wall clock as a date in UTC."""
        return utc(self.wall_ns)

    @property
    def wall_ms(self) -> int:
        """Whole milliseconds since the Unix epoch."""
        return self.wall_ns // NS_PER_MS

    def boottime_of(self, unix_seconds: int) -> int:
        """CLOCK_BOOTTIME at a date, in nanoseconds; negative for a date before boot."""
        return self.boottime_ns + unix_seconds * NS_PER_S - self.wall_ns


def utc(wall_ns: int) -> datetime:
    """The date in UTC, cut to microseconds."""
    return _EPOCH + timedelta(microseconds=wall_ns // NS_PER_US)


def wall_ns(date: datetime) -> int:
    """Nanoseconds since the Unix epoch at a date that has a time zone."""
    return (date - _EPOCH) // _MICROSECOND * NS_PER_US


def rfc3339(wall_ns: int, digits: int = 3) -> str:
    """The date in UTC as RFC 3339 with so many digits of a second (0 to 9), cut, not rounded."""
    seconds, rest = divmod(wall_ns, NS_PER_S)
    fraction = f".{rest:0{_DIGITS}d}"[: digits + 1] if digits else ""
    date = (_EPOCH + timedelta(seconds=seconds)).isoformat()  # faster than strftime
    return f"{date[:_UP_TO_SECONDS]}{fraction}Z"
