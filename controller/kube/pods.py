"""Pods.

Holds: pods by node, bound pods, cluster pods, cluster nodes, enforced namespaces.
"""

from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Final

from controller.access import FoundPod
from controller.binding.request import BoundPod, PodsUnavailableError, StoredPod
from controller.fleet.enrollment import DirectorySnapshot, KnownNode
from controller.kube.client import ApiClient
from controller.kube.reflection import Change, Entry, Kind, KnownNamespace, KnownPod, Reflection
from controller.kube.resources import PODS, ApiError
from controller.ledger.claim import LivePod
from controller.ledger.record import PodGone, PodRef, PodSeen, PodSight, key_of
from controller.placement.texts import micro_time
from gpuwarden.clock import Clock

# --- pods by node
# Which guarded pods run where, and which wait: an index that follows the pods' copy. Pure.


class PodsByNode:
    """`is_enforced` says whether a namespace makes every GPU pod in it guarded."""

    def __init__(self, is_enforced: Callable[[str], bool]) -> None:
        self._is_enforced = is_enforced
        self._pods: dict[str, dict[str, KnownPod]] = {}

    def observe(self, changes: tuple[Change[KnownPod], ...], _asked_ns: int | None) -> None:
        """The copy changed."""
        for change in changes:
            if change.old is not None:
                self._remove(change.key, change.old.value)
            if change.new is not None and _counts(change.new.value):
                self._pods.setdefault(change.new.value.node, {})[change.key] = change.new.value

    def guarded(self, node: str) -> Iterator[KnownPod]:
        """Guarded pods that are bound to `node` and have not ended; `""`: that are not bound."""
        for pod in self._pods.get(node, {}).values():
            if self.is_guarded(pod):
                yield pod

    def is_guarded(self, pod: KnownPod) -> bool:
        """Whether it asks for something of ours, or its namespace makes it do so."""
        return pod.asks or (pod.uses_gpus and self._is_enforced(pod.namespace))

    def any_waits(self) -> bool:
        """Whether a guarded pod is not bound."""
        return next(self.guarded(""), None) is not None

    def _remove(self, key: str, pod: KnownPod) -> None:
        there = self._pods.get(pod.node)
        if there is not None and there.pop(key, None) is not None and not there:
            del self._pods[pod.node]


def _counts(pod: KnownPod) -> bool:
    return not pod.has_ended and (pod.asks or pod.uses_gpus)


# --- bound pods
# The bound pods of the cluster, as the comparison with their nodes asks for them. Pure.
#
# By name the copy answers at once. By UID it is asked only about pods that have a GPU which nobody
# gave them, with UIDs that an agent says: so the index of UIDs is made at most every few seconds.

REMADE_NS: Final = 5 * 1_000_000_000


class ClusterBoundPods:
    """Implements BoundPods; used from one event loop."""

    def __init__(
        self,
        reflection: Reflection[KnownPod],
        by_node: PodsByNode,
        boottime_ns: Callable[[], int],
    ) -> None:
        self._reflection = reflection
        self._by_node = by_node
        self._boottime_ns = boottime_ns
        self._keys: dict[str, str] = {}
        """By UID."""
        self._made_ns: int | None = None

    def named(self, namespace: str, name: str) -> BoundPod | None:
        """The pod of that name."""
        entry = self._reflection.objects.get(f"{namespace}/{name}")
        return None if entry is None else self._bound(entry.value)

    def with_uid(self, uid: str) -> BoundPod | None:
        """The pod of that UID; a new one is found after a moment only."""
        found = self._known(uid)
        now_ns = self._boottime_ns()
        if found is None and (self._made_ns is None or now_ns - self._made_ns >= REMADE_NS):
            entries = self._reflection.objects.items()
            self._keys = {entry.uid: key for key, entry in entries if entry.value.node}
            self._made_ns = now_ns
            found = self._known(uid)
        return None if found is None else self._bound(found.value)

    def guarded(self, node: str) -> Iterator[BoundPod]:
        """Those of a node that ask for something of ours."""
        for pod in self._by_node.guarded(node):
            found = self._bound(pod)
            if found is not None:
                yield found

    def _known(self, uid: str) -> Entry[KnownPod] | None:
        entry = self._reflection.objects.get(self._keys.get(uid, ""))
        return entry if entry is not None and entry.uid == uid else None

    def _bound(self, pod: KnownPod) -> BoundPod | None:
        if not pod.node or pod.has_ended:
            return None
        needs = pod.needs if self._by_node.is_guarded(pod) else None
        return BoundPod(PodRef(pod.namespace, pod.name, pod.uid), pod.node, needs)


# --- cluster pods
# The pods of the cluster as the gate and the ledger ask for them: the copy, and past it.
#
# The copy answers at once. A read goes to the API server's store, so that what it says was true
# after the question; a touch changes the pod, so that every older Binding of it fails.

TOUCHED = "touched.gpuwarden.dev/at"
"""An annotation beside our prefix: what stands under that does not change after creation."""
_RELIED_ON_NS = 15 * 1_000_000_000
"""An older copy is not asked about pods that are to be bound."""
_ANOTHER = frozenset({HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})
"""How a patch fails that names another UID than the object's."""


class ClusterPods:
    """Used from one event loop."""

    def __init__(
        self,
        api: ApiClient,
        kind: Kind[KnownPod],
        reflection: Reflection[KnownPod],
        *,
        replica: str,
        clock: Clock,
    ) -> None:
        self._api = api
        self._kind = kind
        self._reflection = reflection
        self._replica = replica
        self._clock = clock
        self._live: dict[str, LivePod] = {}
        self._by_gpu: dict[str, dict[str, LivePod]] = {}

    def observe(self, changes: tuple[Change[KnownPod], ...], _asked_ns: int | None) -> None:
        """The copy changed."""
        for change in changes:
            live = None if change.new is None else _live(change.new.value)
            self._index(change.key, self._live.get(change.key), live)
            if live is not None:
                self._live[change.key] = live
            else:
                self._live.pop(change.key, None)

    def live(self) -> tuple[LivePod, ...]:
        """Bound pods that have not ended and say that they hold GPUs, from the copy."""
        return tuple(self._live.values())

    def holding(self, gpu: str) -> tuple[LivePod, ...]:
        """Those of `live` that say that they hold this GPU."""
        return tuple(self._by_gpu.get(key_of(gpu), {}).values())

    def reread(self) -> None:
        """Have the copy made anew, soon."""
        self._reflection.relist()

    def known(self, namespace: str, name: str) -> StoredPod | None:
        """From the copy; None where it does not know, or is too old to be relied on."""
        fresh_at_ns = self._reflection.fresh_at_ns
        if fresh_at_ns is None or self._clock.boottime_ns() - fresh_at_ns >= _RELIED_ON_NS:
            return None
        entry = self._reflection.objects.get(f"{namespace}/{name}")
        return None if entry is None else _stored(entry)

    async def read(self, namespace: str, name: str) -> StoredPod | None:
        """At its newest; None where there is none. Raises PodsUnavailableError."""
        try:
            entry = await self._read(namespace, name)
        except ApiError as error:
            raise PodsUnavailableError(f"the pod could not be read: {error}") from None
        return None if entry is None else _stored(entry)

    async def document(self, namespace: str, name: str) -> bytes | None:
        """The whole pod at its newest; None where there is none. Raises PodsUnavailableError."""
        try:
            return await self._api.get(PODS, name, namespace)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise PodsUnavailableError(f"the pod could not be read: {error}") from None

    def sight(self, pod: PodRef) -> PodSight:
        """What the copy says of a pod by its UID; that it lacks one proves nothing."""
        entry = self._reflection.objects.get(f"{pod.namespace}/{pod.name}")
        return None if entry is None or entry.uid != pod.uid else _seen(entry.value)

    async def look(self, pod: PodRef) -> PodSeen | PodGone:
        """The pod of that UID at its newest; raises PodsUnavailableError."""
        return (await self.find(pod)).sight

    async def find(self, pod: PodRef) -> FoundPod:
        """The pod of that UID at its newest, with what it holds; raises PodsUnavailableError."""
        try:
            entry = await self._read(pod.namespace, pod.name or "")
        except ApiError as error:
            raise PodsUnavailableError(str(error)) from None
        if entry is None or entry.uid != pod.uid:
            return FoundPod(PodGone(), None)
        return FoundPod(_seen(entry.value), entry.value.held)

    async def touch(self, pod: PodRef) -> PodSeen | PodGone:
        """Change the pod of that UID and give it as stored; raises PodsUnavailableError."""
        at = f"{micro_time(self._clock.wall_ns())} {self._replica}"
        body = {"metadata": {"uid": pod.uid, "annotations": {TOUCHED: at}}}
        try:
            answer = await self._api.patch(PODS, pod.name or "", body, pod.namespace)
            _, entry = self._kind.entry(answer)
        except ApiError as error:
            if error.is_not_found:
                return PodGone()
            if error.status in _ANOTHER and isinstance(await self.look(pod), PodGone):
                return PodGone()
            raise PodsUnavailableError(str(error)) from None
        return _seen(entry.value) if entry.uid == pod.uid else PodGone()

    def _index(self, key: str, old: LivePod | None, new: LivePod | None) -> None:
        if old is not None:
            for gpu in {key_of(x) for x in old.gpus}:
                self._by_gpu[gpu].pop(key)
                if not self._by_gpu[gpu]:
                    del self._by_gpu[gpu]
        if new is not None:
            for gpu in {key_of(x) for x in new.gpus}:
                self._by_gpu.setdefault(gpu, {})[key] = new

    async def _read(self, namespace: str, name: str) -> Entry[KnownPod] | None:
        try:
            _, entry = self._kind.entry(await self._api.get(PODS, name, namespace))
        except ApiError as error:
            if error.is_not_found:
                return None
            raise
        return entry


def _live(pod: KnownPod) -> LivePod | None:
    return None if pod.has_ended else pod.held


def _stored(entry: Entry[KnownPod]) -> StoredPod:
    pod = entry.value
    return StoredPod(entry.uid, entry.version, pod.node, pod.has_ended, pod.waiting)


def _seen(pod: KnownPod) -> PodSeen:
    reservation = None if pod.held is None else pod.held.reservation
    return PodSeen(pod.uid, pod.node, reservation, pod.has_ended)


# --- cluster nodes
# The nodes of the cluster, as the Verifier asks for them: reads the copy, never the network.
#
# A copy that is too old accepts nobody: the snapshot says until when it counts. A Node that
# is there makes nothing trusted, one that is not there is refused. Pure.


class MapNames:
    """Which node a map means by another name: an index that follows the nodes' copy."""

    def __init__(self) -> None:
        self._holders: dict[str, dict[str, None]] = {}
        self.only: dict[str, str] = {}
        """The node of each name that just one has: of two, a map means neither."""

    def observe(self, changes: tuple[Change[KnownNode], ...], _asked_ns: int | None) -> None:
        """The copy changed."""
        for change in changes:
            old = None if change.old is None else change.old.value.map_name
            new = None if change.new is None else change.new.value.map_name
            if old == new:
                continue
            if old is not None:
                self._holders.get(old, {}).pop(change.key, None)
                self._choose(old)
            if new is not None:
                self._holders.setdefault(new, {})[change.key] = None
                self._choose(new)

    def _choose(self, name: str) -> None:
        holders = self._holders.get(name, {})
        if len(holders) == 1:
            self.only[name] = next(iter(holders))
        else:
            self.only.pop(name, None)
        if not holders:
            self._holders.pop(name, None)


class ClusterNodes:
    """Implements NodeDirectory."""

    def __init__(
        self,
        reflection: Reflection[KnownNode],
        stale_after_ns: int,
        map_names: MapNames | None = None,
    ) -> None:
        self._reflection = reflection
        self._stale_after_ns = stale_after_ns
        self._map_names = map_names or MapNames()

    def snapshot(self) -> DirectorySnapshot:
        """What is known now; stale from the start until the first list is in."""
        return DirectorySnapshot(
            _Values(self._reflection.objects),
            self._reflection.fresh_until_ns(self._stale_after_ns),
            self._map_names.only,
        )

    def warning(self) -> str | None:
        """A real directory needs none."""
        return None


class _Values(Mapping[str, KnownNode]):
    """The values of entries, without a copy."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[str, Entry[KnownNode]]) -> None:
        self._entries = entries

    def __getitem__(self, name: str) -> KnownNode:
        return self._entries[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


# --- enforced namespaces
# Namespaces in which every GPU pod is guarded, from the copy of the Namespaces. Pure.
#
# A namespace that the copy does not know counts as enforced: a pod's namespace exists before
# the pod, so the copy is behind, and to guess that it is not enforced would let the pod pass.
# One that is known stays what it was while the copy is too old; readiness says that it is.


class EnforcedNamespaces:
    """Answers from memory."""

    def __init__(self, reflection: Reflection[KnownNamespace], stale_after_ns: int) -> None:
        self._reflection = reflection
        self._stale_after_ns = stale_after_ns

    def is_enforced(self, namespace: str) -> bool:
        """Whether GPU pods in it are guarded without a wish; False where none is named."""
        if not namespace:
            return False
        known = self._reflection.objects.get(namespace)
        return known is None or known.value.enforced

    def fresh_until_ns(self) -> int:
        """CLOCK_BOOTTIME from which the copy is too old; 0 before it was read."""
        return self._reflection.fresh_until_ns(self._stale_after_ns)
