"""Ledger.

Holds: ledger table, sqlite ledger.
"""

import asyncio
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from controller.ledger.record import GpuRecord
from controller.ledger.store import Entry, LedgerSnapshot, LedgerUnavailableError, demand_successor
from controller.store.documents import (
    VERSION,
    RecordInvalidError,
    decode_reservation,
    encode_reservation,
)
from controller.store.sqlite import (
    CALL_SECONDS,
    CLOSE_SECONDS,
    FRESH_NS,
    Component,
    FileThread,
    StoreError,
    StoreFile,
)
from gpuwarden.clock import Clock

# --- ledger table
# The table of reservations: compare-and-set in one transaction, and what has changed since.
#
# Every write that counts gets the next generation, which is also the entry's revision. A row
# is never deleted: a GPU that is free has one without a record, so that other processes learn
# of it and no revision ever comes back. Runs on the thread of the connection.

LEDGER: Final = Component(
    "ledger",
    VERSION,
    (
        """CREATE TABLE reservation (
            gpu TEXT PRIMARY KEY, record TEXT, generation INTEGER NOT NULL
        ) WITHOUT ROWID""",
        "CREATE INDEX reservation_generation ON reservation (generation)",
    ),
)


@dataclass(frozen=True, slots=True)
class LedgerWrite:
    """Replace the entry of revision `old` by `new`; create where `old` is None, else free."""

    key: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class LedgerChanges:
    """What changed after one generation, oldest first, and the generation that it leads to."""

    entries: tuple[tuple[str, Entry | None], ...]
    generation: int


def write_reservations(connection: sqlite3.Connection, writes: Iterable[LedgerWrite]) -> list[bool]:
    """Do the writes in order in one durable transaction; True for each that found what it expected.

    Raises sqlite3.Error: none of them counts, unless the answer to the commit itself got lost.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        generation = _generation(connection)
        done = []
        for write in writes:
            done.append(_write(connection, write, generation + 1))
            generation += done[-1]
        connection.execute(
            "UPDATE component SET generation = ? WHERE name = ?", (generation, LEDGER.name)
        )
        connection.execute("COMMIT" if any(done) else "ROLLBACK")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return done


def reservations_after(connection: sqlite3.Connection, generation: int) -> LedgerChanges:
    """What is newer than `generation`; raises sqlite3.Error, StoreError."""
    connection.execute("BEGIN")
    try:
        newest = _generation(connection)
        rows = (
            connection.execute(
                "SELECT gpu, record, generation FROM reservation WHERE generation > ?"
                " ORDER BY generation",
                (generation,),
            ).fetchall()
            if newest > generation
            else []
        )
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if newest < generation:
        raise StoreError(f"generation {newest} after {generation}: an older copy was put in place")
    return LedgerChanges(_decoded(rows), newest)


def _write(connection: sqlite3.Connection, write: LedgerWrite, generation: int) -> bool:
    if write.old is None:
        cursor = connection.execute(
            "INSERT INTO reservation VALUES (?, ?, ?) ON CONFLICT (gpu) DO UPDATE"
            " SET record = excluded.record, generation = excluded.generation"
            " WHERE record IS NULL",
            (write.key, write.new, generation),
        )
    else:
        cursor = connection.execute(
            "UPDATE reservation SET record = ?, generation = ?"
            " WHERE gpu = ? AND generation = ? AND record IS NOT NULL",
            (write.new, generation, write.key, int(write.old)),
        )
    return cursor.rowcount == 1


def _generation(connection: sqlite3.Connection) -> int:
    row = connection.execute(
        "SELECT generation FROM component WHERE name = ?", (LEDGER.name,)
    ).fetchone()
    if row is None:
        raise StoreError("the table of reservations is gone")
    return int(row[0])


def _decoded(
    rows: Sequence[tuple[str, str | None, int]],
) -> tuple[tuple[str, Entry | None], ...]:
    found: list[tuple[str, Entry | None]] = []
    for key, text, generation in rows:
        if text is None:
            found.append((key, None))
            continue
        try:
            record = decode_reservation(text)
        except RecordInvalidError as error:
            raise StoreError(f"reservation of {key!a}: {error}") from None
        if record.key != key:
            raise StoreError(f"reservation of {key!a} names {record.gpu!a}")
        found.append((key, Entry(record, str(generation))))
    return tuple(found)


# --- sqlite ledger
# LedgerStore on a SQLite file that several controllers of one machine may share.
#
# The file is the same as the enrolments', on a thread of its own. A snapshot counts for a few
# seconds after the read that confirmed it, then it is stale.

_MANY: Final = 64


class SqliteLedgerStore:
    """Implements LedgerStore; used from one event loop. Opens the file at the first call."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        fresh_ns: int = FRESH_NS,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self._fresh_ns = fresh_ns
        self._snapshot = LedgerSnapshot(fresh_until_ns=0)
        self._loading: asyncio.Future[bool] | None = None
        self._generation = 0
        self._thread: FileThread[LedgerWrite, LedgerChanges] = FileThread(
            path,
            LEDGER,
            self._work,
            self._take,
            clock=clock,
            unavailable=LedgerUnavailableError,
            call_seconds=call_seconds,
        )

    async def load(self) -> LedgerSnapshot:
        """Read what has changed; raises LedgerUnavailableError."""
        if self._loading is None or self._loading.done():
            self._loading = self._thread.ask(None)
        await self._thread.answered(self._loading)
        return self._snapshot

    def snapshot(self) -> LedgerSnapshot:
        """What the file held when it last answered."""
        return self._snapshot

    async def read(self, gpu: str) -> Entry | None:
        """The entry as the file has it no earlier than now; raises LedgerUnavailableError."""
        await self._thread.answered(self._thread.ask(None))
        return self._snapshot.get(gpu)

    async def compare_and_set(self, old: Entry | None, new: GpuRecord) -> bool:
        """Replace, create or remove, as LedgerStore says."""
        demand_successor(old, new)
        write = LedgerWrite(
            new.key,
            None if old is None else old.revision,
            None if new.is_closed else encode_reservation(new),
        )
        return await self._thread.answered(self._thread.ask(write))

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Let what waits be served and close the file, unless it hangs."""
        await self._thread.close(seconds)

    def _work(
        self, connection: sqlite3.Connection, writes: list[LedgerWrite]
    ) -> tuple[list[bool], LedgerChanges]:
        """On the thread."""
        done = write_reservations(connection, writes) if writes else []
        changes = reservations_after(connection, self._generation)
        self._generation = changes.generation
        return done, changes

    def _take(self, _: StoreFile, changes: LedgerChanges, read_ns: int) -> None:
        snapshot = self._snapshot
        if len(changes.entries) > _MANY + len(snapshot.entries) // _MANY:
            entries: dict[str, Entry | None] = {**snapshot.entries, **dict(changes.entries)}
            snapshot = LedgerSnapshot.of(x for x in entries.values() if x is not None)
        else:
            for key, entry in changes.entries:
                snapshot = snapshot.with_entry(key, entry)
        self._snapshot = replace(snapshot, fresh_until_ns=read_ns + self._fresh_ns)
