"""Opens the SQLite file that replicas on one machine share, and notices when it is another one.

Durable and strict: WAL, `synchronous=FULL`, mode 0600, integrity checked once, refused
if it is not ours or newer than we are. A connection belongs to the thread that opened it.
Must not know what the tables of a component mean.
"""

import contextlib
import os
import secrets
import sqlite3
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

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
            raise sqlite3.OperationalError(f"journal mode is {mode}, the file system lacks WAL")
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
