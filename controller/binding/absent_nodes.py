"""Nodes that are gone from the cluster, and since when this replica has known it. Pure.

A node counts as gone only while a copy of the nodes that is not too old lacks it; one look at
an older copy, and the time begins anew.
"""

from collections.abc import Callable

from controller.fleet.directory import DirectorySnapshot
from controller.ledger.release import NodeGone


class AbsentNodes:
    """One per process."""

    def __init__(
        self, directory: Callable[[], DirectorySnapshot], boottime_ns: Callable[[], int]
    ) -> None:
        self._directory = directory
        self._boottime_ns = boottime_ns
        self._since_ns: dict[str, int] = {}

    def gone(self, node: str) -> NodeGone | None:
        """Since when the node is proven to be gone."""
        directory, now_ns = self._directory(), self._boottime_ns()
        if node in directory.nodes or now_ns >= directory.fresh_until_ns:
            self._since_ns.pop(node, None)
            return None
        return NodeGone(self._since_ns.setdefault(node, now_ns))
