"""The fleet as people ask for it: what was verified, and the nodes nothing was heard of yet.

A node that only the directory knows is shown as unknown, never as anything more.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Protocol

from controller.fleet.directory import DirectorySnapshot, NodeDirectory
from controller.fleet.view import EMPTY_FLEET, FleetSnapshot, NodeView
from controller.policy import Policy


class VerifiedFleet(Protocol):
    """The registry, as a reader sees it."""

    def snapshot(self) -> FleetSnapshot:
        """The fleet now."""

    def subscribe(self, notify: Callable[[], None], /) -> Callable[[], None]:
        """Call `notify` after each change; returns the way to stop that."""


class KnownFleet:
    """The verified fleet with the rest of the directory beside it."""

    def __init__(
        self, fleet: VerifiedFleet, directory: NodeDirectory, policy: Callable[[], Policy]
    ) -> None:
        self._fleet = fleet
        self._directory = directory
        self._policy = policy
        self._silent: dict[str, NodeView] = {}
        self._made: tuple[FleetSnapshot, DirectorySnapshot, Policy] | None = None
        self._snapshot = EMPTY_FLEET

    def snapshot(self) -> FleetSnapshot:
        """All nodes; made anew only when a source has changed."""
        sources = (self._fleet.snapshot(), self._directory.snapshot(), self._policy())
        if self._made is None or any(a is not b for a, b in zip(sources, self._made, strict=True)):
            self._snapshot = self._merge(*sources)
            self._made = sources
        return self._snapshot

    def subscribe(self, notify: Callable[[], None], /) -> Callable[[], None]:
        """As the verified fleet; the directory is looked at with each change."""
        return self._fleet.subscribe(notify)

    def _merge(
        self, fleet: FleetSnapshot, directory: DirectorySnapshot, policy: Policy
    ) -> FleetSnapshot:
        silent = {}
        for name in directory.nodes:
            if name not in fleet.nodes:
                silent[name] = self._silent_node(name, policy)
        self._silent = silent
        nodes = MappingProxyType({**silent, **fleet.nodes})
        return FleetSnapshot(nodes, fleet.nodes_by_hash, fleet.version)

    def _silent_node(self, name: str, policy: Policy) -> NodeView:
        """The same object as long as it says the same, so that watchers see no change."""
        mode = policy.mode(name)
        known = self._silent.get(name)
        if known is not None and known.mode is mode:
            return known
        return NodeView(name, acceptance=None, blocked=None, refusals=(), mode=mode)
