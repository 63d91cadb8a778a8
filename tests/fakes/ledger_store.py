"""LedgerStores for tests: records in memory, and one that loses answers.

`MemoryLedgerStore` is one store that several replicas may use. `ReplicaLedgerStore` gives a
replica a copy of its own, which knows what the replica wrote and read.
"""

from collections.abc import Awaitable, Callable

from controller.ledger.record import GpuRecord
from controller.ledger.store import (
    Entry,
    LedgerSnapshot,
    LedgerStore,
    LedgerUnavailableError,
    demand_successor,
)

Meanwhile = Callable[[], Awaitable[object]]


class MemoryLedgerStore:
    """Implements LedgerStore; all that it knows is its snapshot."""

    def __init__(self) -> None:
        self._snapshot = LedgerSnapshot()
        self._writes = 0

    async def load(self) -> LedgerSnapshot:
        return self._snapshot

    def snapshot(self) -> LedgerSnapshot:
        return self._snapshot

    async def read(self, gpu: str) -> Entry | None:
        return self._snapshot.get(gpu)

    async def compare_and_set(self, old: Entry | None, new: GpuRecord) -> bool:
        demand_successor(old, new)
        if self._snapshot.get(new.gpu) != old:
            return False
        self._writes += 1
        entry = None if new.is_closed else Entry(new, str(self._writes))
        self._snapshot = self._snapshot.with_entry(new.key, entry)
        return True


class ReplicaLedgerStore:
    """Implements LedgerStore over a shared one: what others write is unknown until it is read."""

    def __init__(self, shared: LedgerStore) -> None:
        self._shared = shared
        self._snapshot = LedgerSnapshot()

    async def load(self) -> LedgerSnapshot:
        self._snapshot = await self._shared.load()
        return self._snapshot

    def snapshot(self) -> LedgerSnapshot:
        return self._snapshot

    async def read(self, gpu: str) -> Entry | None:
        entry = await self._shared.read(gpu)
        self._snapshot = self._snapshot.with_entry(gpu.lower(), entry)
        return entry

    async def compare_and_set(self, old: Entry | None, new: GpuRecord) -> bool:
        done = await self._shared.compare_and_set(old, new)
        self._snapshot = self._snapshot.with_entry(new.key, self._shared.snapshot().get(new.gpu))
        return done


class FaultyLedgerStore:
    """`faults` are used up one per write: `before` (not done), `after` (done), or `ok`."""

    def __init__(self, store: LedgerStore, *faults: str) -> None:
        self._store = store
        self.faults = list(faults)
        self.is_dead = False
        self.meanwhile: dict[int, Meanwhile] = {}
        """What others do just before the n-th write."""
        self.writes: list[tuple[str, bool]] = []
        """GPU, and whether the record was closed."""

    async def load(self) -> LedgerSnapshot:
        return await self._store.load()

    def snapshot(self) -> LedgerSnapshot:
        return self._store.snapshot()

    async def read(self, gpu: str) -> Entry | None:
        if self.is_dead:
            raise LedgerUnavailableError("the store is dead")
        return await self._store.read(gpu)

    async def compare_and_set(self, old: Entry | None, new: GpuRecord) -> bool:
        if meanwhile := self.meanwhile.pop(len(self.writes), None):
            await meanwhile()
        self.writes.append((new.gpu, new.is_closed))
        fault = "before" if self.is_dead else self.faults.pop(0) if self.faults else "ok"
        if fault == "before":
            raise LedgerUnavailableError("no answer")
        done = await self._store.compare_and_set(old, new)
        if fault == "after":
            raise LedgerUnavailableError("no answer")
        return done
