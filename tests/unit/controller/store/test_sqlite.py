"""Opening the file: what a file system or another process can do to it meanwhile."""

import sqlite3
import threading
from pathlib import Path

import pytest

from controller.store import sqlite as sqlite_file
from controller.store.sqlite import Component, StoreError, open_store

THINGS = Component("things", 1, ("CREATE TABLE things (x)",))


def test_many_processes_may_make_it_at_once(tmp_path: Path) -> None:
    path, found = tmp_path / "ledger.db", []

    def open_it() -> None:
        file = open_store(path, THINGS)
        found.append((file.store_id, file.created))
        file.close()

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({store_id for store_id, _ in found}) == 1
    assert sorted(created for _, created in found) == [False] * 5 + [True]


def test_a_second_component_gets_its_tables(tmp_path: Path) -> None:
    open_store(tmp_path / "l.db", THINGS).close()
    other = open_store(tmp_path / "l.db", Component("others", 2, ("CREATE TABLE others (x)",)))
    assert not other.created
    assert other.connection.execute("SELECT * FROM others").fetchall() == []
    other.close()


def test_tables_are_made_all_or_none(tmp_path: Path) -> None:
    broken = Component("broken", 1, ("CREATE TABLE one (x)", "CREATE TABLE"))
    with pytest.raises(StoreError, match="incomplete"):
        open_store(tmp_path / "l.db", broken)
    file = open_store(tmp_path / "l.db", THINGS)
    assert file.created
    assert file.connection.execute(
        "SELECT count(*) FROM sqlite_master WHERE name = 'one'"
    ).fetchone() == (0,)
    file.close()


def test_a_path_of_odd_characters_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=memory&x#y %41.db"
    open_store(path, THINGS).close()
    assert [x.name for x in tmp_path.iterdir()] == [path.name]


def test_a_file_system_without_wal_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l.db"
    open_store(path, THINGS).close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM things").fetchall()
    monkeypatch.setattr(sqlite_file, "_WAL_TRIES", 2)
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.01)
    with pytest.raises(StoreError, match="locked"):
        open_store(path, THINGS)
    connection.close()
    open_store(path, THINGS).close()


def test_a_file_in_memory_has_no_wal() -> None:
    with pytest.raises(sqlite3.OperationalError, match="recorder mode is memory"):
        sqlite_file._prepare(sqlite3.connect(":memory:"))
