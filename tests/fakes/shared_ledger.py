"""A ledger that several replicas share, each through a store of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from controller.ledger.store import LedgerStore, MemoryLedgerStore
from controller.store.ledger import SqliteLedgerStore
from gpuwarden.clock import Clock

KINDS: Final = ("memory", "sqlite")
OpenLedger = Callable[[], LedgerStore]


@asynccontextmanager
async def shared_ledger(kind: str, folder: Path, clock: Clock) -> AsyncIterator[OpenLedger]:
    """Of one of KINDS; what each replica calls for its own store."""
    if kind == "memory":
        shared = MemoryLedgerStore()
        yield lambda: shared
        return
    handles: list[SqliteLedgerStore] = []

    def opened() -> LedgerStore:
        handles.append(SqliteLedgerStore(folder / "ledger.db", clock))
        return handles[-1]

    yield opened
    for handle in handles:
        await handle.close()
