"""Which GPUs are taken as one pod sees it: for /filter, the gate and the lists. Pure.

A pod's own open attempt does not stand in its way, and neither does a GPU that its share
group holds. One snapshot is worked through once; the same answer is the same object, so
that whoever remembers verdicts by it recognises it.
"""

from collections.abc import Iterable, Mapping

from controller.ledger.pod_use import Holders
from controller.ledger.record import GpuRecord, PodRef, ShareGroup
from controller.ledger.states import HolderState
from controller.ledger.store import LedgerSnapshot


class Occupancy:
    """One per snapshot; `then` makes the next one from it, which costs little."""

    __slots__ = ("_all", "_by_group", "_claimed", "_edition", "snapshot")

    def __init__(self, snapshot: LedgerSnapshot) -> None:
        self.snapshot = snapshot
        self._all = frozenset(x.record.gpu for x in snapshot.entries.values())
        claimed = _claimed(x.record for x in snapshot.entries.values())
        self._claimed = self._all if claimed == self._all else claimed
        self._by_group = _grouped(x.record for x in snapshot.entries.values())
        self._edition = 0

    def then(self, snapshot: LedgerSnapshot) -> "Occupancy":
        """That of a later snapshot: the same answers where the same GPUs are held."""
        before, now = self.snapshot.entries, snapshot.entries
        old, new = set[GpuRecord](), set[GpuRecord]()
        for key in now.differences(before):
            old |= {x.record for x in (before.get(key),) if x is not None}
            new |= {x.record for x in (now.get(key),) if x is not None}
        made = Occupancy.__new__(Occupancy)
        made.snapshot = snapshot
        was, held = frozenset(x.gpu for x in old), frozenset(x.gpu for x in new)
        made._all = self._all if was == held else (self._all - was) | held  # noqa: SLF001 - a new one of our own
        made._claimed = self._claimed_after(old, new, made._all)  # noqa: SLF001 - a new one of our own
        made._edition = self._edition + _changes_hands(old, new)  # noqa: SLF001 - a new one of our own
        made._by_group = self._by_group  # noqa: SLF001 - same
        if any(x.share is not None for x in old | new):
            made._by_group = _grouped(x.record for x in now.values())  # noqa: SLF001 - same
        return made

    def busy(self) -> frozenset[str]:
        """UUIDs of all GPUs that somebody holds, whatever the state."""
        return self._all

    def claimed(self) -> frozenset[str]:
        """UUIDs of the GPUs that pods have by claims, and that kubelet knows nothing of."""
        return self._claimed

    def holders(self) -> Holders:
        """Whom they are held for."""
        return Holders(self.snapshot.entries, self._edition)

    def busy_for(self, pod_uid: str | None, share: ShareGroup | None = None) -> frozenset[str]:
        """UUIDs that a pod cannot have: held by others, and not by its share group."""
        own = frozenset() if pod_uid is None else self._own_attempts(pod_uid)
        shared = frozenset() if share is None else self._by_group.get(share, frozenset())
        return self._all - own - shared if own or shared else self._all

    def _claimed_after(
        self, old: set[GpuRecord], new: set[GpuRecord], held: frozenset[str]
    ) -> frozenset[str]:
        """Of a fleet whose every GPU is claimed this is what is held: one set, not made twice."""
        was, now = _claimed(old), _claimed(new)
        if self._claimed is self._all and len(was) == len(old) and len(now) == len(new):
            return held
        return self._claimed if was == now else (self._claimed - was) | now

    def _own_attempts(self, pod_uid: str) -> frozenset[str]:
        """A record with others in it stays taken."""
        return frozenset(
            entry.record.gpu
            for entry, holder in self.snapshot.parts_of(pod_uid)
            if holder.state is HolderState.PROPOSED and len(entry.record.holders) == 1
        )


def _changes_hands(old: Iterable[GpuRecord], new: Iterable[GpuRecord]) -> bool:
    """Whether a GPU that stays held has other pods than before."""
    before = {x.gpu: _pods(x) for x in old}
    return any(before.get(x.gpu, _pods(x)) != _pods(x) for x in new)


def _pods(record: GpuRecord) -> frozenset[PodRef]:
    return frozenset(x.pod for x in record.holders)


def _claimed(records: Iterable[GpuRecord]) -> frozenset[str]:
    return frozenset(x.gpu for x in records if x.is_claimed)


def _grouped(records: Iterable[GpuRecord]) -> Mapping[ShareGroup, frozenset[str]]:
    found: dict[ShareGroup, set[str]] = {}
    for record in records:
        if record.share is not None and record.is_shared_by(record.share):
            found.setdefault(record.share, set()).add(record.gpu)
    return {group: frozenset(gpus) for group, gpus in found.items()}
