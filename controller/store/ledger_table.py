"""The table of reservations: compare-and-set in one transaction, and what has changed since.

Every write that counts gets the next generation, which is also the entry's revision. A row
is never deleted: a GPU that is free has one without a record, so that other processes learn
of it and no revision ever comes back. Runs on the thread of the connection.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from controller.ledger.store import Entry
from controller.store.record_document import RecordInvalidError
from controller.store.reservation_document import VERSION, decode_reservation
from controller.store.sqlite_file import Component, StoreError

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
