"""The nodes of the cluster, as the Verifier asks for them: reads the copy, never the network.

A copy that is too old accepts nobody: the snapshot says until when it counts. A Node that
is there makes nothing trusted, one that is not there is refused. Pure.
"""

from collections.abc import Iterator, Mapping

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.kube.reflection import Change, Entry, Reflection


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
