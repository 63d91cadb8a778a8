"""Opens a SQLite file and serves it on one thread.

Must not know what the tables of a component mean.
"""

import asyncio
import contextlib
import os
import queue
import secrets
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar
from urllib.parse import quote

from gpuwarden.clock import Clock

# --- the file
# Durable and strict: WAL, `synchronous=FULL`, mode 0600, integrity checked once. A file of
# another program or of a newer version is refused. A connection belongs to the thread that opened
# it.

APPLICATION_ID: Final = 0x67707577
"""`gpuw`: what makes a SQLite file ours."""
BUSY_SECONDS: Final = 1.0
"""How long another process's transaction is waited for."""
_OWNER_ONLY: Final = 0o600
_WAL_TRIES: Final = 50
_WAL_PAUSE: Final = 0.02

_TABLES: Final = (
    "CREATE TABLE store (id TEXT NOT NULL)",
    """CREATE TABLE component (
        name TEXT PRIMARY KEY, version INTEGER NOT NULL, generation INTEGER NOT NULL
    ) WITHOUT ROWID""",
)


class StoreError(Exception):
    """The file cannot be used now; says which and why."""


@dataclass(frozen=True, slots=True)
class Component:
    """One user of the file: its tables, and the version of what stands in them."""

    name: str
    version: int
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreFile:
    """An open file; `connection` is in autocommit mode."""

    path: Path
    connection: sqlite3.Connection
    identity: tuple[int, int]
    """Device and inode."""
    store_id: str
    """Drawn when the file was made: an emptied store is another store."""
    created: bool

    def demand_same(self) -> None:
        """Raise StoreError unless the path still names the file that is open."""
        try:
            found = self.path.lstat()
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror}; it was there before") from None
        if (found.st_dev, found.st_ino) != self.identity:
            raise StoreError(f"{self.path} is another file than the one that was opened")

    def close(self) -> None:
        """Close; the last one to close folds the write-ahead log into the file."""
        self.connection.close()


def open_store(path: Path, component: Component) -> StoreFile:
    """Open `path`, make what is missing, and check it; raises StoreError."""
    try:
        identity = _claim(path)
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?mode=rw",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
        )
    except (OSError, sqlite3.Error) as error:
        raise _error(path, error) from None
    try:
        _prepare(connection)
        store_id, created = _migrate(path, connection, component)
        _check(path, connection)
    except sqlite3.Error as error:
        connection.close()
        raise _error(path, error) from None
    except StoreError:
        connection.close()
        raise
    return StoreFile(path, connection, identity, store_id, created)


def _claim(path: Path) -> tuple[int, int]:
    """Create the file for its owner alone, or make it so; never opens one that is in use.

    Closing any descriptor of a file drops all locks that this process holds on it.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _OWNER_ONLY))
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path} exists and is no regular file")
    if stat.S_IMODE(found.st_mode) != _OWNER_ONLY:
        path.chmod(_OWNER_ONLY)
    return found.st_dev, found.st_ino


def _prepare(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    for tries_left in reversed(range(_WAL_TRIES)):
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError:
            # Two processes that open a new file at once: this pragma does not wait by itself.
            if not tries_left:
                raise
            time.sleep(_WAL_PAUSE)
            continue
        if mode != "wal":
            raise sqlite3.OperationalError(f"recorder mode is {mode}, the file system lacks WAL")
        break
    connection.execute("PRAGMA synchronous = FULL")


def _migrate(path: Path, connection: sqlite3.Connection, component: Component) -> tuple[str, bool]:
    """Make the tables, all or none; the id of the store, and whether it is new."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        created = _demand_ours(path, connection)
        _demand_known(path, connection, component)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    (store_id,) = connection.execute("SELECT id FROM store").fetchone()
    return str(store_id), created


def _demand_ours(path: Path, connection: sqlite3.Connection) -> bool:
    (found,) = connection.execute("PRAGMA application_id").fetchone()
    if found == APPLICATION_ID:
        return False
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if found or tables:
        raise StoreError(f"{path} is a database of another program")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for table in _TABLES:
        connection.execute(table)
    connection.execute("INSERT INTO store VALUES (?)", (secrets.token_hex(16),))
    return True


def _demand_known(path: Path, connection: sqlite3.Connection, component: Component) -> None:
    row = connection.execute(
        "SELECT version FROM component WHERE name = ?", (component.name,)
    ).fetchone()
    if row is None:
        for table in component.tables:
            connection.execute(table)
        connection.execute(
            "INSERT INTO component VALUES (?, ?, 0)", (component.name, component.version)
        )
    elif row[0] != component.version:
        raise StoreError(
            f"{path}: {component.name} has version {row[0]}, this program knows {component.version}"
        )


def _check(path: Path, connection: sqlite3.Connection) -> None:
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise StoreError(f"{path} is damaged: {found}")


def _error(path: Path, error: OSError | sqlite3.Error) -> StoreError:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return StoreError(f"{path}: {text}")


# --- the thread
# It serves all waiting requests in one transaction. Nobody waits longer than a deadline, and a
# write counts although nobody waits any more. What was read is taken on the event loop in the
# order of the batches, before the answers, so that a snapshot includes what was answered.

FRESH_NS: Final = 5_000_000_000
"""How long a snapshot counts after the read that confirmed it."""
CALL_SECONDS: Final = 3.0
"""Longest wait for the file."""
CLOSE_SECONDS: Final = 1.0
"""The process ends although the file hangs."""
_MOST_WAITING: Final = 8192
_MOST_AT_ONCE: Final = 512

Job = TypeVar("Job")
News = TypeVar("News")

Work = Callable[[sqlite3.Connection, list[Job]], tuple[list[bool], News]]
"""On the thread: do the jobs in order and read what has changed; raises sqlite3.Error or
StoreError, and then none of them counts."""
Take = Callable[[StoreFile, News, int], None]
"""On the event loop: what was read, and the CLOCK_BOOTTIME before that."""


@dataclass(frozen=True, slots=True)
class Request(Generic[Job]):
    """One caller's."""

    job: Job | None
    """None only reads."""
    loop: asyncio.AbstractEventLoop
    done: "asyncio.Future[bool]"


class FileThread(Generic[Job, News]):
    """Used from one event loop. Opens the file at the first request."""

    def __init__(
        self,
        path: Path,
        component: Component,
        work: Work[Job, News],
        take: Take[News],
        *,
        clock: Clock,
        unavailable: type[Exception],
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self._path = path
        self._component = component
        self._work = work
        self._take = take
        self._clock = clock
        self._unavailable = unavailable
        self._call_seconds = call_seconds
        self._waiting: queue.Queue[Request[Job] | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._file: StoreFile | None = None

    def ask(self, job: Job | None) -> "asyncio.Future[bool]":
        """Let `job` be done, or only read; `answered` waits for it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="store", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()
        try:
            self._waiting.put_nowait(Request(job, loop, done))
        except queue.Full:
            raise self._unavailable("too many requests wait for the store") from None
        return done

    async def answered(self, done: "asyncio.Future[bool]") -> bool:
        """Others may wait for the same answer, and it counts although nobody does any more."""
        finished, _ = await asyncio.wait({done}, timeout=self._call_seconds)
        if not finished:
            raise self._unavailable(f"{self._path} did not answer within {self._call_seconds:g} s")
        return done.result()

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Let what waits be served and close the file, unless it hangs."""
        thread = self._thread
        if thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
            await asyncio.to_thread(thread.join, seconds)

    def _serve(self) -> None:
        """The thread."""
        ended = False
        while not ended:
            batch = [self._waiting.get()]
            while len(batch) < _MOST_AT_ONCE and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            ended = None in batch
            requests = [x for x in batch if x is not None]
            if requests:
                self._serve_batch(requests)
        if self._file is not None:
            self._file.close()

    def _serve_batch(self, requests: list[Request[Job]]) -> None:
        loop = requests[0].loop
        try:
            read_ns = self._clock.boottime_ns()
            file, answers, news = self._worked(requests)
        except (StoreError, sqlite3.Error) as error:
            text = str(error) if isinstance(error, StoreError) else f"{self._path}: {error}"
            _call(loop, lambda: self._fail(requests, text))
            return
        _call(loop, lambda: self._deliver(file, news, read_ns, answers))

    def _worked(
        self, requests: list[Request[Job]]
    ) -> tuple[StoreFile, list[tuple[Request[Job], bool]], News]:
        if self._file is None:
            self._file = open_store(self._path, self._component)
        self._file.demand_same()
        jobs = [x.job for x in requests if x.job is not None]
        done, news = self._work(self._file.connection, jobs)
        each = iter(done)
        return self._file, [(x, x.job is None or next(each)) for x in requests], news

    def _deliver(
        self,
        file: StoreFile,
        news: News,
        read_ns: int,
        answers: list[tuple[Request[Job], bool]],
    ) -> None:
        """On the event loop, in the order of the batches."""
        self._take(file, news, read_ns)
        for request, answer in answers:
            if not request.done.done():
                request.done.set_result(answer)

    def _fail(self, requests: list[Request[Job]], text: str) -> None:
        for request in requests:
            if not request.done.done():
                request.done.set_exception(self._unavailable(text))
                request.done.exception()  # looked at, in case that nobody waits any more


def _call(loop: asyncio.AbstractEventLoop, deliver: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waits
        loop.call_soon_threadsafe(deliver)
