"""Nodes that pods may go to again and that nobody has touched yet. Pure.

kube-scheduler looks at a pod that an extender rejected only when some event may help it: a
changed label, annotation or new condition of a node is one, better evidence is none. A
touch is due while guarded pods wait. Few are made in a second: each wakes every such pod.
"""

from collections.abc import Iterable
from typing import Final

from controller.fleet.node_trust import ChangeKind, TrustChange

_SECOND: Final = 1_000_000_000
KEPT_NS: Final = 15 * _SECOND
"""How long a node is remembered while no pod waits: the copy of the pods may be behind."""
TOUCHES_PER_SECOND: Final = 10.0
BURST: Final = 20.0
_HELPS: Final = frozenset(
    {
        ChangeKind.FIRST_ACCEPTED,
        ChangeKind.RESTORED,
        ChangeKind.FACTS_CHANGED,
        ChangeKind.GPU_BACK,
    }
)


class WakeupQueue:
    """One per process."""

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._tokens = BURST
        self._filled_ns = 0

    def __len__(self) -> int:
        return len(self._since)

    def add(self, changes: Iterable[TrustChange], now_ns: int) -> None:
        """Take the nodes for which a pod may be let through now that was rejected before."""
        self.add_nodes((change.node for change in changes if change.kind in _HELPS), now_ns)

    def add_nodes(self, nodes: Iterable[str], now_ns: int) -> None:
        """Take nodes that have room again, or that a pod may be sent to again."""
        for node in nodes:
            self._since.pop(node, None)
            self._since[node] = now_ns

    def due(self, now_ns: int, *, pods_wait: bool) -> str | None:
        """The node to touch now, the one that waits longest; it stays until `done`."""
        self._fill(now_ns)
        if not pods_wait:
            self._forget(now_ns)
            return None
        if self._tokens < 1.0 or not self._since:
            return None
        self._tokens -= 1.0
        return next(iter(self._since))

    def done(self, node: str) -> None:
        """It was touched, or is gone."""
        self._since.pop(node, None)

    def _fill(self, now_ns: int) -> None:
        elapsed_s = max(0, now_ns - self._filled_ns) / _SECOND
        self._tokens = min(BURST, self._tokens + elapsed_s * TOUCHES_PER_SECOND)
        self._filled_ns = now_ns

    def _forget(self, now_ns: int) -> None:
        for node, since_ns in tuple(self._since.items()):
            if now_ns - since_ns < KEPT_NS:
                return
            del self._since[node]
