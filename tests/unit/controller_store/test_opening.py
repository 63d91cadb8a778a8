"""Which store the settings give."""

from pathlib import Path

from controller.fleet.enrollment import MemoryEnrollmentStore
from controller.settings import StoreKind, StoreSettings
from controller.store.opening import choose_store
from controller.store.sqlite_enrollment import SqliteEnrollmentStore
from tests.contracts.enrollment_store import FULL
from tests.fakes.clock import FakeClock


async def test_sqlite_unless_told_otherwise(tmp_path: Path) -> None:
    assert StoreSettings().kind is StoreKind.SQLITE
    assert StoreSettings().path == Path("/var/lib/gpuwarden/ledger.db")
    chosen = choose_store(StoreSettings(path=tmp_path / "l.db"), FakeClock())
    assert isinstance(chosen.store, SqliteEnrollmentStore)
    assert chosen.facts() == {"kind": "sqlite"}
    await chosen.store.create_if_absent(FULL)
    facts = chosen.facts()
    assert len(str(facts["store_id"])) == 32
    assert (facts["created"], facts["generation"]) == (True, 1)
    await chosen.close()


async def test_memory_on_request() -> None:
    chosen = choose_store(StoreSettings(kind=StoreKind.MEMORY), FakeClock())
    assert isinstance(chosen.store, MemoryEnrollmentStore)
    assert chosen.facts() == {"kind": "memory"}
    await chosen.close()
