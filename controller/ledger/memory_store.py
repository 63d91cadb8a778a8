"""LedgerStore in memory: for tests, and for a laptop that forgets with the process."""

from controller.ledger.record import GpuRecord
from controller.ledger.store import Entry, LedgerSnapshot, demand_successor


class MemoryLedgerStore:
    """Implements LedgerStore; all that it knows is its snapshot."""

    def __init__(self) -> None:
        self._snapshot = LedgerSnapshot()
        self._writes = 0

    async def load(self) -> LedgerSnapshot:
        """The records of this process."""
        return self._snapshot

    def snapshot(self) -> LedgerSnapshot:
        """The records of this process."""
        return self._snapshot

    async def read(self, gpu: str) -> Entry | None:
        """The entry of one GPU."""
        return self._snapshot.get(gpu)

    async def compare_and_set(self, old: Entry | None, new: GpuRecord) -> bool:
        """Replace, create or remove, as LedgerStore says."""
        demand_successor(old, new)
        if self._snapshot.get(new.gpu) != old:
            return False
        self._writes += 1
        entry = None if new.is_closed else Entry(new, str(self._writes))
        self._snapshot = self._snapshot.with_entry(new.key, entry)
        return True
