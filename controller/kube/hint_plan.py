"""Hint plan.

Holds: hint plan, wakeup queue.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controller.admission.mutation import hinted
from controller.admission.pod_view import AdmittedPod
from controller.fleet.enrollment import KnownNode
from controller.fleet.trust import ChangeKind, TrustChange
from controller.placement.texts import WishRules

# --- hint plan
# Which hint labels nodes should have, and what to change for that. Pure.
#
# A node has the label of a wish while a waiting pod with that wish would pass there. Whoever
# has no pod waiting any more is followed for a while, because pods of one wish come in series.

MOST_WISHES: Final = 64
"""So many labels of ours a node has at most."""
KEPT_NS_HINT_PLAN: Final = 60 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class LabelChange:
    """What changes about one node."""

    node: str
    add: frozenset[str]
    remove: frozenset[str]


@dataclass(slots=True)
class _Wish:
    pod: AdmittedPod
    """One that has it."""
    waited_ns: int


class HintPlan:
    """One per process; remembers the wishes that are followed."""

    def __init__(self, rules: WishRules) -> None:
        self._rules = rules
        self._wishes: dict[str, _Wish] = {}

    def __len__(self) -> int:
        return len(self._wishes)

    def follow(self, waiting: Iterable[AdmittedPod], now_ns: int) -> None:
        """Take up the wishes of the pods that wait now; there is no room for more than so many.

        Where room is short, one of the namespace that has most makes way for one that has fewer.
        """
        for pod in waiting:
            key = hinted(pod, self._rules)
            if key is not None and (key in self._wishes or self._has_room(pod)):
                self._wishes[key] = _Wish(pod, now_ns)
        for key, wish in tuple(self._wishes.items()):
            if now_ns - wish.waited_ns >= KEPT_NS_HINT_PLAN:
                del self._wishes[key]

    def _has_room(self, pod: AdmittedPod) -> bool:
        if len(self._wishes) < MOST_WISHES:
            return True
        counts = Counter(wish.pod.metadata.namespace for wish in self._wishes.values())
        (most, count), *_ = counts.most_common(1)
        if count <= counts[pod.metadata.namespace] + 1:
            return False
        last = next(x for x in reversed(self._wishes) if self._of(x) == most)
        del self._wishes[last]
        return True

    def _of(self, key: str) -> str | None:
        return self._wishes[key].pod.metadata.namespace

    def changes(
        self, nodes: Mapping[str, KnownNode], passing: Callable[[AdmittedPod], Iterable[str]]
    ) -> list[LabelChange]:
        """What to change, first of all where a label is wrong: a scheduler may be at it now."""
        wanted: dict[str, set[str]] = {}
        for key, wish in self._wishes.items():
            for node in passing(wish.pod):
                wanted.setdefault(node, set()).add(key)
        found = [
            LabelChange(name, frozenset(keys - node.hints), node.hints - keys)
            for name, node in nodes.items()
            if node.hints != (keys := wanted.get(name, set()))
        ]
        return sorted(found, key=lambda change: not change.remove)


# --- wakeup queue
# Nodes that pods may go to again and that nobody has touched yet. Pure.
#
# kube-scheduler looks at a pod that an extender rejected only when some event may help it: a
# changed label, annotation or new condition of a node is one, better evidence is none. A
# touch is due while guarded pods wait. Few are made in a second: each wakes every such pod.

_SECOND: Final = 1_000_000_000
KEPT_NS_WAKEUP_QUEUE: Final = 15 * _SECOND
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
            if now_ns - since_ns < KEPT_NS_WAKEUP_QUEUE:
                return
            del self._since[node]
