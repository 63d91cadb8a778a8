"""Reflection.

Holds: reflection, objects, sightings.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Generic, TypeVar

import msgspec

from controller.admission.mutation import FITS
from controller.admission.pod_view import AdmittedPod, decode_admitted
from controller.fleet.enrollment import KnownNode, ShardedMap, Taint
from controller.kube.resources import NAMESPACES, NODES, PODS, ApiError, Resource, error_from_event
from controller.ledger.claim import LivePod
from controller.ledger.record import Origin, PodRef, in_claiming_order, is_early_id
from controller.placement.pod import MANAGED_EFFECT, MANAGED_TAINT, Pod, decode_pod
from controller.placement.requirements import (
    Requirements,
    RequirementsInvalid,
    controlling_owner,
    parse_requirements,
    share_group,
)
from controller.placement.texts import (
    ASSIGNED_UUIDS,
    HINT_LABEL_PREFIX,
    MAP_NAME,
    RESERVATION_ID,
    WishRules,
)

# --- reflection
# A copy of one collection of the API server, kept by list and watch: pure state machine.
#
# The shell does what `wanted` says and tells what came of it. The copy changes by whole
# lists and by events in order, so it always equals a state that the server once had; while
# it is listed anew the old copy stands, so nothing vanishes in between. resourceVersions
# are opaque: kept, compared for equality, handed back.
#
# `fresh_at_ns` is the last moment at which the copy was known to be what the server has:
# when a list that was taken was asked for, when the watch last said something, or when a
# read past the copy gave the copy's own version. Silence proves nothing: a watch from a
# version that the server does not have yet (its history went backwards) is silent too.

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


# --- objects
# What is kept of each object of the cluster: the fields that something here uses. Pure.
#
# Unknown fields are skipped while they are decoded. An object that lacks its name, UID or
# version, or whose fields have other types than the API's, is an error: the copy cannot be
# known to be whole without it.

ENFORCE_LABEL: Final = "gpuwarden.dev/enforce"


class Metadata(msgspec.Struct, rename="camel", gc=False):
    """meta/v1 ObjectMeta, as far as it is used."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None


class _Taint(msgspec.Struct, gc=False):
    key: str = ""
    value: str = ""
    effect: str = ""


class _NodeSpec(msgspec.Struct, gc=False):
    taints: list[_Taint] | None = None


class _Node(msgspec.Struct, gc=False):
    metadata: Metadata
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)


class _Namespace(msgspec.Struct, gc=False):
    metadata: Metadata


class _PodStatus(msgspec.Struct, gc=False):
    phase: str = ""


class _Pod(msgspec.Struct, gc=False):
    metadata: Metadata
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _Event(msgspec.Struct, gc=False):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct, gc=False):
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod of the cluster."""

    namespace: str
    name: str
    uid: str
    node: str
    """Empty until it is bound."""
    has_ended: bool
    """Succeeded or Failed: it holds nothing any more."""
    asks: bool
    """It carries a wish, or one that cannot be read."""
    uses_gpus: bool
    """In an enforced namespace it would be guarded."""
    waiting: AdmittedPod | None = None
    """The whole pod, while it is not bound and has not ended: the gate judges it."""
    held: LivePod | None = None
    """What it was told that it holds, once it is bound; nobody has checked the id yet."""
    needs: Requirements | RequirementsInvalid | None = None
    """What it asks for while it is bound, as in an enforced namespace; None for nothing of ours."""


@dataclass(frozen=True, slots=True)
class KnownNamespace:
    """A namespace of the cluster."""

    enforced: bool


class Kind(Generic[T]):
    """How one kind of object is read from JSON."""

    def __init__(self, resource: Resource, read: Callable[[bytes], tuple[Metadata, T]]) -> None:
        self.resource = resource
        self._read = read

    def entry(self, body: bytes | msgspec.Raw) -> tuple[str, Entry[T]]:
        """Key and entry of one object; raises ApiError."""
        try:
            metadata, value = self._read(bytes(body))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ApiError(f"{self.resource.plural}: {_cause(error)}", 422) from None
        if not (metadata.name and metadata.uid and metadata.resource_version):
            raise ApiError(f"{self.resource.plural}: an object without name, UID or version", 422)
        key = f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
        return key, Entry(metadata.resource_version, metadata.uid, value)

    def event(self, line: bytes) -> Event[T]:
        """One line of a watch; raises ApiError, the server's own for an ERROR event."""
        try:
            found = _EVENT.decode(line)
            if found.type == "BOOKMARK":
                version = _BOOKMARK.decode(found.object).metadata.resource_version
                return Event(EventKind.BOOKMARK, version)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ApiError(f"{self.resource.plural}: {_cause(error)}", 422) from None
        if found.type == "ERROR":
            raise error_from_event(bytes(found.object))
        if found.type not in _KINDS:
            raise ApiError(f"{self.resource.plural}: an event of unknown type", 422)
        key, entry = self.entry(found.object)
        return Event(_KINDS[found.type], entry.version, key, entry)


_KINDS: Final = {
    "ADDED": EventKind.APPLIED,
    "MODIFIED": EventKind.APPLIED,
    "DELETED": EventKind.DELETED,
}
_EVENT: Final = msgspec.json.Decoder(_Event)
_BOOKMARK: Final = msgspec.json.Decoder(_Bookmark)
_NODE: Final = msgspec.json.Decoder(_Node)
_NAMESPACE: Final = msgspec.json.Decoder(_Namespace)
_POD: Final = msgspec.json.Decoder(_Pod)
_HARD: Final = frozenset({"NoSchedule", "NoExecute"})
_ENDED: Final = frozenset({"Succeeded", "Failed"})


def _read_node(body: bytes) -> tuple[Metadata, KnownNode]:
    node = _NODE.decode(body)
    found = node.metadata
    managed = any(map(_is_ours, node.spec.taints or ()))
    labels = found.labels or {}
    hints = frozenset(x for x in labels if x.startswith(HINT_LABEL_PREFIX) and labels[x] == FITS)
    taints = tuple(
        Taint(x.key, x.value, x.effect) for x in node.spec.taints or () if x.effect in _HARD
    )
    known = KnownNode(found.uid, managed, labels.get(MAP_NAME), hints, labels, taints)
    return found, known


def _is_ours(taint: _Taint) -> bool:
    return taint.key == MANAGED_TAINT and taint.effect == MANAGED_EFFECT


def pod_kind(rules: WishRules) -> Kind[KnownPod]:
    """Pods, with what `rules` make of their wishes."""

    def read(body: bytes) -> tuple[Metadata, KnownPod]:
        head, pod = _POD.decode(body), decode_pod(body)
        found, node = head.metadata, pod.spec.node_name or ""
        has_ended = head.status.phase in _ENDED
        wishes = parse_requirements(pod, rules, enforced=False)
        asks, strict = _is_guarded(wishes), parse_requirements(pod, rules, enforced=True)
        uses_gpus = asks or _is_guarded(strict)
        return found, KnownPod(
            found.namespace,
            found.name,
            found.uid,
            node=node,
            has_ended=has_ended,
            asks=asks,
            uses_gpus=uses_gpus,
            waiting=None if node or has_ended else decode_admitted(body),
            held=_held(found, node, pod, wishes),
            needs=strict if node and uses_gpus and not has_ended else None,
        )

    return Kind(PODS, read)


def _held(
    found: Metadata, node: str, pod: Pod, wishes: Requirements | RequirementsInvalid
) -> LivePod | None:
    reservation = pod.annotations.get(RESERVATION_ID)
    if not node or reservation is None:
        return None
    ref = PodRef(found.namespace, found.name, found.uid, controlling_owner(pod))
    gpus = in_claiming_order(tuple(pod.annotations.get(ASSIGNED_UUIDS, "").split(",")))
    origin = Origin.ADMISSION if is_early_id(reservation) else Origin.GATE
    return LivePod(ref, node, reservation, gpus, origin, share_group(pod, wishes))


def _is_guarded(wishes: Requirements | RequirementsInvalid) -> bool:
    return isinstance(wishes, RequirementsInvalid) or wishes.guarded


def _read_namespace(body: bytes) -> tuple[Metadata, KnownNamespace]:
    found = _NAMESPACE.decode(body).metadata
    return found, KnownNamespace((found.labels or {}).get(ENFORCE_LABEL) == "true")


def _cause(error: Exception) -> str:
    """A decoder's words name fields and types, never values."""
    return f"an object that cannot be read: {error}"[:256]


NODE_KIND: Final = Kind(NODES, _read_node)
NAMESPACE_KIND: Final = Kind(NAMESPACES, _read_namespace)


# --- sightings
# What is known of objects that we also write: the copy, and our own answers ahead of it. Pure.
#
# An answer to a write (or to a read past the copy) is newer than what the watch has told so
# far, and resourceVersions do not say which of two is newer. So an answer stands, and what
# the watch tells about the object is known to be older, until the watch tells that very
# version. A list asked for after the answer is newer than it; one that was on its way at
# the same time proves nothing, and another is wanted.
#
# Nothing is ever forgotten: an object that is gone is known to be missing.


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
