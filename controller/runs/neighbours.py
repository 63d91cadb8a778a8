"""Which job types ran beside a pod on its node, and whether for long enough to count."""

from dataclasses import dataclass
from typing import Final

MOST_ENDED: Final = 512
"""Ended runs of a node that are remembered beside one that still runs."""
MOST_TYPES: Final = 64
"""The scorer hears of so many at most, the first by name."""


@dataclass(frozen=True, slots=True)
class Stay:
    """How long a pod with GPUs ran on its node; wall clock of that node."""

    job_type: str
    began_ns: int
    ended_ns: int | None = None
    """None while it runs."""


class Neighbours:
    """Pods with runs by node, and those that ended beside one that still runs.

    Used from one event loop. Its caller reports each pod again when its stay changes.
    """

    def __init__(self) -> None:
        self._stays: dict[str, dict[str, Stay]] = {}
        """By node with a pod that runs, then by pod UID, in the order of the last reports."""

    def put(self, node: str, uid: str, stay: Stay) -> None:
        """A pod runs, or has ended: whom it was beside is to be asked before."""
        there = self._stays.pop(node, {})
        there.pop(uid, None)
        there[uid] = stay
        first_ns = min((x.began_ns for x in there.values() if x.ended_ns is None), default=None)
        if first_ns is None:
            return  # no later run can have been beside these
        ended = [x for x, y in there.items() if y.ended_ns is not None and y.ended_ns > first_ns]
        kept = set(ended[-MOST_ENDED:])
        self._stays[node] = {x: y for x, y in there.items() if y.ended_ns is None or x in kept}

    def gone(self, node: str, uid: str, now_ns: int) -> None:
        """A pod is no more; if it still ran, it ended now."""
        stay = self._stays.get(node, {}).get(uid)
        if stay is not None and stay.ended_ns is None:
            self.put(node, uid, Stay(stay.job_type, stay.began_ns, now_ns))

    def beside(self, node: str, uid: str, began_ns: int, ended_ns: int) -> tuple[str, ...]:
        """Job types that ran on the node for half of that time or longer, without the pod."""
        shared: dict[str, list[tuple[int, int]]] = {}
        for other, stay in self._stays.get(node, {}).items():
            until_ns = ended_ns if stay.ended_ns is None else min(stay.ended_ns, ended_ns)
            since_ns = max(stay.began_ns, began_ns)
            if other != uid and since_ns < until_ns:
                shared.setdefault(stay.job_type, []).append((since_ns, until_ns))
        least_ns = (ended_ns - began_ns) / 2
        return tuple(sorted(x for x, spans in shared.items() if _length(spans) >= least_ns))[
            :MOST_TYPES
        ]


def _length(spans: list[tuple[int, int]]) -> int:
    """How long at least one of them lasted."""
    total = reached = 0
    for since, until in sorted(spans):
        total += max(0, until - max(since, reached))
        reached = max(reached, until)
    return total
