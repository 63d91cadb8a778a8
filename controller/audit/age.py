"""How long a log has been open, over all processes that wrote it: what "old" means for its files.

A wall clock that jumps ahead would make everything old at once, and what is deleted does not come
back when the clock does. Age counts CLOCK_BOOTTIME while the log is open, and each process goes on
from what the records state. It never counts too much: time in which no controller ran is left out.
"""

from typing import Final

from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S

REF: Final = "age"
"""In `refs` of `log.start`, `log.rotate`, `log.stop` and `checkpoint`: the age in seconds."""


class LogAge:
    """One for an audit log; `seconds` from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun: tuple[int, int] | None = None

    def begin(self, seconds: int) -> None:
        """The log is open, and was that old before."""
        self._begun = seconds, self._clock.boottime_ns()

    def seconds(self) -> int | None:
        """The age now; None before the log is open."""
        if self._begun is None:
            return None
        seconds, since = self._begun
        return seconds + (self._clock.boottime_ns() - since) // NS_PER_S


def stated_age(refs: dict[str, object]) -> int | None:
    """The age that a record states."""
    age = refs.get(REF)
    return age if type(age) is int and age >= 0 else None
