"""Holders whose pods are not bound as the ledger says: the API server's history went back. Pure.

Bound is final for a pod, so one that was confirmed and is found unbound, or bound under another
reservation, was put back together with everything that the API server knows. Its containers
of before may run on; so the holder is let go as that of a pod that has gone: not before its
node shows that nothing is left. The copy alone proves nothing, it may lag: the pod is touched
first, which also makes every older Binding of it fail.
"""

from collections.abc import Iterator
from typing import Final

from controller.ledger.pods import PodGone, PodSeen, PodSight, is_over
from controller.ledger.record import Holder
from controller.ledger.store import LedgerSnapshot

APART_NS: Final = 15 * 1_000_000_000
"""A copy that lags shows a confirmed pod unbound for a moment; only later its pod is touched."""


class Apart:
    """One per process, by reservation."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Holder, int]] = {}
        """Seen apart by the copy, and since when."""
        self._proven: set[str] = set()

    def sight(self, holder: Holder, sight: PodSight, now_ns: int) -> PodSight:
        """What is known of the pod as this holder: gone, where it has proven to be apart."""
        if not _is_apart(holder.reservation, sight):
            self._seen.pop(holder.reservation, None)
            self._proven.discard(holder.reservation)
            return sight
        if holder.reservation in self._proven:
            return PodGone()
        self._seen.setdefault(holder.reservation, (holder, now_ns))
        return sight

    def touched(self, reservation: str, answer: PodSeen | PodGone) -> None:
        """What the API server itself answered."""
        if reservation in self._seen and _is_apart(reservation, answer):
            self._proven.add(reservation)

    def due(self, snapshot: LedgerSnapshot, now_ns: int) -> Iterator[Holder]:
        """Whose pods are to be touched now; each again after as long, until it is answered."""
        self._seen = {k: x for k, x in self._seen.items() if k in snapshot.by_reservation}
        self._proven &= self._seen.keys()
        for reservation, (holder, since_ns) in self._seen.items():
            if reservation not in self._proven and now_ns - since_ns >= APART_NS:
                self._seen[reservation] = (holder, now_ns)
                yield holder


def _is_apart(reservation: str, sight: PodSight) -> bool:
    """A pod that waits may have its reservation early; one that kubelet gave its GPUs has none."""
    if not isinstance(sight, PodSeen) or is_over(sight):
        return False
    return sight.reservation != reservation and (not sight.node or sight.reservation is not None)
