"""What time alone brings about: leases that end, readiness, the clock's honesty.

Decides none of it: the registry, the conditions and the clock's anchor do.
"""

import asyncio
from typing import NoReturn

from controller.composition.parts import Parts
from controller.listeners import Listeners
from controller.trust_journal import CONTROLLER
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import EventLogger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event


class Ticks:
    """One for the process; `follow` once."""

    def __init__(
        self, parts: Parts, listeners: Listeners, instruments: Instruments, log: EventLogger
    ) -> None:
        self._parts = parts
        self._listeners = listeners
        self._instruments = instruments
        self._log = log

    async def follow(self, seconds: float) -> NoReturn:
        """Look around every so many seconds; ends by cancellation only."""
        ready = False
        while True:
            await asyncio.sleep(seconds)
            parts = self._parts
            changes = parts.registry.tick(parts.clock.boottime_ns())
            parts.journal.changed(changes, CONTROLLER)
            self._look_at_clock()
            if ready is not parts.conditions.readiness().ready:
                ready = not ready
                await self._listeners.set_serving(ready=ready)

    def _look_at_clock(self) -> None:
        state, clock = self._parts.conditions.state, self._parts.clock
        boottime_ns, wall_ns = clock.boottime_ns(), clock.wall_ns()
        suspect = state.anchor.suspect(boottime_ns, wall_ns)
        if suspect is not state.clock_suspect:
            state.clock_suspect = suspect
            offset_ms = state.anchor.offset_ns(boottime_ns, wall_ns) // 1_000_000
            self._log.error(Event.CLOCK_SUSPECT, suspect=suspect, offset_ms=offset_ms)
        self._instruments.gauge(names.CLOCK_SUSPECT).set(suspect)
