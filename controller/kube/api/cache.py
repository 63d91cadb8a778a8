"""A cache of one collection of the Kubernetes API, kept by list and watch.

`Cache` is a pure state machine that says which request comes next; `ListWatch` makes the
requests. Neither must decide what the objects mean.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, NoReturn, TypeVar

from controller.fleet.sharded_map import ShardedMap
from controller.kube.api.client import ApiClient
from controller.kube.api.resources import ApiError, Entry, EventKind, Kind, WatchEvent
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
_WATCH_FAILURES: Final = 3
"""Watches that may fail in a row without an event, before a list is asked for instead."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What a step did to one object; an object made again under its name is two changes."""

    key: str
    old: Entry[T] | None
    new: Entry[T] | None


Observe = Callable[[tuple[Change[T], ...], int | None], None]
"""Gets what changed, and for a list when it was asked for; must return at once."""


@dataclass(frozen=True, slots=True)
class WantList:
    """Ask for everything."""


@dataclass(frozen=True, slots=True)
class WantWatch:
    """Ask for what happened after `version`."""

    version: str


class Cache(Generic[T]):
    """The objects of one collection; used from one event loop.

    The cache changes by whole lists and by events in order, so it always equals a state that
    the server once had. While a list is on its way the old objects stay, so nothing vanishes in
    between. resourceVersions are opaque: kept, compared for equality, handed back.
    """

    def __init__(self) -> None:
        self.objects: ShardedMap[Entry[T]] = ShardedMap()
        """By name, `namespace/name` where there are namespaces."""
        self.fresh_at_ns: int | None = None
        """CLOCK_BOOTTIME at which the cache was last known to equal the server; None before
        the first list.

        That is when an accepted list was asked for, when the watch last sent something, or
        when a read past the cache gave the cache's own version. A silent watch proves nothing:
        a watch from a version that the server does not have yet (its history went backwards)
        is silent too."""
        self.trouble = ""
        """Why the last step failed; empty while all is well."""
        self._version = ""
        self._wants_list = True
        self._failures = 0
        self._pause_at_least = 0.0

    def fresh_until_ns(self, stale_after_ns: int) -> int:
        """CLOCK_BOOTTIME from which the cache is too old; 0 before the first list."""
        return 0 if self.fresh_at_ns is None else self.fresh_at_ns + stale_after_ns

    def next_request(self) -> WantList | WantWatch:
        """The next step."""
        return WantList() if self._wants_list else WantWatch(self._version)

    def relist(self) -> None:
        """Make the next step a list, whatever a watch that still runs may send."""
        self._wants_list = True

    def take_list(
        self, entries: Mapping[str, Entry[T]], version: str, asked_ns: int
    ) -> tuple[Change[T], ...]:
        """Take the whole collection as it was at `version`, asked for at `asked_ns`."""
        if not version:
            self.record_failure(ApiError("a list without a resourceVersion"))
            return ()
        changes = _differences(self.objects, entries)
        if changes:
            kept = {k: _same(self.objects.get(k), x) for k, x in entries.items()}
            self.objects = ShardedMap(kept)
        self._version = version
        self._wants_list = False
        self._record_success(asked_ns)
        return changes

    def take_event(self, event: WatchEvent[T], now_ns: int) -> tuple[Change[T], ...]:
        """Take one event; raises ApiError for one without a version, which nothing can follow."""
        if not event.version:
            raise ApiError("an event without a resourceVersion", 410)
        self._version = event.version
        self._record_success(now_ns)
        if event.kind is EventKind.BOOKMARK:
            return ()
        old = self.objects.get(event.key)
        if event.kind is EventKind.DELETED:
            if old is None:
                return ()
            self.objects = self.objects.without(event.key)
            return (Change(event.key, old, None),)
        if event.entry is None or event.entry == old:
            return ()
        self.objects = self.objects.put(event.key, event.entry)
        return _change(event.key, old, event.entry)

    def confirm(self, version: str, asked_ns: int) -> None:
        """The server's collection had `version` at a moment no earlier than `asked_ns`."""
        if version and version == self._version:
            self._record_success(asked_ns)

    def record_failure(self, error: ApiError) -> None:
        """The step failed: a watch is asked for again where that can help, else a list."""
        self.trouble = str(error)
        self._failures += 1
        self._pause_at_least = error.retry_after_s
        if not error.says_wait or self._failures % _WATCH_FAILURES == 0:
            self.relist()

    def pause_s(self, jitter: float) -> float:
        """Seconds before the next step; `jitter` is drawn from [0, 1)."""
        if not self._failures:
            return 0.0
        most = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 10))
        return max(self._pause_at_least, most * (0.5 + jitter / 2))

    def _record_success(self, at_ns: int) -> None:
        self.fresh_at_ns = max(at_ns, self.fresh_at_ns or at_ns)
        self.trouble = ""
        self._failures = 0
        self._pause_at_least = 0.0


def _differences(old: Mapping[str, Entry[T]], new: Mapping[str, Entry[T]]) -> tuple[Change[T], ...]:
    changes = [Change(k, x, None) for k, x in old.items() if k not in new]
    for key, entry in new.items():
        before = old.get(key)
        if before != entry:
            changes += _change(key, before, entry)
    return tuple(changes)


def _change(key: str, old: Entry[T] | None, new: Entry[T]) -> tuple[Change[T], ...]:
    if old is not None and old.uid != new.uid:
        return (Change(key, old, None), Change(key, None, new))
    return (Change(key, old, new),)


def _same(old: Entry[T] | None, new: Entry[T]) -> Entry[T]:
    """The old one where it is equal, so that a list does not keep everything twice."""
    return old if old is not None and old == new else new


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
    """Keeps one cache by requests to the API server; used from one event loop.

    Each watch is short and ends with a bookmark, well within the time after which a cache
    counts as stale. The server sends a bookmark only if its version has moved, which in a quiet
    collection happens when somebody asks for the newest. So a cache that heard nothing asks. If
    nothing has come by the end of the watch, everything is listed. A watch that neither sends
    anything nor ends is broken off.
    """

    def __init__(
        self,
        api: ApiClient,
        kind: Kind[T],
        *,
        clock: Clock,
        instruments: Instruments,
        jitter: Callable[[], float],
        pace: Pace = DEFAULT_PACE,
        observe: Observe[T] = lambda _changes, _asked: None,
    ) -> None:
        self.cache: Cache[T] = Cache()
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
        self._reported = ""

    async def follow(self) -> NoReturn:
        """Keep the cache; ends by cancellation only."""
        while True:
            try:
                wanted = self.cache.next_request()
                if isinstance(wanted, WantWatch) and not self._is_old():
                    await self._watch(wanted.version)
                else:
                    await self._list()
            except ApiError as error:
                self.cache.record_failure(error)
                self._watches.labels(self._resource, _end(error)).inc()
            self._report()
            await asyncio.sleep(self.cache.pause_s(self._jitter()) * self._pace.pause_factor)

    def _is_old(self) -> bool:
        """After an outage, or a watch without an event: only a list can prove anything now."""
        fresh_at_ns = self.cache.fresh_at_ns or 0
        return self._clock.boottime_ns() - fresh_at_ns >= self._pace.watch_s * NS_PER_S

    async def _list(self) -> None:
        asked_ns = self._clock.boottime_ns()
        entries: dict[str, Entry[T]] = {}
        version = ""
        async for page in self._api.pages(self._kind.resource):
            entries.update(self._kind.entry(item) for item in page.items or ())
            version = page.metadata.resource_version
        changes = self.cache.take_list(entries, version, asked_ns)
        self._lists.labels(self._resource).inc()
        self._observe(changes, asked_ns)
        if self.cache.fresh_at_ns is not None:
            self.synced.set()

    async def _watch(self, version: str) -> None:
        asking = asyncio.create_task(self._ask_in_silence())
        try:
            await self._take_events(version)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        self._watches.labels(self._resource, "over").inc()

    async def _ask_in_silence(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._pace.ask_s)
            asked_ns = self._clock.boottime_ns()
            if asked_ns - (self.cache.fresh_at_ns or 0) >= self._pace.ask_s * NS_PER_S:
                with contextlib.suppress(ApiError):
                    version = await self._api.version_now(self._kind.resource)
                    self.cache.confirm(version, asked_ns)

    async def _take_events(self, version: str) -> None:
        async with self._api.watch(
            self._kind.resource,
            version,
            seconds=self._pace.watch_s,
            silence_s=self._pace.silence_s,
        ) as lines:
            async for line in lines:
                event = self._kind.event(line)
                changes = self.cache.take_event(event, self._clock.boottime_ns())
                if changes:
                    self._observe(changes, None)
                if isinstance(self.cache.next_request(), WantWatch):
                    continue
                break  # whoever observes wants a list

    def _report(self) -> None:
        """Log trouble once, and its end."""
        trouble = self.cache.trouble
        if trouble and not self._reported:
            self._log.warning(Event.KUBE_CACHE_TROUBLE, resource=self._resource, reason=trouble)
        elif self._reported and not trouble:
            self._log.info(
                Event.KUBE_CACHE_FRESH, resource=self._resource, objects=len(self.cache.objects)
            )
        self._reported = trouble


def _end(error: ApiError) -> str:
    if error.is_gone:
        return "gone"
    return "refused" if error.status else "broken"
