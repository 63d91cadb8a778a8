"""Objects that the controller writes itself: a cache by list and watch, own answers ahead of it.

Creation is create-if-absent. A change carries the resourceVersion that it was made from, a
deletion that and the UID. After every answer, also a refusal, the newest object is known.
What a missing answer means is the caller's decision.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt
from tenacity.wait import wait_random_exponential

from controller.kube.api.cache import DEFAULT_PACE, Change, ListWatch, Pace
from controller.kube.api.client import JSON_PATCH, ApiClient
from controller.kube.api.resources import ApiError, Entry, Kind
from gpuwarden.clock import Clock
from gpuwarden.telemetry.metrics import Instruments

T = TypeVar("T")

FIRST_READ_SECONDS: Final = 3.0
"""A start goes on without; nothing is granted until the first list is in."""
LATE_WATCH_SECONDS: Final = 1.0
"""How long to wait for a watch that has not shown yet how an object went."""
_AT_ONCE: Final = 16
_MOST_RACES: Final = 4
_TOO_MANY_REQUESTS: Final = 429
_ATTEMPTS: Final = 4
"""Of a request that is answered with 429."""
_PAUSE: Final = wait_random_exponential(multiplier=0.4, max=2.0)
_LONGEST_PAUSE_S: Final = 2.0


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request about one object that is on its way."""

    key: str
    seen: set[str] = field(default_factory=set)
    """Versions that were known before, or that the cache showed meanwhile."""
    is_shown: bool = False
    """The watch showed the object, or its end, meanwhile."""
    is_overtaken: bool = False
    """A list was taken meanwhile."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """The cache has not shown this version yet."""

    version: str
    answered_ns: int


class MutationCache(Generic[T]):
    """The newest known state of objects that we also write: the cache, own answers ahead. Pure.

    An answer to a write, or to a read past the cache, is newer than what the watch has sent so
    far, and resourceVersions do not say which of two is newer. So an answer counts, and what the
    watch sends about the object is known to be older, until the watch sends that very version.
    A list asked for after the answer is newer than it; one that was on its way at the same time
    proves nothing, and another is wanted.

    An object that is gone is known to be missing, and forgotten where `is_over` says that its last
    value was its end: unless the watch has still to show that value, and with it older ones. That
    an answer finds no object does not say how it went: it may have come to its end after the last
    that is known of it. The watch says that, or the next list.
    """

    def __init__(self, is_over: Callable[[T], bool] | None = None) -> None:
        """`is_over`: None where objects have no end, so that what is gone was removed."""
        self._is_over = is_over
        self.known: dict[str, Entry[T]] = {}
        self.missing: set[str] = set()
        """Known, but no longer there."""
        self._ahead: dict[str, _Ahead] = {}
        self._pending: set[PendingRequest] = set()

    @contextlib.contextmanager
    def begin(self, key: str) -> Iterator[PendingRequest]:
        """A request about `key`, one at a time; it is over with the block, however that ends.

        What it brings goes to `complete` or `miss`. Where it brings nothing (an error, a lost
        answer, a caller that went away) a write may have been done: the watch will show it.
        """
        known = self.known.get(key)
        request = PendingRequest(key, set() if known is None else {known.version})
        self._pending.add(request)
        try:
            yield request
        finally:
            self._pending.discard(request)

    def complete(self, request: PendingRequest, entry: Entry[T], now_ns: int) -> bool:
        """The request brought `entry`; False if only another request can say what is newest."""
        if entry.version in request.seen:
            return True
        if request.is_overtaken:
            return False
        self._put(request.key, entry)
        self._ahead[request.key] = _Ahead(entry.version, now_ns)
        return True

    def miss(self, request: PendingRequest) -> bool:
        """The request found no object; False if that does not say what became of it."""
        if request.is_shown or request.is_overtaken:
            return False
        known = self.known.get(request.key)
        is_late = known is not None and request.key not in self.missing and self._can_end(known)
        if not is_late:
            self._remove(request.key)
        return not is_late

    def take_changes(self, changes: tuple[Change[T], ...]) -> list[str]:
        """Take what the watch sent; returns the keys whose known value is another now."""
        return [x.key for x in changes if self._take(x.key, x.new)]

    def take_list(self, entries: Mapping[str, Entry[T]], asked_ns: int) -> tuple[list[str], bool]:
        """Take a list asked for at `asked_ns`; keys that changed, and whether to list again."""
        for request in self._pending:
            request.is_overtaken = True
        changed, is_unsure = [], False
        for key in self.known.keys() | entries.keys():
            ahead, entry = self._ahead.get(key), entries.get(key)
            if ahead is not None and ahead.answered_ns >= asked_ns:
                is_unsure |= entry is None or entry.version != ahead.version
                if entry is None or entry.version != ahead.version:
                    continue
            self._ahead.pop(key, None)
            if self._take(key, entry):
                changed.append(key)
        return changed, is_unsure

    def _take(self, key: str, entry: Entry[T] | None) -> bool:
        ahead = self._ahead.get(key)
        if ahead is not None:
            if entry is None or entry.version != ahead.version:
                return False
            del self._ahead[key]
        for request in self._pending:
            if request.key == key:
                request.is_shown = True
                request.seen |= set() if entry is None else {entry.version}
        if entry is None:
            self._remove(key)
            return False
        return self._put(key, entry)

    def _can_end(self, known: Entry[T]) -> bool:
        """And has not."""
        return self._is_over is not None and not self._is_over(known.value)

    def _remove(self, key: str) -> None:
        """There is no such object any more, and what is known is the last of it."""
        known = self.known.get(key)
        if known is None:
            return
        if key not in self._ahead and self._is_over is not None and self._is_over(known.value):
            self.missing.discard(key)
            del self.known[key]
        else:
            self.missing.add(key)

    def _put(self, key: str, entry: Entry[T]) -> bool:
        before = self.known.get(key)
        self.known[key] = entry
        self.missing.discard(key)
        return before is None or before.value != entry.value


class ObjectStore(Generic[T]):
    """One per kind; used from one event loop. `watcher.follow` keeps the cache."""

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
        late_watch_s: float = LATE_WATCH_SECONDS,
        is_over: Callable[[T], bool] | None = None,
    ) -> None:
        """`is_over`: what an object holds can be forgotten with it; None: no object has an end."""
        self._api = api
        self._kind = kind
        self._take = take
        self._name = name
        self._unavailable = unavailable
        self._clock = clock
        self._stale_after_ns = stale_after_ns
        self._first_read_s = first_read_s
        self._late_watch_s = late_watch_s
        self._news = asyncio.Event()
        """Set, and replaced, when the watch or a list has shown something."""
        self._objects: MutationCache[T] = MutationCache(is_over)
        self._writing = asyncio.Semaphore(_AT_ONCE)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.watcher = ListWatch(
            api,
            kind,
            clock=clock,
            instruments=instruments,
            jitter=jitter,
            pace=pace,
            observe=self._observe,
        )

    def turn(self, key: str) -> asyncio.Lock:
        """Requests about one object, one after the other: their answers have an order."""
        return self._turns.setdefault(key, asyncio.Lock())

    @property
    def known(self) -> Mapping[str, Entry[T]]:
        """The newest that is known of every object that was seen, unless it is over and gone."""
        return self._objects.known

    @property
    def missing(self) -> frozenset[str]:
        """Names of known objects that are no longer there."""
        return frozenset(self._objects.missing)

    @property
    def fresh_until_ns(self) -> int:
        """CLOCK_BOOTTIME from which the cache is too old; 0 before the first list."""
        return self.watcher.cache.fresh_until_ns(self._stale_after_ns)

    async def demand_fresh(self) -> None:
        """Wait for the first list, later check that the watch still sends; raises `unavailable`."""
        if not self.watcher.synced.is_set():
            try:
                await asyncio.wait_for(self.watcher.synced.wait(), self._first_read_s)
            except TimeoutError:
                raise self._too_old("not read yet") from None
        if self._clock.boottime_ns() >= self.fresh_until_ns:
            raise self._too_old("not confirmed for too long")

    async def create(self, key: str, body: object) -> bool:
        """Create the object; False if there is one."""
        try:
            with self._objects.begin(key) as request:
                answer = await self._ask(lambda: self._api.create(self._kind.resource, body))
                is_sure = self._take_answer(request, answer)
        except ApiError as error:
            if not error.is_conflict:
                raise self.error_about(key, error) from None
            await self.fetch(key)
            return False
        if not is_sure:
            await self.fetch(key)
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
        try:
            with self._objects.begin(key) as request:
                answer = await self._ask(
                    lambda: self._api.patch(
                        self._kind.resource,
                        key,
                        patch,
                        content_type=JSON_PATCH,
                        subresource=subresource,
                    )
                )
                is_sure = is_last or self._take_answer(request, answer)
        except ApiError as error:
            if not (error.is_conflict or error.is_not_found):
                raise self.error_about(key, error) from None
            await self.fetch(key)
            return False
        if not is_sure:
            await self.fetch(key)
        return True

    async def delete(self, key: str, known: Entry[T]) -> bool:
        """Delete exactly the version that is known; False if it is another one by now."""
        try:
            await self._ask(
                lambda: self._api.delete(
                    self._kind.resource, key, uid=known.uid, version=known.version
                )
            )
        except ApiError as error:
            if not (error.is_conflict or error.is_not_found):
                raise self.error_about(key, error) from None
            await self.fetch(key)
            return False
        return True

    async def fetch(self, key: str) -> None:
        """Read what the object is now; read again where a list came in between.

        One that is gone, and had not come to its end for all that is known, may have come to it
        since: wait for the watch to show it. Raises `unavailable` where that takes too long.
        """
        for _ in range(_MOST_RACES):
            with self._objects.begin(key) as request:
                try:
                    body = await self._ask(lambda: self._api.get(self._kind.resource, key))
                except ApiError as error:
                    if not error.is_not_found:
                        raise self.error_about(key, error) from None
                    if self._objects.miss(request):
                        return
                    await self._wait_for_watch(request)
                else:
                    if self._take_answer(request, body):
                        return
        raise self._unavailable(f"{self._name} {key}: lists and answers cross")

    def error_about(self, key: str, error: Exception) -> Exception:
        """The error to raise about one object."""
        return self._unavailable(f"{self._name} {key}: {error}")

    async def _ask(self, ask: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        """Wait and retry where the server answers 429; raises ApiError."""
        attempts = AsyncRetrying(
            retry=retry_if_exception(_says_too_many),
            stop=stop_after_attempt(_ATTEMPTS),
            wait=_pause,
            reraise=True,
        )
        return await attempts(self._ask_once, ask)

    async def _ask_once(self, ask: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        async with self._writing:
            return await ask()

    async def _wait_for_watch(self, request: PendingRequest) -> None:
        """Wait until the watch or a list has shown the object; raises `unavailable`."""
        try:
            async with asyncio.timeout(self._late_watch_s):
                while not (request.is_shown or request.is_overtaken):
                    await self._news.wait()
        except TimeoutError:
            text = "it is gone, and the watch has not shown yet whether it ended"
            raise self._unavailable(f"{self._name} {request.key}: {text}") from None

    def _take_answer(self, request: PendingRequest, body: bytes) -> bool:
        """Take an object from an answer; False where it is not known to be the newest."""
        try:
            key, entry = self._kind.entry(body)
        except ApiError as error:
            raise self.error_about(request.key, error) from None
        is_sure = self._objects.complete(request, entry, self._clock.boottime_ns())
        if is_sure:
            self._take([key])
        return is_sure

    def _observe(self, changes: tuple[Change[T], ...], asked_ns: int | None) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
        if asked_ns is None:
            self._take(self._objects.take_changes(changes))
            return
        entries = self.watcher.cache.objects
        changed, is_unsure = self._objects.take_list(entries, asked_ns)
        self._take(changed)
        if is_unsure:
            self.watcher.cache.relist()

    def _too_old(self, text: str) -> Exception:
        trouble = self.watcher.cache.trouble
        return self._unavailable(f"{self._name}s: {text}{': ' if trouble else ''}{trouble}")


def _says_too_many(error: BaseException) -> bool:
    return isinstance(error, ApiError) and error.status == _TOO_MANY_REQUESTS


def _pause(attempt: RetryCallState) -> float:
    """As the server asks, within bounds; else full jitter."""
    error = attempt.outcome.exception() if attempt.outcome is not None else None
    asked_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
    return min(asked_s, _LONGEST_PAUSE_S) or _PAUSE(attempt)
