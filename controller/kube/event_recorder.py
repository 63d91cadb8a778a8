"""Writes Kubernetes Events, beside everything else and after it: best effort, never waited for.

Every replica sees the same evidence, so only the one that leads writes; what others
were told they forget.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NoReturn

from controller.kube.client import ApiClient
from controller.kube.events import EventSeries, Notice, Writing
from controller.kube.resources import EVENTS, GROUP, ApiError
from gpuwarden.clock import Clock
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

CONTROLLER: Final = f"{GROUP}/controller"
LOOK_SECONDS: Final = 1.0


class EventRecorder:
    """One per process; used from one event loop."""

    def __init__(
        self,
        api: ApiClient,
        *,
        reporter: str,
        clock: Clock,
        instruments: Instruments,
        leads: Callable[[], bool],
        draw_name: Callable[[], str],
    ) -> None:
        self._api = api
        self._clock = clock
        self._leads = leads
        self._draw_name = draw_name
        """Another one each time: what makes an Event's name its own."""
        self._series = EventSeries(CONTROLLER, reporter)
        self._count = instruments.counter(names.KUBE_EVENTS)
        self._log = logger("kube")
        self._told = False

    def say(self, notices: Iterable[Notice]) -> None:
        """Remember what is to be said; returns at once."""
        if not self._leads():
            return
        now_ns, wall_ns = self._clock.boottime_ns(), self._clock.wall_ns()
        for notice in notices:
            result = self._series.add(notice, self._draw_name(), now_ns, wall_ns)
            self._count.labels(result).inc()

    async def follow(self, seconds: float = LOOK_SECONDS) -> NoReturn:
        """Write what is due, for ever; ends by cancellation only."""
        while True:
            await asyncio.sleep(seconds)
            await self.look()

    async def look(self) -> None:
        """Write what is due now; one failure is enough for a while."""
        if not self._leads():
            self._series.clear()
            return
        while (writing := self._series.next_writing(self._clock.boottime_ns())) is not None:
            try:
                await self._write(writing)
            except ApiError as error:
                self._failed(writing, error)
                return
            self._series.wrote(writing.key, self._clock.boottime_ns())
            self._count.labels("written").inc()
            self._told = False

    async def _write(self, writing: Writing) -> None:
        if writing.is_new:
            await self._api.create(EVENTS, writing.body, writing.namespace)
        else:
            await self._api.patch(EVENTS, writing.name, writing.body, writing.namespace)

    def _failed(self, writing: Writing, error: ApiError) -> None:
        if self._series.failed(writing.key, is_gone=error.is_not_found and not writing.is_new):
            self._count.labels("failed").inc()
        if not self._told:
            self._log.warning(Event.KUBE_EVENT_FAILED, reason=str(error))
        self._told = True
