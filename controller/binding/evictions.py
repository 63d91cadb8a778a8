"""Whom to evict now, where the policy says that a pod must not keep a GPU it should not have. Pure.

Each such pod is asked for once; what was refused (a disruption budget, a server that is away) is
asked again after a while, for as long as the disagreement stands.
"""

from collections.abc import Iterable
from typing import Final

from controller.binding.use_faults import EVICTED_FOR, UseFault
from controller.ledger.record import PodRef

AGAIN_NS: Final = 30 * 1_000_000_000
AT_ONCE: Final = 4
"""Evictions of one round: a mistake that concerns everybody must not empty a cluster at once."""


class Evictions:
    """One per process."""

    def __init__(self) -> None:
        self._again_ns: dict[str, int | None] = {}
        """By pod UID: when to ask again; None where it was done."""

    def due(self, standing: Iterable[UseFault], now_ns: int) -> tuple[PodRef, ...]:
        """Pods to be evicted now."""
        found = {
            x.pod.uid: x.pod
            for x in standing
            if x.kind in EVICTED_FOR and x.pod is not None and x.pod.uid is not None
        }
        self._again_ns = {uid: at for uid, at in self._again_ns.items() if uid in found}
        due = [pod for uid, pod in sorted(found.items()) if self._is_due(uid, now_ns)]
        return tuple(due[:AT_ONCE])

    def asked(self, pod: PodRef, *, done: bool, now_ns: int) -> None:
        """What became of one."""
        self._again_ns[pod.uid or ""] = None if done else now_ns + AGAIN_NS

    def _is_due(self, uid: str, now_ns: int) -> bool:
        again_ns = self._again_ns.get(uid, now_ns)
        return again_ns is not None and again_ns <= now_ns
