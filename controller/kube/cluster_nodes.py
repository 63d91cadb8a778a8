"""The nodes of the cluster, as the Verifier asks for them: reads the copy, never the network.

A copy that is too old accepts nobody: the snapshot says until when it counts. A Node that
is there makes nothing trusted, one that is not there is refused. Pure.
"""

from collections.abc import Iterator, Mapping

from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.kube.reflection import Entry, Reflection


class ClusterNodes:
    """Implements NodeDirectory."""

    def __init__(self, reflection: Reflection[KnownNode], stale_after_ns: int) -> None:
        self._reflection = reflection
        self._stale_after_ns = stale_after_ns

    def snapshot(self) -> DirectorySnapshot:
        """What is known now; stale from the start until the first list is in."""
        return DirectorySnapshot(
            _Values(self._reflection.objects), self._reflection.fresh_until_ns(self._stale_after_ns)
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
