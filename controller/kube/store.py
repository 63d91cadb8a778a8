"""Objects of one kind that we write ourselves: a copy by list and watch, own answers ahead of it.

Creation is the API server's create-if-absent, a change carries the resourceVersion that it was
made from, a deletion that and the UID. After every answer, also one that refused, it is
known what is there. What an answer's absence means is the business of whoever asked.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Generic, TypeVar

from controller.kube.client import JSON_PATCH, ApiClient
from controller.kube.list_watch import DEFAULT_PACE, ListWatch, Pace
from controller.kube.reflection import Change, Entry, Inquiry, Kind, Sightings
from controller.kube.resources import ApiError
from gpuwarden.clock import Clock
from gpuwarden.telemetry.metrics import Instruments

T = TypeVar("T")

FIRST_READ_SECONDS: Final = 3.0
"""A start goes on without; nothing is granted until the first list is in."""
_AT_ONCE: Final = 16
_MOST_RACES: Final = 4
_TOO_MANY_REQUESTS: Final = 429
_WAITS: Final = (0.2, 0.5, 1.0)
"""Seconds to stay away after 429, unless the server names fewer."""


class WrittenObjects(Generic[T]):
    """One per kind; used from one event loop. `watcher.follow` keeps the copy."""

    def __init__(
        self,
        api: ApiClient,
        kind: Kind[T],
        take: Callable[[list[str]], None],
        *,
        name: str,
        unavailable: type[Exception],
        clock: Clock,
        instruments: Instruments,
        stale_after_ns: int,
        pace: Pace = DEFAULT_PACE,
        jitter: Callable[[], float],
        first_read_s: float = FIRST_READ_SECONDS,
    ) -> None:
        self._api = api
        self._kind = kind
        self._take = take
        self._name = name
        self._unavailable = unavailable
        self._clock = clock
        self._stale_after_ns = stale_after_ns
        self._first_read_s = first_read_s
        self._sightings: Sightings[T] = Sightings()
        self._writing = asyncio.Semaphore(_AT_ONCE)
        self.turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Requests about one object, one after the other: their answers have an order."""
        self.watcher = ListWatch(
            api,
            kind,
            clock=clock,
            instruments=instruments,
            jitter=jitter,
            pace=pace,
            observe=self._observe,
        )

    @property
    def known(self) -> Mapping[str, Entry[T]]:
        """The newest that is known of every object that was ever seen."""
        return self._sightings.known

    @property
    def missing(self) -> frozenset[str]:
        """Names of known objects that are no longer there."""
        return frozenset(self._sightings.missing)

    @property
    def fresh_until_ns(self) -> int:
        """CLOCK_BOOTTIME from which the copy is too old; 0 before the first list."""
        return self.watcher.reflection.fresh_until_ns(self._stale_after_ns)

    async def demand_fresh(self) -> None:
        """Wait for the first list, later look whether the watch still speaks; raises."""
        if not self.watcher.synced.is_set():
            try:
                await asyncio.wait_for(self.watcher.synced.wait(), self._first_read_s)
            except TimeoutError:
                raise self._too_old("not read yet") from None
        if self._clock.boottime_ns() >= self.fresh_until_ns:
            raise self._too_old("not confirmed for too long")

    async def create(self, key: str, body: object) -> bool:
        """False if there is one."""
        inquiry = self._sightings.inquire(key)
        try:
            answer = await self._asked(lambda: self._api.create(self._kind.resource, body))
        except ApiError as error:
            self._sightings.unanswered(inquiry)
            if not error.is_conflict:
                raise self.failed(key, error) from None
            await self.fetch(key)
            return False
        await self._answered(inquiry, answer)
        return True

    async def change(
        self,
        key: str,
        known: Entry[T],
        *steps: Mapping[str, Any],
        subresource: str | None = None,
        is_last: bool = False,
    ) -> bool:
        """JSON Patch of exactly the version that is known; False if it is another one by now.

        `is_last`: the object goes with it, so no watch will ever show the answer's version.
        """
        patch = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": known.version},
            *steps,
        ]
        inquiry = self._sightings.inquire(key)
        try:
            answer = await self._asked(
                lambda: self._api.patch(
                    self._kind.resource,
                    key,
                    patch,
                    content_type=JSON_PATCH,
                    subresource=subresource,
                )
            )
        except ApiError as error:
            self._sightings.unanswered(inquiry)
            if not (error.is_conflict or error.is_not_found):
                raise self.failed(key, error) from None
            await self.fetch(key)
            return False
        if is_last:
            self._sightings.unanswered(inquiry)
        else:
            await self._answered(inquiry, answer)
        return True

    async def delete(self, key: str, known: Entry[T]) -> bool:
        """Delete exactly the version that is known; False if it is another one by now."""
        try:
            await self._asked(
                lambda: self._api.delete(
                    self._kind.resource, key, uid=known.uid, version=known.version
                )
            )
        except ApiError as error:
            if not (error.is_conflict or error.is_not_found):
                raise self.failed(key, error) from None
            await self.fetch(key)
            return False
        return True

    async def fetch(self, key: str) -> None:
        """Learn what the object is now; asked once more where a list came in between."""
        for _ in range(_MOST_RACES):
            inquiry = self._sightings.inquire(key)
            try:
                body = await self._asked(lambda: self._api.get(self._kind.resource, key))
            except ApiError as error:
                self._sightings.unanswered(inquiry)
                if not error.is_not_found:
                    raise self.failed(key, error) from None
                if key in self._sightings.known:
                    self._sightings.missing.add(key)
                return
            if self._took(inquiry, body):
                return
        raise self._unavailable(f"{self._name} {key}: lists and answers cross")

    def failed(self, key: str, error: Exception) -> Exception:
        """What is raised about one object."""
        return self._unavailable(f"{self._name} {key}: {error}")

    async def _asked(self, ask: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        """Stay away for a moment where the server has too much to do; raises ApiError."""
        for wait_s in _WAITS:
            try:
                async with self._writing:
                    return await ask()
            except ApiError as error:
                if error.status != _TOO_MANY_REQUESTS:
                    raise
                await asyncio.sleep(min(error.retry_after_s or wait_s, wait_s))
        async with self._writing:
            return await ask()

    async def _answered(self, inquiry: Inquiry, body: bytes) -> None:
        """A write of ours was carried out; what is known afterwards includes it."""
        if not self._took(inquiry, body):
            await self.fetch(inquiry.key)

    def _took(self, inquiry: Inquiry, body: bytes) -> bool:
        """Whether it could be told what is newest."""
        try:
            key, entry = self._kind.entry(body)
        except ApiError as error:
            self._sightings.unanswered(inquiry)
            raise self.failed(inquiry.key, error) from None
        is_sure = self._sightings.answered(inquiry, entry, self._clock.boottime_ns())
        if is_sure:
            self._take([key])
        return is_sure

    def _observe(self, changes: tuple[Change[T], ...], asked_ns: int | None) -> None:
        if asked_ns is None:
            self._take(self._sightings.told(changes))
            return
        entries = self.watcher.reflection.objects
        changed, is_unsure = self._sightings.listed(entries, asked_ns)
        self._take(changed)
        if is_unsure:
            self.watcher.reflection.relist()

    def _too_old(self, text: str) -> Exception:
        trouble = self.watcher.reflection.trouble
        return self._unavailable(f"{self._name}s: {text}{': ' if trouble else ''}{trouble}")
