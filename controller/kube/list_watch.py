"""Keeps a reflection by talking to the API server for ever. The machine decides what comes next.

Each watch is short and ends with a bookmark, well within the time after which a copy counts
as stale. The server sends one only if its version has moved, which in a quiet collection it
does when somebody asks for the newest; so a copy that heard nothing asks. If there is
still no word at the end of the watch, everything is listed. A watch that neither says
anything nor ends is broken off.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, NoReturn, TypeVar

from controller.kube.client import ApiClient
from controller.kube.reflection import Change, Entry, Kind, Reflection, WantWatch
from controller.kube.resources import ApiError
from gpuwarden.clock import Clock
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

T = TypeVar("T")
Observe = Callable[[tuple[Change[T], ...], int | None], None]
"""Told what changed, and for a list when it was asked for; must return at once."""


_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a watch lasts on the server's side, what silence ends it, and how long to wait."""

    watch_s: int = 25
    """The API server sends a bookmark 2 s before the end."""
    ask_s: float = 10.0
    """Silence after which the newest version is asked for."""
    silence_s: float = 30.0
    pause_factor: float = 1.0
    """Tests wait less after a failure."""


DEFAULT_PACE: Final = Pace()


class ListWatch(Generic[T]):
    """Implements the IO of one collection; used from one event loop."""

    def __init__(
        self,
        api: ApiClient,
        kind: Kind[T],
        *,
        clock: Clock,
        instruments: Instruments,
        jitter: Callable[[], float],
        pace: Pace = DEFAULT_PACE,
        observe: Callable[[tuple[Change[T], ...], int | None], None] = lambda _changes, _asked: (
            None
        ),
    ) -> None:
        self.reflection: Reflection[T] = Reflection()
        self.synced = asyncio.Event()
        """Set once the first list is in."""
        self._api = api
        self._kind = kind
        self._clock = clock
        self._jitter = jitter
        self._pace = pace
        self._observe = observe
        self._resource = kind.resource.plural
        self._lists = instruments.counter(names.KUBE_LISTS)
        self._watches = instruments.counter(names.KUBE_WATCH_ENDS)
        self._log = logger("kube")
        self._told = ""

    async def follow(self) -> NoReturn:
        """Keep the copy; ends by cancellation only."""
        while True:
            try:
                wanted = self.reflection.wanted()
                if isinstance(wanted, WantWatch) and not self._is_old():
                    await self._watch(wanted.version)
                else:
                    await self._list()
            except ApiError as error:
                self.reflection.failed(error)
                self._watches.labels(self._resource, _end(error)).inc()
            self._tell()
            await asyncio.sleep(self.reflection.pause_s(self._jitter()) * self._pace.pause_factor)

    def _is_old(self) -> bool:
        """After an outage, or a watch without a word: only a list can prove anything now."""
        fresh_at_ns = self.reflection.fresh_at_ns or 0
        return self._clock.boottime_ns() - fresh_at_ns >= self._pace.watch_s * _NS

    async def _list(self) -> None:
        asked_ns = self._clock.boottime_ns()
        entries: dict[str, Entry[T]] = {}
        version = ""
        async for page in self._api.pages(self._kind.resource):
            entries.update(self._kind.entry(item) for item in page.items or ())
            version = page.metadata.resource_version
        changes = self.reflection.listed(entries, version, asked_ns)
        self._lists.labels(self._resource).inc()
        self._observe(changes, asked_ns)
        if self.reflection.fresh_at_ns is not None:
            self.synced.set()

    async def _watch(self, version: str) -> None:
        asking = asyncio.create_task(self._ask_in_silence())
        try:
            await self._hear(version)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        self._watches.labels(self._resource, "over").inc()

    async def _ask_in_silence(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._pace.ask_s)
            asked_ns = self._clock.boottime_ns()
            if asked_ns - (self.reflection.fresh_at_ns or 0) >= self._pace.ask_s * _NS:
                with contextlib.suppress(ApiError):
                    version = await self._api.version_now(self._kind.resource)
                    self.reflection.proven(version, asked_ns)

    async def _hear(self, version: str) -> None:
        async with self._api.watch(
            self._kind.resource,
            version,
            seconds=self._pace.watch_s,
            silence_s=self._pace.silence_s,
        ) as lines:
            async for line in lines:
                event = self._kind.event(line)
                changes = self.reflection.event(event, self._clock.boottime_ns())
                if changes:
                    self._observe(changes, None)
                if isinstance(self.reflection.wanted(), WantWatch):
                    continue
                break  # whoever observes wants a list

    def _tell(self) -> None:
        """Once per trouble."""
        trouble = self.reflection.trouble
        if trouble and not self._told:
            self._log.warning(Event.KUBE_CACHE_TROUBLE, resource=self._resource, reason=trouble)
        elif self._told and not trouble:
            self._log.info(
                Event.KUBE_CACHE_FRESH,
                resource=self._resource,
                objects=len(self.reflection.objects),
            )
        self._told = trouble


def _end(error: ApiError) -> str:
    if error.is_gone:
        return "gone"
    return "refused" if error.status else "broken"
