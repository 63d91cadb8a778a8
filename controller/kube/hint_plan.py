"""Which hint labels nodes should have, and what to change for that. Pure.

A node has the label of a wish while a waiting pod with that wish would pass there. Whoever
has no pod waiting any more is followed for a while, because pods of one wish come in series.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controller.admission.hint import hinted
from controller.admission.pod_view import AdmittedPod
from controller.fleet.directory import KnownNode
from controller.scheduling.wish_keys import WishRules

MOST_WISHES: Final = 64
"""So many labels of ours a node has at most."""
KEPT_NS: Final = 60 * 1_000_000_000


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
            if now_ns - wish.waited_ns >= KEPT_NS:
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
