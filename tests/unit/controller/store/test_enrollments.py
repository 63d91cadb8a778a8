"""The SQLite store: the contract, several stores on one file, and every way the file can fail."""

import asyncio
import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controller.fleet.enrollment import (
    EnrollmentRecord,
    EnrollmentStore,
    EnrollmentUnavailableError,
    QuarantineEntry,
)
from controller.store import sqlite as file_thread
from controller.store.enrollments import SqliteEnrollmentStore, Write
from controller.store.sqlite import APPLICATION_ID, FRESH_NS, Request
from tests.contracts.enrollment_store import FULL, RELEASED, EnrollmentStoreContract
from tests.fakes.clock import FakeClock

Opened = Callable[..., SqliteEnrollmentStore]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
async def opened(path: Path) -> AsyncIterator[Opened]:
    """Makes stores on the one file; closes them all."""
    stores = []

    def make(clock: FakeClock | None = None, **limits: float) -> SqliteEnrollmentStore:
        stores.append(SqliteEnrollmentStore(path, clock or FakeClock(), **limits))  # type: ignore[arg-type] # passed on
        return stores[-1]

    yield make
    for store in stores:
        await store.close()


class TestSqliteEnrollmentStore(EnrollmentStoreContract):
    @pytest.fixture
    async def store(self, opened: Opened) -> EnrollmentStore:
        store = opened()
        await store.load()
        return store


class TestSeveralStores:
    async def test_what_one_writes_the_other_reads(self, opened: Opened) -> None:
        here, there = opened(), opened()
        await there.load()
        assert await here.create_if_absent(FULL)
        assert there.snapshot().records.get("gpu-1") is None
        assert (await there.load()).records["gpu-1"] == FULL
        assert (await there.load()).claims["GPU-a"][0].node == "gpu-1"

    async def test_a_write_by_an_old_record_loses_and_shows_the_new_one(
        self, opened: Opened
    ) -> None:
        here, there = opened(), opened()
        await here.create_if_absent(FULL)
        await there.load()
        denied = replace(FULL, denial=QuarantineEntry("X", "why", "who", 1))
        assert await here.compare_and_set(FULL, denied)
        assert not await there.compare_and_set(FULL, RELEASED)
        assert there.snapshot().records["gpu-1"] == denied

    async def test_everything_is_there_after_all_have_closed(self, opened: Opened) -> None:
        first = opened()
        await first.create_if_absent(FULL)
        await first.close()
        assert (await opened().load()).records["gpu-1"] == FULL

    async def test_a_new_store_says_that_it_is_new_and_an_emptied_one_is_another(
        self, opened: Opened, path: Path
    ) -> None:
        first = opened()
        await first.create_if_absent(FULL)
        again = opened()
        await again.load()
        assert first.facts is not None
        assert again.facts is not None
        assert (first.facts.created, again.facts.created) == (True, False)
        assert first.facts.store_id == again.facts.store_id
        assert again.facts.generation == 1
        await first.close()
        await again.close()
        _remove(path)
        emptied = opened()
        await emptied.load()
        assert emptied.facts is not None
        assert emptied.facts.store_id != first.facts.store_id


class TestFreshness:
    def test_nothing_counts_before_the_first_read(self, opened: Opened) -> None:
        assert opened().snapshot().fresh_until_ns == 0
        assert opened().facts is None

    async def test_a_snapshot_counts_from_the_read_that_confirmed_it(self, opened: Opened) -> None:
        clock = FakeClock()
        store = opened(clock)
        begun = clock.boottime_ns()
        assert (await store.load()).fresh_until_ns == begun + FRESH_NS
        clock.advance(3)
        assert store.snapshot().fresh_until_ns == begun + FRESH_NS
        assert (await store.load()).fresh_until_ns == clock.boottime_ns() + FRESH_NS

    async def test_a_failed_read_leaves_it_to_go_stale(self, opened: Opened, path: Path) -> None:
        clock = FakeClock()
        store = opened(clock)
        await store.create_if_absent(FULL)
        fresh_until = store.snapshot().fresh_until_ns
        _move(path, away := path.with_suffix(".away"))
        clock.advance(10)
        with pytest.raises(EnrollmentUnavailableError, match="was there before"):
            await store.load()
        assert store.snapshot().fresh_until_ns == fresh_until < clock.boottime_ns()
        _move(away, path)
        assert (await store.load()).fresh_until_ns > clock.boottime_ns()


class TestTheFile:
    async def test_it_is_the_owners_alone_with_everything_beside_it(
        self, opened: Opened, path: Path
    ) -> None:
        store = opened()
        await store.create_if_absent(FULL)
        found = {x.name: stat.S_IMODE(x.stat().st_mode) for x in path.parent.iterdir()}
        assert found == dict.fromkeys(("ledger.db", "ledger.db-wal", "ledger.db-shm"), 0o600)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700

    async def test_wider_rights_are_taken_back(self, opened: Opened, path: Path) -> None:
        await opened().load()
        _widen(path)
        await opened().load()
        assert _mode(path) == 0o600

    async def test_each_write_is_on_the_disk_before_it_counts(self, opened: Opened) -> None:
        store = opened()
        await store.load()
        assert store._thread._file is not None
        # Read on the store's own thread, where the connection belongs.
        seen: list[tuple[int, str]] = []
        worked = store._thread._worked

        def looking(requests: list[Request[Write]]) -> object:
            assert store._thread._file is not None
            ask = store._thread._file.connection.execute
            seen.append(
                (
                    ask("PRAGMA synchronous").fetchone()[0],
                    ask("PRAGMA journal_mode").fetchone()[0],
                )
            )
            return worked(requests)

        store._thread._worked = looking  # type: ignore[method-assign,assignment] # to look at it on its thread
        await store.load()
        assert seen == [(2, "wal")]

    @pytest.mark.parametrize(
        ("make", "says"),
        [
            (lambda p: p.mkdir(parents=True), "no regular file"),
            (lambda p: p.symlink_to("/dev/null"), "no regular file"),
            (lambda p: p.write_bytes(b"not a database, not at all" * 100), "not a database"),
            (lambda p: _sql(p, "CREATE TABLE theirs (x)"), "database of another program"),
            (lambda p: _tagged(p, 7), "database of another program"),
        ],
    )
    async def test_what_is_not_ours_is_refused(
        self, opened: Opened, path: Path, make: Callable[[Path], object], says: str
    ) -> None:
        path.parent.mkdir()
        make(path)
        with pytest.raises(EnrollmentUnavailableError, match=says):
            await opened().load()

    async def test_a_newer_version_is_refused(self, opened: Opened, path: Path) -> None:
        await opened().load()
        _sql(path, "UPDATE component SET version = 99")
        with pytest.raises(EnrollmentUnavailableError, match="version 99, this program knows 1"):
            await opened().load()

    async def test_it_shares_the_file_with_other_components(
        self, opened: Opened, path: Path
    ) -> None:
        await opened().create_if_absent(FULL)
        _sql(path, "CREATE TABLE ledger (x)", "INSERT INTO component VALUES ('ledger', 3, 0)")
        assert (await opened().load()).records["gpu-1"] == FULL

    @pytest.mark.parametrize(
        "edit",
        [
            "UPDATE enrollment SET record = '{}', generation = 2",
            "UPDATE enrollment SET record = replace(record, 'GPU-a', 'GPU-é'), node = 'gpu-9'",
            "UPDATE enrollment SET record = record || ' '",
            'UPDATE enrollment SET record = replace(record, \'"node"\', \'"new":1,"node"\')',
        ],
    )
    async def test_a_row_that_is_no_record_stops_the_store(
        self, opened: Opened, path: Path, edit: str
    ) -> None:
        await opened().create_if_absent(FULL)
        _sql(path, edit)
        with pytest.raises(EnrollmentUnavailableError, match="enrolment of 'gpu-"):
            await opened().load()

    async def test_a_damaged_file_is_found_at_the_start(self, opened: Opened, path: Path) -> None:
        store = opened()
        for number in range(200):
            await store.create_if_absent(replace(FULL, node=f"gpu-{number}"))
        await store.close()
        _damage(path)
        with pytest.raises(EnrollmentUnavailableError, match=r"damaged|malformed"):
            await opened().load()

    async def test_another_file_in_its_place_does_not_count(
        self, opened: Opened, path: Path, tmp_path: Path
    ) -> None:
        store = opened()
        await store.create_if_absent(FULL)
        other = SqliteEnrollmentStore(tmp_path / "other.db", FakeClock())
        await other.load()
        await other.close()
        (tmp_path / "other.db").replace(path)
        with pytest.raises(EnrollmentUnavailableError, match="another file"):
            await store.load()
        with pytest.raises(EnrollmentUnavailableError, match="another file"):
            await store.create_if_absent(EnrollmentRecord("gpu-2"))

    async def test_an_older_generation_does_not_count(self, opened: Opened, path: Path) -> None:
        store = opened()
        await store.create_if_absent(FULL)
        _sql(path, "UPDATE component SET generation = 0")
        with pytest.raises(EnrollmentUnavailableError, match="older copy"):
            await store.load()

    async def test_a_lost_table_does_not_count(self, opened: Opened, path: Path) -> None:
        store = opened()
        await store.create_if_absent(FULL)
        _sql(path, "DELETE FROM component")
        with pytest.raises(EnrollmentUnavailableError, match="gone"):
            await store.load()

    async def test_a_full_file_refuses_the_write_and_goes_on_reading(self, opened: Opened) -> None:
        store = opened()
        await store.create_if_absent(FULL)
        await _pragma(store, "PRAGMA max_page_count = 1")
        big = EnrollmentRecord("gpu-2", superseded=tuple("f" * 32 for _ in range(2000)))
        with pytest.raises(EnrollmentUnavailableError, match="full"):
            await store.create_if_absent(big)
        assert dict((await store.load()).records) == {"gpu-1": FULL}

    async def test_a_read_only_file_refuses_the_write_and_goes_on_reading(
        self, opened: Opened
    ) -> None:
        store = opened()
        await store.create_if_absent(FULL)
        await _pragma(store, "PRAGMA query_only = ON")
        with pytest.raises(EnrollmentUnavailableError, match="readonly"):
            await store.compare_and_set(FULL, RELEASED)
        assert (await store.load()).records["gpu-1"] == FULL

    async def test_a_folder_that_cannot_be_had_is_named(self) -> None:
        store = SqliteEnrollmentStore(Path("/proc/none/ledger.db"), FakeClock())
        with pytest.raises(EnrollmentUnavailableError, match=r"/proc/none/ledger\.db"):
            await store.load()
        await store.close()


class TestWaiting:
    async def test_a_lock_that_is_held_is_waited_for_no_longer_than_the_deadline(
        self, opened: Opened, path: Path
    ) -> None:
        store = opened(call_seconds=0.05)
        await opened().load()
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(EnrollmentUnavailableError, match=r"within 0\.05 s"):
            await store.create_if_absent(FULL)
        holder.execute("ROLLBACK")
        holder.close()
        patient = opened()
        await patient.load()

    async def test_a_lock_that_never_ends_is_said_to_be_one(
        self, opened: Opened, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("controller.store.sqlite.BUSY_SECONDS", 0.01)
        store = opened()
        await store.load()
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(EnrollmentUnavailableError, match="locked"):
            await store.create_if_absent(FULL)
        assert dict((await store.load()).records) == {}
        holder.execute("ROLLBACK")
        holder.close()
        assert await store.create_if_absent(FULL)

    async def test_readers_at_the_same_time_share_one_read(self, opened: Opened) -> None:
        store = opened()
        await store.load()
        first, second = await asyncio.gather(store.load(), store.load())
        assert first is second

    async def test_too_many_requests_are_refused(
        self, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file_thread, "_MOST_WAITING", 1)
        store = opened()
        asked = [store.create_if_absent(replace(FULL, node=f"gpu-{n}")) for n in range(50)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        refused = [x for x in results if isinstance(x, EnrollmentUnavailableError)]
        assert refused
        assert "too many" in str(refused[0])

    async def test_closing_what_was_never_opened_is_nothing(self, opened: Opened) -> None:
        await opened().close()


async def _pragma(store: SqliteEnrollmentStore, text: str) -> None:
    """Run it on the store's thread, as its next request begins."""
    worked = store._thread._worked

    def once(requests: list[Request[Write]]) -> object:
        assert store._thread._file is not None
        store._thread._file.connection.execute(text)
        store._thread._worked = worked  # type: ignore[method-assign] # as before
        return worked(requests)

    store._thread._worked = once  # type: ignore[method-assign,assignment] # once
    await store.load()


def _sql(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def _move(source: Path, target: Path) -> None:
    source.rename(target)


def _remove(path: Path) -> None:
    path.unlink()


def _widen(path: Path) -> None:
    path.chmod(0o666)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 * 5 : 4096 * 8] = os.urandom(4096 * 3)
    path.write_bytes(content)


def _tagged(path: Path, number: int) -> None:
    assert number != APPLICATION_ID
    _sql(path, f"PRAGMA application_id = {number}")
