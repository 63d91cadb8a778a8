"""The verified fleet without the nodes that were deleted from the cluster.

For what people see and what pods are judged by: else such a node would be stale until each
controller restarts. Must not make anything forget a node: quarantine and the release of
reservations are by the whole registry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from controller.fleet.directory import NodeDirectory
from controller.fleet.view import EMPTY_FLEET, FleetSnapshot


class Fleet(Protocol):
    """The verified fleet."""

    def snapshot(self) -> FleetSnapshot:
        """The fleet now; the same object until something changes."""

    def subscribe(self, notify: Callable[[], None], /) -> Callable[[], None]:
        """Call `notify` in the event loop after each change; returns the way to stop that."""


class PresentFleet:
    """Leaves out a node that the directory does not list and that has no stream.

    While the directory is too old, or was never read, nobody knows which these are: then all are
    here.
    """

    def __init__(
        self,
        fleet: Fleet,
        directory: NodeDirectory,
        is_connected: Callable[[str], bool],
        boottime_ns: Callable[[], int],
    ) -> None:
        self._fleet = fleet
        self._directory = directory
        self._is_connected = is_connected
        self._boottime_ns = boottime_ns
        self._made = _Made(EMPTY_FLEET, {}, frozenset(), frozenset(), EMPTY_FLEET)

    def snapshot(self) -> FleetSnapshot:
        """The fleet now; the same object until something changes."""
        fleet, directory, made = self._fleet.snapshot(), self._directory.snapshot(), self._made
        if self._boottime_ns() >= directory.fresh_until_ns:
            return fleet
        listed = directory.nodes
        is_same = fleet is made.whole and listed is made.listed
        absent = made.absent if is_same else frozenset(x for x in fleet.nodes if x not in listed)
        gone = frozenset(x for x in absent if not self._is_connected(x))
        if fleet is not made.whole or gone != made.gone:
            made = _Made(fleet, listed, absent, gone, _without(fleet, gone))
        elif not is_same:
            made = replace(made, listed=listed, absent=absent)
        self._made = made
        return made.left

    def subscribe(self, notify: Callable[[], None], /) -> Callable[[], None]:
        """As the verified fleet; the directory is read with each change."""
        return self._fleet.subscribe(notify)


@dataclass(frozen=True, slots=True)
class _Made:
    whole: FleetSnapshot
    listed: Mapping[str, object]
    """By the directory."""
    absent: frozenset[str]
    """From the directory."""
    gone: frozenset[str]
    left: FleetSnapshot


def _without(fleet: FleetSnapshot, gone: frozenset[str]) -> FleetSnapshot:
    if not gone:
        return fleet
    nodes = {name: node for name, node in fleet.nodes.items() if name not in gone}
    by_hash = {
        digest: left
        for digest, names in fleet.nodes_by_hash.items()
        if (left := names if names.isdisjoint(gone) else names - gone)
    }
    return FleetSnapshot(nodes, by_hash, fleet.version)
