"""Whether this machine's wall clock can be believed: compared with a boot-time anchor.

Certificates are judged by wall time. A wall clock that has moved against
CLOCK_BOOTTIME since the start is suspect (CONTROLLER_CLOCK_SUSPECT): a warning and a
state, never a reason to revoke anybody. Pure; takes both times as arguments.
"""

from dataclasses import dataclass

_DRIFT = 1000
"""A clock that is being disciplined may drift by one part in this many."""


@dataclass(frozen=True, slots=True)
class ClockAnchor:
    """Both clocks at one moment, and the step that is still believed (nanoseconds)."""

    boottime_ns: int
    wall_ns: int
    tolerance_ns: int

    def offset_ns(self, boottime_ns: int, wall_ns: int) -> int:
        """How far the wall clock has moved against boot time since the anchor."""
        return (wall_ns - self.wall_ns) - (boottime_ns - self.boottime_ns)

    def suspect(self, boottime_ns: int, wall_ns: int) -> bool:
        """Whether that is more than tolerance and drift explain."""
        drift_ns = (boottime_ns - self.boottime_ns) // _DRIFT
        return abs(self.offset_ns(boottime_ns, wall_ns)) > self.tolerance_ns + drift_ns
