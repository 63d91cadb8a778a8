"""Which store the settings give."""

from pathlib import Path

import pytest

from controller.fleet.enrollment import MemoryEnrollmentStore
from controller.settings import StoreKind, StoreSettings
from controller.store.enrollments import SqliteEnrollmentStore
from controller.wiring.stores import StoreKindError, choose_store
from tests.contracts.enrollment_store import FULL
from tests.fakes.clock import FakeClock


async def test_sqlite_unless_told_otherwise(tmp_path: Path) -> None:
    assert StoreSettings().kind is StoreKind.AUTO
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


@pytest.mark.parametrize("kind", [StoreKind.AUTO, StoreKind.KUBERNETES])
async def test_the_clusters_where_there_is_one(kind: StoreKind) -> None:
    resources = MemoryEnrollmentStore()
    chosen = choose_store(StoreSettings(kind=kind), FakeClock(), resources)
    assert chosen.store is resources
    assert chosen.facts() == {"kind": "kubernetes"}
    assert chosen.may_come_later
    await chosen.close()


@pytest.mark.parametrize("kind", [StoreKind.SQLITE, StoreKind.MEMORY])
def test_no_other_one_where_there_is_a_cluster(kind: StoreKind) -> None:
    """It would be this replica's alone, and so would its reservations."""
    with pytest.raises(StoreKindError) as caught:
        choose_store(StoreSettings(kind=kind), FakeClock(), MemoryEnrollmentStore())
    text = str(caught.value)
    assert text.startswith(f"store.kind: got {kind.value}; expected auto or kubernetes where")
    assert "remove store.kind" in text


def test_no_cluster_no_resources() -> None:
    with pytest.raises(StoreKindError, match="got kubernetes; expected auto, sqlite or memory"):
        choose_store(StoreSettings(kind=StoreKind.KUBERNETES), FakeClock())
