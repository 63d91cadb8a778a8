"""What one watcher of the fleet has not been told yet.

Compares snapshots by node, so that any number of changes to a node between two
looks is one message, and memory is bounded by the number of nodes, however slow
the watcher is. A lease that runs out changes a node without any event: `next_ns`
says when. Pure state; must not do IO nor read a clock.
"""

from dataclasses import dataclass, field

from controller.fleet.view import FleetSnapshot, NodeState, NodeView


@dataclass(frozen=True, slots=True)
class NodeChange:
    """`node` is None when the controller forgot it."""

    name: str
    node: NodeView | None


@dataclass(slots=True)
class NodeWatch:
    """Remembers per node the view and state that were told last."""

    _told: dict[str, tuple[NodeView, NodeState]] = field(default_factory=dict)

    def changes(self, fleet: FleetSnapshot, now_ns: int) -> list[NodeChange]:
        """Nodes that differ from what was told, sorted by name; counts them as told."""
        changed = []
        for name, node in fleet.nodes.items():
            state = node.state(now_ns)
            told = self._told.get(name)
            if told is None or told[0] is not node or told[1] is not state:
                self._told[name] = (node, state)
                changed.append(NodeChange(name, node))
        gone = [name for name in self._told if name not in fleet.nodes]
        for name in gone:
            del self._told[name]
            changed.append(NodeChange(name, None))
        return sorted(changed, key=lambda change: change.name)

    def next_ns(self) -> int | None:
        """When the next told lease runs out (CLOCK_BOOTTIME), or None."""
        return min(
            (
                node.acceptance.fresh_until_ns
                for node, state in self._told.values()
                if state is NodeState.ELIGIBLE and node.acceptance is not None
            ),
            default=None,
        )
