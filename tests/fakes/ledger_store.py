"""A LedgerStore between a caller and a real one: loses answers, and lets others come first."""

from collections.abc import Awaitable, Callable

from controller.ledger.record import GpuRecord
from controller.ledger.store import Entry, LedgerSnapshot, LedgerStore, LedgerUnavailableError

Meanwhile = Callable[[], Awaitable[object]]


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
