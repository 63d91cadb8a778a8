"""Which hint labels nodes should have, and what to change for that. Pure.

A node has the label of a wish while a waiting pod with that wish would pass there. Whoever
has no pod waiting any more is followed for a while, because pods of one wish come in series.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from controller.admission.hint import hinted
from controller.admission.pod_view import AdmittedPod
from controller.fleet.directory import KnownNode

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

    def __init__(self) -> None:
        self._wishes: dict[str, _Wish] = {}

    def __len__(self) -> int:
        return len(self._wishes)

    def follow(self, waiting: Iterable[AdmittedPod], now_ns: int) -> None:
        """Take up the wishes of the pods that wait now; there is no room for more than so many."""
        for pod in waiting:
            key = hinted(pod)
            if key is not None and (key in self._wishes or len(self._wishes) < MOST_WISHES):
                self._wishes[key] = _Wish(pod, now_ns)
        for key, wish in tuple(self._wishes.items()):
            if now_ns - wish.waited_ns >= KEPT_NS:
                del self._wishes[key]

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
