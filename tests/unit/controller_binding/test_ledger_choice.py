"""Reservations are kept where the enrolments are."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from controller.ledger.store import Entry, MemoryLedgerStore
from controller.settings import StoreKind, StoreSettings
from controller.store.ledger import SqliteLedgerStore
from controller.wiring.binding import choose_ledger
from tests.fakes.clock import FakeClock


class _Objects(MemoryLedgerStore):
    """As the cluster has them."""

    def take_replaced(self) -> tuple[Entry, ...]:
        return ()


CLUSTER: Any = SimpleNamespace(reservations=_Objects())


async def test_in_a_cluster_they_are_its_objects() -> None:
    for kind in (StoreKind.AUTO, StoreKind.KUBERNETES):
        chosen = choose_ledger(StoreSettings(kind=kind), FakeClock(), CLUSTER)
        assert chosen.store is CLUSTER.reservations
        await chosen.close()


async def test_otherwise_what_is_asked_for(tmp_path: Path) -> None:
    memory = choose_ledger(StoreSettings(kind=StoreKind.MEMORY), FakeClock(), CLUSTER)
    assert isinstance(memory.store, MemoryLedgerStore)
    assert memory.store is not CLUSTER.reservations
    path = tmp_path / "ledger.db"
    rows = choose_ledger(StoreSettings(kind=StoreKind.SQLITE, path=path), FakeClock(), CLUSTER)
    assert isinstance(rows.store, SqliteLedgerStore)
    await rows.store.load()
    await rows.close()
    assert path.exists()
