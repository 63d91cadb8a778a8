"""Which pods the gate has just turned away from which nodes. Pure, bounded.

/filter asks here, so that it sends a pod elsewhere instead of to the same denial again. What
is forgotten is told, so that a pod which has nowhere else to go is tried anew.
"""

from typing import Final

KEPT_NS: Final = 5 * 1_000_000_000
MOST: Final = 4096
"""Denials that are remembered; beyond, the oldest is forgotten first."""
NONE: Final[frozenset[str]] = frozenset()


class RecentDenials:
    """One per process; used from one event loop."""

    def __init__(self, *, kept_ns: int = KEPT_NS, most: int = MOST) -> None:
        self._kept_ns = kept_ns
        self._most = most
        self._until: dict[tuple[str, str], int] = {}
        """By pod UID and node, the oldest first: all are kept equally long."""
        self._by_pod: dict[str, frozenset[str]] = {}

    def __len__(self) -> int:
        return len(self._until)

    def add(self, pod_uid: str, node: str, now_ns: int) -> None:
        """The gate has denied the pod the node."""
        self._forget((pod_uid, node))
        while len(self._until) >= self._most:
            self._forget(next(iter(self._until)))
        self._until[pod_uid, node] = now_ns + self._kept_ns
        self._by_pod[pod_uid] = self._by_pod.get(pod_uid, NONE) | {node}

    def nodes(self, pod_uid: str, now_ns: int) -> frozenset[str]:
        """Nodes that the pod is not to be sent to now."""
        found = self._by_pod.get(pod_uid, NONE)
        return frozenset(x for x in found if self._until[pod_uid, x] > now_ns) if found else NONE

    def ended(self, now_ns: int) -> frozenset[str]:
        """Forget what is over; the nodes that it was about."""
        over = []
        for key, until_ns in self._until.items():
            if until_ns > now_ns:
                break
            over.append(key)
        for key in over:
            self._forget(key)
        return frozenset(node for _, node in over)

    def _forget(self, key: tuple[str, str]) -> None:
        if self._until.pop(key, None) is None:
            return
        uid, node = key
        left = self._by_pod[uid] - {node}
        if left:
            self._by_pod[uid] = left
        else:
            del self._by_pod[uid]
