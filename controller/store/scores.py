"""What the scoring service has learned, in a SQLite file of its own.

One process writes a file: a lock beside it is held for as long as the process lives. A row, and
the id of a run that it has learned, count when their transaction is on disk.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from controller.scoring.learned import Row
from controller.store.learned_rows import (
    MOST_RUN_IDS,
    VERSION,
    InUseError,
    Learn,
    News,
    Rows,
    ScoresUnavailableError,
    encode_row,
    row_of,
)
from controller.store.sqlite import Component, FileThread, StoreError, StoreFile, open_store
from gpuwarden.clock import Clock

_OWNER_ONLY: Final = 0o600

SCORES: Final = Component(
    "score",
    VERSION,
    (
        """CREATE TABLE learned (
            kind TEXT NOT NULL, job_type TEXT NOT NULL, other TEXT NOT NULL, row TEXT NOT NULL,
            PRIMARY KEY (kind, job_type, other)
        ) WITHOUT ROWID""",
    ),
)
_RUN_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS run (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE)"
)
"""Made at the first reading: earlier versions made files without it, and leave it alone."""


class FileLock:
    """The right to write a file: a lock on `FILE.lock`, which the kernel ends with the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this process may write."""
        return self._descriptor is not None

    def take(self) -> None:
        """Take it, unless it is held already; raises InUseError, OSError."""
        if self._descriptor is not None:
            return
        real = self._path.resolve()
        real.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = real.with_name(f"{real.name}.lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            text = f"{self._path} is in use by another process ({lock} is locked)"
            raise InUseError(text) from None
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Let others write; the file of the lock stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class ScoreFile:
    """Implements `ScoreStore`. Opens the file at the first exchange."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._lock = FileLock(path)
        self._has_read = False
        """On the thread."""
        self._news = News()
        self._thread: FileThread[Rows, News | None] = FileThread(
            path, SCORES, self._work, self._take, clock=clock, unavailable=ScoresUnavailableError
        )

    def claim(self) -> None:
        """Let no other process write; raises InUseError, OSError."""
        self._lock.take()

    async def exchange(self, learn: Learn) -> None:
        """Give `learn` all there is the first time, and write its answer."""
        try:
            self._lock.take()
        except (InUseError, OSError) as error:
            raise ScoresUnavailableError(str(error)) from None
        await self._thread.answered(self._thread.ask(None))
        news, self._news = self._news, News()
        rows = learn(news)
        if rows.is_change:
            await self._thread.answered(self._thread.ask(rows))

    async def checkpoint(self) -> None:
        """Fold the write-ahead log into the file; raises ScoresUnavailableError."""
        await self._thread.answered(self._thread.ask(Rows(())))

    async def close(self) -> None:
        """Let what waits be written and close the file, unless it hangs."""
        await self._thread.close()
        self._lock.release()

    def _work(
        self, connection: sqlite3.Connection, jobs: list[Rows]
    ) -> tuple[list[bool], News | None]:
        """On the thread: an empty write asks for a checkpoint. All there is, the first time."""
        news = None if self._has_read else _all_news(connection)
        if any(job.is_change for job in jobs):
            write_all(connection, jobs)
        if not all(job.is_change for job in jobs):
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self._has_read = True
        return [True] * len(jobs), news

    def _take(self, _file: StoreFile, news: News | None, _read_ns: int) -> None:
        if news is not None:
            self._news = news


# --- export and import


def export_rows(path: Path) -> tuple[Row, ...]:
    """All rows of a file, also while a service writes it; raises OSError, StoreError."""
    with path.open("rb"):
        pass  # what is not there must not be made
    file = open_store(path, SCORES)
    try:
        return read_all(file.connection)
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {error}") from None
    finally:
        file.close()


def import_rows(path: Path, rows: Sequence[Row], *, replace: bool) -> None:
    """Make a file hold these rows and no others, or change nothing. Ids of runs stay.

    Raises InUseError, OSError, and StoreError: also for a file that has rows, unless `replace`.
    """
    lock = FileLock(path)
    lock.take()
    try:
        file = open_store(path, SCORES)
        try:
            before = read_all(file.connection)
            if before and not replace:
                raise StoreError(f"{path} has {len(before)} rows; --replace takes their place")
            write_all(file.connection, [Rows(tuple(rows), tuple(row.key for row in before))])
        finally:
            file.close()
    except sqlite3.Error as error:
        raise StoreError(f"{path}: {error}") from None
    finally:
        lock.release()


# --- the tables


def _all_news(connection: sqlite3.Connection) -> News:
    connection.execute(_RUN_TABLE)
    ids = connection.execute("SELECT id FROM run ORDER BY number").fetchall()
    return News(read_all(connection), run_ids=tuple(x for (x,) in ids), is_whole=True)


def read_all(connection: sqlite3.Connection) -> tuple[Row, ...]:
    """All rows; raises sqlite3.Error, StoreError."""
    found = connection.execute("SELECT kind, job_type, other, row FROM learned").fetchall()
    return tuple(row_of(*columns) for columns in found)


def write_all(connection: sqlite3.Connection, writes: Iterable[Rows]) -> None:
    """Do the writes in order in one durable transaction, or none; raises sqlite3.Error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for write in writes:
            connection.executemany(
                "DELETE FROM learned WHERE kind = ? AND job_type = ? AND other = ?",
                [(x.kind.value, x.job_type, x.other) for x in write.removed],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO learned VALUES (?, ?, ?, ?)",
                [(x.kind.value, x.job_type, x.other, encode_row(x)) for x in write.written],
            )
            if write.run_ids:  # a write whose answer was lost is repeated: an id may be there
                connection.executemany(
                    "INSERT OR IGNORE INTO run (id) VALUES (?)", [(x,) for x in write.run_ids]
                )
                connection.execute(
                    "DELETE FROM run WHERE number <= (SELECT max(number) FROM run) - ?",
                    (MOST_RUN_IDS,),
                )
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
