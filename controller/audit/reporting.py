"""What the log says about itself: metrics, log events, and the copies on standard output."""

from collections.abc import Callable, Sequence

from controller.audit.copies import Copies
from controller.audit.sealing import SealedLine
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

COPIES_CLOSE_SECONDS = 1.0


class Reporting:
    """Implements the writer's `Observer`."""

    def __init__(
        self,
        instruments: Instruments,
        copies: Callable[[Callable[[int], None]], Copies] | None,
        also_close: Callable[[float], None] = lambda _timeout: None,
    ) -> None:
        self._also_close = also_close
        self._log = logger("audit")
        self._records = instruments.counter(names.AUDIT_RECORDS)
        self._lost = instruments.counter(names.AUDIT_LOST)
        self._copies_lost = instruments.counter(names.AUDIT_COPIES_LOST)
        self._seconds = instruments.histogram(names.AUDIT_COMMIT_SECONDS)
        self._available = instruments.gauge(names.AUDIT_AVAILABLE)
        self._sequence = instruments.gauge(names.AUDIT_SEQUENCE)
        self._copies = copies(self._copies_lost.inc) if copies else None
        self._low = False

    def committed(self, lines: Sequence[SealedLine], kinds: Sequence[str], seconds: float) -> None:
        """Count a durable group and copy it."""
        for kind in kinds:
            self._records.labels(kind).inc()
        self._seconds.observe(seconds)
        self._sequence.set(lines[-1].head.seq)
        if self._copies is not None:
            self._copies.put(b"".join(line.line + b"\n" for line in lines), len(lines))

    def lost(self, records: int) -> None:
        """Count records that could not be kept."""
        self._lost.inc(records)

    def state(self, down: str, *, low: bool) -> None:
        """Show the new state."""
        self._available.set(0 if down else 1)
        if down:
            self._log.error(Event.AUDIT_UNAVAILABLE, reason=down)
        elif low and not self._low:
            self._log.error(Event.AUDIT_LOW_SPACE)
        else:
            self._log.info(Event.AUDIT_AVAILABLE)
        self._low = low

    def close(self) -> None:
        """Write the copies that wait."""
        self._available.set(0)
        if self._copies is not None:
            self._copies.close(COPIES_CLOSE_SECONDS)
        self._also_close(COPIES_CLOSE_SECONDS)
