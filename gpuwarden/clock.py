"""The two clocks of the product, as a Protocol and as the real thing.

Trust is decided on CLOCK_BOOTTIME only: it counts through a suspend, where
CLOCK_MONOTONIC stops and would revive leases, and no clock step moves it.
Wall time is recorded and compared, never believed.
"""

import time
from typing import Protocol

from gpuwarden.moment import Moment


class Clock(Protocol):
    """Reads time for a shell; pure code takes `now` as an argument instead."""

    def boottime_ns(self) -> int:
        """Nanoseconds since boot, suspends included (CLOCK_BOOTTIME)."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch (CLOCK_REALTIME)."""


def moment_of(clock: Clock) -> Moment:
    """Both clocks now."""
    return Moment(clock.boottime_ns(), clock.wall_ns())


class SystemClock:
    """This machine's clocks."""

    def boottime_ns(self) -> int:
        """Nanoseconds since boot, suspends included (CLOCK_BOOTTIME)."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch (CLOCK_REALTIME)."""
        return time.time_ns()
