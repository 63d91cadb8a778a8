"""A copy of one collection of the API server, kept by list and watch: pure state machine.

The shell does what `wanted` says and tells what came of it. The copy changes by whole
lists and by events in order, so it always equals a state that the server once had; while
it is listed anew the old copy stands, so nothing vanishes in between. resourceVersions
are opaque: kept, compared for equality, handed back.

`fresh_at_ns` is the last moment at which the copy was known to be what the server has:
when a list that was taken was asked for, when the watch last said something, or when a
read past the copy gave the copy's own version. Silence proves nothing: a watch from a
version that the server does not have yet (its history went backwards) is silent too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, TypeVar

from controller.fleet.sharded_map import ShardedMap
from controller.kube.errors import ApiError

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
_WATCH_FAILURES: Final = 3
"""Watches that may fail in a row without a word, before a list is asked for instead."""


class EventKind(Enum):
    """What an event of a watch says."""

    APPLIED = auto()
    """ADDED or MODIFIED: they mean the same to a copy."""
    DELETED = auto()
    BOOKMARK = auto()


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """One object, as far as we use it."""

    version: str
    uid: str
    value: T


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """One event; `entry` is None for a bookmark, whose only news is the version."""

    kind: EventKind
    version: str
    key: str = ""
    entry: Entry[T] | None = None


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """What a step did to one object; an object made anew under its name is two of them."""

    key: str
    old: Entry[T] | None
    new: Entry[T] | None


@dataclass(frozen=True, slots=True)
class WantList:
    """Ask for everything."""


@dataclass(frozen=True, slots=True)
class WantWatch:
    """Ask for what happened after `version`."""

    version: str


class Reflection(Generic[T]):
    """One per collection; used from one event loop."""

    def __init__(self) -> None:
        self.objects: ShardedMap[Entry[T]] = ShardedMap()
        """By name, `namespace/name` where there are namespaces."""
        self.fresh_at_ns: int | None = None
        """CLOCK_BOOTTIME; None before the first list."""
        self.trouble = ""
        """Why the last step failed; empty while all is well."""
        self._version = ""
        self._wants_list = True
        self._failures = 0
        self._pause_at_least = 0.0

    def fresh_until_ns(self, stale_after_ns: int) -> int:
        """CLOCK_BOOTTIME from which the copy is too old; 0 before it was ever read."""
        return 0 if self.fresh_at_ns is None else self.fresh_at_ns + stale_after_ns

    def wanted(self) -> WantList | WantWatch:
        """The next step."""
        return WantList() if self._wants_list else WantWatch(self._version)

    def relist(self) -> None:
        """Make the next step a list, whatever a watch that still runs may tell."""
        self._wants_list = True

    def listed(
        self, entries: Mapping[str, Entry[T]], version: str, asked_ns: int
    ) -> tuple[Change[T], ...]:
        """Take the whole collection as it was at `version`, asked for at `asked_ns`."""
        if not version:
            self.failed(ApiError("a list without a resourceVersion"))
            return ()
        changes = _differences(self.objects, entries)
        if changes:
            kept = {k: _same(self.objects.get(k), x) for k, x in entries.items()}
            self.objects = ShardedMap(kept)
        self._version = version
        self._wants_list = False
        self._well(asked_ns)
        return changes

    def event(self, event: Event[T], now_ns: int) -> tuple[Change[T], ...]:
        """Take one event; raises ApiError for one without a version, which nothing can follow."""
        if not event.version:
            raise ApiError("an event without a resourceVersion", 410)
        self._version = event.version
        self._well(now_ns)
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

    def proven(self, version: str, asked_ns: int) -> None:
        """The collection had `version` at a moment no earlier than `asked_ns`."""
        if version and version == self._version:
            self._well(asked_ns)

    def failed(self, error: ApiError) -> None:
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

    def _well(self, at_ns: int) -> None:
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
