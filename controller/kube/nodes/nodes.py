"""The nodes and namespaces of the cluster, answered from their caches and never by the network.

A Node that exists makes nothing trusted; one that does not exist is refused.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from controller.admission.mutation import FITS
from controller.fleet.directory import DirectorySnapshot, KnownNode, Taint
from controller.kube.api.cache import Cache, Change
from controller.kube.api.resources import NAMESPACES, NODES, Entry, Kind, Metadata
from controller.placement.keys import HINT_LABEL_PREFIX, MANAGED_EFFECT, MANAGED_TAINT, MAP_NAME


class _Taint(msgspec.Struct, gc=False):
    key: str = ""
    value: str = ""
    effect: str = ""


class _NodeSpec(msgspec.Struct, gc=False):
    taints: list[_Taint] | None = None
    provider_id: str | None = msgspec.field(name="providerID", default=None)


class _Node(msgspec.Struct, gc=False):
    metadata: Metadata
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)


_NODE: Final = msgspec.json.Decoder(_Node)
_HARD: Final = frozenset({"NoSchedule", "NoExecute"})


def _read_node(body: bytes) -> tuple[Metadata, KnownNode]:
    node = _NODE.decode(body)
    found = node.metadata
    managed = any(map(_is_ours, node.spec.taints or ()))
    labels = found.labels or {}
    hints = frozenset(x for x in labels if x.startswith(HINT_LABEL_PREFIX) and labels[x] == FITS)
    taints = tuple(
        Taint(x.key, x.value, x.effect) for x in node.spec.taints or () if x.effect in _HARD
    )
    known = KnownNode(
        found.uid,
        managed,
        labels.get(MAP_NAME),
        hints,
        labels,
        taints,
        node.spec.provider_id,
    )
    return found, known


def _is_ours(taint: _Taint) -> bool:
    return taint.key == MANAGED_TAINT and taint.effect == MANAGED_EFFECT


NODE_KIND: Final = Kind(NODES, _read_node)


class MapNames:
    """Which node a map means by another name: an index of the cached nodes."""

    def __init__(self) -> None:
        self._holders: dict[str, dict[str, None]] = {}
        self.only: dict[str, str] = {}
        """The node of each name that just one has: of two, a map means neither."""

    def observe(self, changes: tuple[Change[KnownNode], ...], _asked_ns: int | None) -> None:
        """Take changes of the cache."""
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
    """Implements NodeDirectory; the snapshot says until when the cache counts."""

    def __init__(
        self,
        cache: Cache[KnownNode],
        stale_after_ns: int,
        map_names: MapNames | None = None,
    ) -> None:
        self._cache = cache
        self._stale_after_ns = stale_after_ns
        self._map_names = map_names or MapNames()
        self._nodes = _Values(cache.objects)

    def snapshot(self) -> DirectorySnapshot:
        """What is known now; stale from the start until the first list is in.

        `nodes` is the same object until a node changes.
        """
        nodes, entries = self._nodes, self._cache.objects
        if nodes.entries is not entries:
            nodes = self._nodes = _Values(entries)
        return DirectorySnapshot(
            nodes,
            self._cache.fresh_until_ns(self._stale_after_ns),
            self._map_names.only,
        )

    def warning(self) -> str | None:
        """A real directory needs none."""
        return None


class _Values(Mapping[str, KnownNode]):
    """The values of entries, not copied."""

    __slots__ = ("entries",)

    def __init__(self, entries: Mapping[str, Entry[KnownNode]]) -> None:
        self.entries = entries

    def __getitem__(self, name: str) -> KnownNode:
        return self.entries[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


ENFORCE_LABEL: Final = "gpuwarden.dev/enforce"


class _Namespace(msgspec.Struct, gc=False):
    metadata: Metadata


@dataclass(frozen=True, slots=True)
class KnownNamespace:
    """A namespace of the cluster."""

    enforced: bool


_NAMESPACE: Final = msgspec.json.Decoder(_Namespace)


def _read_namespace(body: bytes) -> tuple[Metadata, KnownNamespace]:
    found = _NAMESPACE.decode(body).metadata
    return found, KnownNamespace((found.labels or {}).get(ENFORCE_LABEL) == "true")


NAMESPACE_KIND: Final = Kind(NAMESPACES, _read_namespace)


class EnforcedNamespaces:
    """Namespaces in which every GPU pod is managed.

    A namespace that the cache does not know counts as enforced: a pod's namespace exists before
    the pod, so the cache is behind, and the other guess would let the pod pass. A known one
    keeps its answer while the cache is too old; readiness reports that.
    """

    def __init__(self, cache: Cache[KnownNamespace], stale_after_ns: int) -> None:
        self._cache = cache
        self._stale_after_ns = stale_after_ns

    def is_enforced(self, namespace: str) -> bool:
        """Whether GPU pods in it are managed without a requirement; False where none is named."""
        if not namespace:
            return False
        known = self._cache.objects.get(namespace)
        return known is None or known.value.enforced

    def fresh_until_ns(self) -> int:
        """CLOCK_BOOTTIME from which the cache is too old; 0 before the first list."""
        return self._cache.fresh_until_ns(self._stale_after_ns)
