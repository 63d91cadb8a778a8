"""A clock that a test moves; both times start away from zero and from each other."""

from dataclasses import dataclass

from gpuwarden.clock import moment_of
from gpuwarden.moment import Moment


@dataclass
class FakeClock:
    boottime: int = 1_000 * 1_000_000_000
    wall: int = 1_800_000_000 * 1_000_000_000

    def boottime_ns(self) -> int:
        return self.boottime

    def wall_ns(self) -> int:
        return self.wall

    def now(self) -> Moment:
        return moment_of(self)

    def advance(self, seconds: float) -> None:
        step = int(seconds * 1_000_000_000)
        self.boottime += step
        self.wall += step
