"""What is known of objects that we also write: the copy, and our own answers ahead of it. Pure.

An answer to a write (or to a read past the copy) is newer than what the watch has told so
far, and resourceVersions do not say which of two is newer. So an answer stands, and what
the watch tells about the object is known to be older, until the watch tells that very
version. A list asked for after the answer is newer than it; one that was on its way at
the same time proves nothing, and another is wanted.

Nothing is ever forgotten: an object that is gone is known to be missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from controller.kube.reflection import Change, Entry

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Inquiry:
    """A request about one object that is on its way."""

    key: str
    seen: set[str] = field(default_factory=set)
    """Versions that were known before, or that the copy showed meanwhile."""
    is_overtaken: bool = False
    """A list was taken meanwhile."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """The copy has not shown this version yet."""

    version: str
    answered_ns: int


class Sightings(Generic[T]):
    """One per collection that we write."""

    def __init__(self) -> None:
        self.known: dict[str, Entry[T]] = {}
        self.missing: set[str] = set()
        """Known, but no longer there."""
        self._ahead: dict[str, _Ahead] = {}
        self._inquiries: set[Inquiry] = set()

    def inquire(self, key: str) -> Inquiry:
        """Before a request about `key`, one at a time; `answered` or `unanswered` follows."""
        known = self.known.get(key)
        inquiry = Inquiry(key, set() if known is None else {known.version})
        self._inquiries.add(inquiry)
        return inquiry

    def unanswered(self, inquiry: Inquiry) -> None:
        """The request brought no object."""
        self._inquiries.discard(inquiry)

    def answered(self, inquiry: Inquiry, entry: Entry[T], now_ns: int) -> bool:
        """The request brought `entry`; False if only another request can tell what is newest."""
        self._inquiries.discard(inquiry)
        if entry.version in inquiry.seen:
            return True
        if inquiry.is_overtaken:
            return False
        self._know(inquiry.key, entry)
        self._ahead[inquiry.key] = _Ahead(entry.version, now_ns)
        return True

    def told(self, changes: tuple[Change[T], ...]) -> list[str]:
        """The watch told `changes`; returns the keys of which we know something else now."""
        return [x.key for x in changes if self._told(x.key, x.new)]

    def listed(self, entries: Mapping[str, Entry[T]], asked_ns: int) -> tuple[list[str], bool]:
        """A list asked for at `asked_ns`; keys that changed, and whether another is wanted."""
        for inquiry in self._inquiries:
            inquiry.is_overtaken = True
        changed, is_unsure = [], False
        for key in self.known.keys() | entries.keys():
            ahead, entry = self._ahead.get(key), entries.get(key)
            if ahead is not None and ahead.answered_ns >= asked_ns:
                is_unsure |= entry is None or entry.version != ahead.version
                if entry is None or entry.version != ahead.version:
                    continue
            self._ahead.pop(key, None)
            if self._told(key, entry):
                changed.append(key)
        return changed, is_unsure

    def _told(self, key: str, entry: Entry[T] | None) -> bool:
        ahead = self._ahead.get(key)
        if ahead is not None:
            if entry is None or entry.version != ahead.version:
                return False
            del self._ahead[key]
        if entry is None:
            if key in self.known:
                self.missing.add(key)
            return False
        for inquiry in self._inquiries:
            if inquiry.key == key:
                inquiry.seen.add(entry.version)
        return self._know(key, entry)

    def _know(self, key: str, entry: Entry[T]) -> bool:
        before = self.known.get(key)
        self.known[key] = entry
        self.missing.discard(key)
        return before is None or before.value != entry.value
