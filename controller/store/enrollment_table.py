"""The table of enrolment records: compare-and-set in one transaction, and what has changed since.

Every write that counts gets the next generation, so that a reader asks for the rows after
the one it knows. Rows are never deleted. Runs on the thread of the connection.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from controller.fleet.enrollment import EnrollmentRecord
from controller.store.record_document import VERSION, RecordInvalidError, decode_record
from controller.store.sqlite_file import Component, StoreError

ENROLLMENT: Final = Component(
    "enrollment",
    VERSION,
    (
        """CREATE TABLE enrollment (
            node TEXT PRIMARY KEY, record TEXT NOT NULL, generation INTEGER NOT NULL
        ) WITHOUT ROWID""",
        "CREATE INDEX enrollment_generation ON enrollment (generation)",
    ),
)


@dataclass(frozen=True, slots=True)
class Write:
    """Replace `old` by `new`, or create it where `old` is None."""

    node: str
    old: str | None
    new: str


@dataclass(frozen=True, slots=True)
class Changes:
    """Records that changed after one generation, and the generation they lead to."""

    records: tuple[EnrollmentRecord, ...]
    generation: int


def write_all(connection: sqlite3.Connection, writes: Iterable[Write]) -> list[bool]:
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
        _set_generation(connection, generation)
        connection.execute("COMMIT" if any(done) else "ROLLBACK")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return done


def changes_after(connection: sqlite3.Connection, generation: int) -> Changes:
    """Records newer than `generation`, oldest change first; raises sqlite3.Error, StoreError."""
    connection.execute("BEGIN")
    try:
        newest = _generation(connection)
        if newest == generation:
            return Changes((), newest)
        rows = connection.execute(
            "SELECT node, record FROM enrollment WHERE generation > ? ORDER BY generation",
            (generation,),
        ).fetchall()
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if newest < generation:
        raise StoreError(f"generation {newest} after {generation}: an older copy was put in place")
    return Changes(_decoded(rows), newest)


def _write(connection: sqlite3.Connection, write: Write, generation: int) -> bool:
    if write.old is None:
        cursor = connection.execute(
            "INSERT OR IGNORE INTO enrollment VALUES (?, ?, ?)",
            (write.node, write.new, generation),
        )
    else:
        cursor = connection.execute(
            "UPDATE enrollment SET record = ?, generation = ? WHERE node = ? AND record = ?",
            (write.new, generation, write.node, write.old),
        )
    return cursor.rowcount == 1


def _generation(connection: sqlite3.Connection) -> int:
    row = connection.execute(
        "SELECT generation FROM component WHERE name = ?", (ENROLLMENT.name,)
    ).fetchone()
    if row is None:
        raise StoreError("the table of enrolments is gone")
    return int(row[0])


def _set_generation(connection: sqlite3.Connection, generation: int) -> None:
    connection.execute(
        "UPDATE component SET generation = ? WHERE name = ?", (generation, ENROLLMENT.name)
    )


def _decoded(rows: Sequence[tuple[str, str]]) -> tuple[EnrollmentRecord, ...]:
    records = []
    for node, text in rows:
        try:
            record = decode_record(text)
        except RecordInvalidError as error:
            raise StoreError(f"enrolment of {node!a}: {error}") from None
        if record.node != node:
            raise StoreError(f"enrolment of {node!a} names {record.node!a}")
        records.append(record)
    return tuple(records)
