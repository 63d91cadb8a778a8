"""A logger for what other processes can cause: few lines per key, and the number of those left out.

Whoever can reach a port can make gpuwarden write a line per connection or message. So each key
(a listener and a cause, a node and a code) has a small budget of lines. A line that follows others
that were left out says how many. Metrics count everything; this bounds the log alone.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import EventLogger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

BURST: Final = 5
"""Lines of one key that are written at once."""
REFILL_S: Final = 30.0
"""Seconds after which a key may write one more."""
ALL_BURST: Final = 100
"""Lines of all keys together, so that invented keys are bounded too."""
ALL_REFILL_S: Final = 0.5
KEYS: Final = 1024
"""Keys that are remembered; the one that was quiet for longest is forgotten."""


class _Budget:
    """Lines that may be written now, and how many were not."""

    __slots__ = ("_at", "_burst", "_left", "_refill_s", "withheld")

    def __init__(self, burst: int, refill_s: float, now: float) -> None:
        self._burst = burst
        self._refill_s = refill_s
        self._left = float(burst)
        self._at = now
        self.withheld = 0

    def has_one(self, now: float) -> bool:
        self._left = min(self._burst, self._left + (now - self._at) / self._refill_s)
        self._at = now
        return self._left >= 1

    def take(self) -> None:
        self._left -= 1


class LimitedLog:
    """Writes through a logger of `logs.logger`; may be used from several threads."""

    def __init__(
        self,
        log: EventLogger,
        instruments: Instruments,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._withheld = instruments.counter(names.LOG_LINES_WITHHELD)
        self._monotonic = monotonic
        self._budgets: OrderedDict[Hashable, _Budget] = OrderedDict()
        self._all = _Budget(ALL_BURST, ALL_REFILL_S, monotonic())
        self._lock = threading.Lock()

    def info(self, event: Event, /, *, key: Hashable = (), **facts: object) -> None:
        """What happens as it should."""
        if (more := self._admit(event, key)) is not None:
            self._log.info(event, **facts, **more)

    def warning(self, event: Event, /, *, key: Hashable = (), **facts: object) -> None:
        """What somebody should know."""
        if (more := self._admit(event, key)) is not None:
            self._log.warning(event, **facts, **more)

    def error(self, event: Event, /, *, key: Hashable = (), **facts: object) -> None:
        """What somebody should act on."""
        if (more := self._admit(event, key)) is not None:
            self._log.error(event, **facts, **more)

    def _admit(self, event: Event, key: Hashable) -> dict[str, int] | None:
        """Facts to add to the line; None where it is left out."""
        now = self._monotonic()
        with self._lock:
            budget = self._budget((event, key), now)
            if not (budget.has_one(now) and self._all.has_one(now)):
                budget.withheld += 1
                self._withheld.labels(event.value).inc()
                return None
            budget.take()
            self._all.take()
            withheld, budget.withheld = budget.withheld, 0
        return {"withheld": withheld} if withheld else {}

    def _budget(self, key: Hashable, now: float) -> _Budget:
        budget = self._budgets.pop(key, None) or _Budget(BURST, REFILL_S, now)
        self._budgets[key] = budget
        while len(self._budgets) > KEYS:
            self._budgets.popitem(last=False)
        return budget
