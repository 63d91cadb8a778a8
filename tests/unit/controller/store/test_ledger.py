"""The ledger in SQLite: the contract, several stores on one file, and what a file may hold."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controller.fleet.enrollment import EnrollmentRecord
from controller.ledger.record import HolderState
from controller.ledger.store import LedgerStore, LedgerUnavailableError
from controller.store.documents import RecordInvalidError, decode_reservation, encode_reservation
from controller.store.enrollments import SqliteEnrollmentStore
from controller.store.ledger import SqliteLedgerStore
from controller.store.sqlite import FRESH_NS
from tests.builders.ledger import holder, record
from tests.contracts.ledger_store import FULL, ID, LedgerStoreContract, entry
from tests.fakes.clock import FakeClock

Opened = Callable[..., SqliteLedgerStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
async def opened(path: Path) -> AsyncIterator[Opened]:
    """Makes stores on the one file; closes them all."""
    stores = []

    def make(clock: FakeClock | None = None) -> SqliteLedgerStore:
        stores.append(SqliteLedgerStore(path, clock or FakeClock()))
        return stores[-1]

    yield make
    for store in stores:
        await store.close()


class TestSqliteLedgerStore(LedgerStoreContract):
    @pytest.fixture
    async def store(self, opened: Opened) -> LedgerStore:
        store = opened()
        await store.load()
        return store


class TestSeveralStores:
    async def test_what_one_writes_the_other_reads(self, opened: Opened) -> None:
        here, there = opened(), opened()
        await there.load()
        assert await here.compare_and_set(None, record())
        assert there.snapshot().get("GPU-a") is None
        assert await there.read("GPU-a") == entry(there) == entry(here)
        first = entry(there)
        assert await there.compare_and_set(first, first.record.moved(ID, HolderState.EXPIRED))
        assert entry(here) == first
        assert await here.read("GPU-a") is None
        assert dict((await here.load()).entries) == {}

    async def test_a_refused_writer_knows_what_is_there(self, opened: Opened) -> None:
        here, there = opened(), opened()
        await there.load()
        await here.compare_and_set(None, record())
        assert not await there.compare_and_set(None, record(holder(answers=7)))
        assert entry(there) == entry(here)
        first = entry(there)
        await here.compare_and_set(first, first.record.moved(ID, HolderState.CONFIRMED))
        await here.compare_and_set(entry(here), entry(here).record.moved(ID, HolderState.RELEASING))
        await here.compare_and_set(entry(here), entry(here).record.moved(ID, HolderState.RELEASED))
        assert not await there.compare_and_set(first, first.record.moved(ID, HolderState.EXPIRED))
        assert there.snapshot().get("GPU-a") is None

    async def test_everything_is_there_after_all_have_closed(self, opened: Opened) -> None:
        first = opened()
        await first.compare_and_set(None, FULL)
        await first.close()
        assert (await opened().load()).entries["gpu-a"].record == FULL

    async def test_many_are_read_at_once(self, opened: Opened) -> None:
        here, there = opened(), opened()
        names = [f"GPU-{n:03}" for n in range(100)]
        for name in names:
            await here.compare_and_set(None, record(holder(name), gpu=name))
        assert len((await there.load()).entries) == 100
        assert there.snapshot().by_pod["uid-0"] == tuple(x.lower() for x in names)
        for name in names:
            await here.compare_and_set(
                entry(here, name), entry(here, name).record.moved(ID, HolderState.EXPIRED)
            )
        assert dict((await there.load()).entries) == {}
        assert dict(there.snapshot().by_pod) == {}

    async def test_the_enrolments_live_in_the_same_file(self, opened: Opened, path: Path) -> None:
        other = SqliteEnrollmentStore(path, FakeClock())
        store = opened()
        assert await other.create_if_absent(EnrollmentRecord("gpu-1"))
        assert await store.compare_and_set(None, record())
        assert len((await other.load()).records) == len((await store.load()).entries) == 1
        await other.close()


class TestFreshness:
    async def test_a_snapshot_counts_from_the_read_that_confirmed_it(self, opened: Opened) -> None:
        clock = FakeClock()
        store = opened(clock)
        assert store.snapshot().fresh_until_ns == 0
        begun = clock.boottime_ns()
        assert (await store.load()).fresh_until_ns == begun + FRESH_NS


class TestTheFile:
    @pytest.mark.parametrize(
        "edit",
        [
            "UPDATE reservation SET record = '{}', generation = 2",
            "UPDATE reservation SET record = replace(record, 'Proposed', 'Free'), generation = 2",
            "UPDATE reservation SET gpu = 'gpu-b', generation = 2",
            "UPDATE reservation SET record = record || ' ', generation = 2",
            "UPDATE reservation SET record = replace(record, '\"version\":1', '\"version\":0')",
        ],
    )
    async def test_a_row_that_is_no_record_stops_the_store(
        self, opened: Opened, path: Path, edit: str
    ) -> None:
        await opened().compare_and_set(None, record())
        _sql(path, edit, "UPDATE component SET generation = 2 WHERE name = 'ledger'")
        with pytest.raises(LedgerUnavailableError, match="reservation of 'gpu-"):
            await opened().load()

    async def test_an_older_copy_or_a_lost_table_does_not_count(
        self, opened: Opened, path: Path
    ) -> None:
        store = opened()
        await store.compare_and_set(None, record())
        _sql(path, "UPDATE component SET generation = 0 WHERE name = 'ledger'")
        with pytest.raises(LedgerUnavailableError, match="older copy"):
            await store.load()
        _sql(path, "DELETE FROM component WHERE name = 'ledger'")
        with pytest.raises(LedgerUnavailableError, match="gone"):
            await store.read("GPU-a")

    async def test_a_write_that_fails_counts_as_none(self, opened: Opened, path: Path) -> None:
        store = opened()
        await store.load()
        _sql(path, "ALTER TABLE reservation RENAME TO elsewhere")
        with pytest.raises(LedgerUnavailableError, match="no such table"):
            await store.compare_and_set(None, record())
        _sql(path, "ALTER TABLE elsewhere RENAME TO reservation")
        assert await store.compare_and_set(None, record())


class TestTheText:
    def test_it_comes_back(self) -> None:
        assert decode_reservation(encode_reservation(FULL)) == FULL

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "{}",
            encode_reservation(replace(FULL, version=0)),
            encode_reservation(FULL).replace('"version":1', '"version":true'),
            encode_reservation(FULL).replace('"version":1', '"version":1,"new":1'),
            encode_reservation(FULL) + "\n",
            "[" * 100_000,
        ],
    )
    def test_anything_else_is_refused(self, text: str) -> None:
        with pytest.raises(RecordInvalidError):
            decode_reservation(text)


def _sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()
