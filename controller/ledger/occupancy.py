"""Which GPUs are taken as one pod sees it: for /filter, the gate and the lists. Pure.

A pod's own open attempt does not stand in its way, and neither does a GPU that its share
group holds. One snapshot is worked through once; the same answer is the same object, so
that whoever remembers verdicts by it recognises it.
"""

from controller.ledger.record import Holder, ShareGroup
from controller.ledger.states import HolderState
from controller.ledger.store import Entry, LedgerSnapshot


class Occupancy:
    """One per snapshot."""

    def __init__(self, snapshot: LedgerSnapshot) -> None:
        self.snapshot = snapshot
        self._all = frozenset(x.record.gpu for x in snapshot.entries.values())
        self._by_group: dict[ShareGroup, frozenset[str]] = {}
        for entry in snapshot.entries.values():
            group = entry.record.share
            if group is not None:
                open_to = self._by_group.get(group, frozenset())
                self._by_group[group] = open_to | {entry.record.gpu}

    def busy(self) -> frozenset[str]:
        """UUIDs of all GPUs that somebody holds, whatever the state."""
        return self._all

    def busy_for(self, pod_uid: str | None, share: ShareGroup | None = None) -> frozenset[str]:
        """UUIDs that a pod cannot have: held by others, and not by its share group."""
        own = frozenset() if pod_uid is None else self._own_attempts(pod_uid)
        shared = frozenset() if share is None else self._by_group.get(share, frozenset())
        return self._all - own - shared if own or shared else self._all

    def on_node(self, node: str) -> tuple[Entry, ...]:
        """What is held on a node, by GPU; walks through all records."""
        found = (x for x in self.snapshot.entries.values() if x.record.node == node)
        return tuple(sorted(found, key=lambda x: x.record.key))

    def in_namespace(self, namespace: str) -> int:
        """Reserved GPUs of a namespace, unborn pods' included: what a quota counts."""
        return sum(
            holder.pod.namespace == namespace
            for entry in self.snapshot.entries.values()
            for holder in entry.record.holders
        )

    def unborn_of(self, namespace: str, owner: str) -> Holder | None:
        """The proposal that an owner's pod has not taken up yet; there may be one."""
        found = (
            holder
            for entry in self.snapshot.entries.values()
            for holder in entry.record.holders
            if (holder.pod.namespace, holder.pod.owner, holder.pod.uid) == (namespace, owner, None)
        )
        return min(found, key=lambda x: x.reservation, default=None)

    def _own_attempts(self, pod_uid: str) -> frozenset[str]:
        """A record with others in it stays taken."""
        return frozenset(
            entry.record.gpu
            for entry, holder in self.snapshot.parts_of(pod_uid)
            if holder.state is HolderState.PROPOSED and len(entry.record.holders) == 1
        )
