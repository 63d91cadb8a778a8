"""The enrollment store on a SQLite file that several controllers of one machine may share.

A snapshot is always a state that the file once had, own writes included. It counts for a few
seconds after the read that confirmed it.
"""

import asyncio
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from controller.fleet.enrollment import (
    EnrollmentRecord,
    EnrollmentSnapshot,
    EnrollmentUnavailableError,
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

# --- a record as text
# The text is all that compare-and-set compares. A text that would not be written the same way
# again (a field of a newer version, an edit by hand) is refused, not repaired.

VERSION: Final = 1
"""Of this form; a new field is a new version, with a migration of what is stored."""

_UNSET: Final = (
    ',"mig_devices":[]',
    ',"system_uuid":null',
    ',"faults":[]',
    ',"lifted_ns":null',
    ',"lifted_by":null',
)
"""Left out, so that a record of an earlier version reads as it always did."""
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_DECODER: Final = msgspec.json.Decoder(EnrollmentRecord, strict=True)


class RecordInvalidError(ValueError):
    """The text is no record of this version."""


def encode_record(record: EnrollmentRecord) -> str:
    """The one text of a record."""
    text = _ENCODER.encode(record).decode()
    for part in _UNSET:  # never inside a string: the quotes in one are escaped
        text = text.replace(part, "")
    return text


def decode_record(text: str) -> EnrollmentRecord:
    """The record behind a text; raises RecordInvalidError for anything but `encode_record`'s."""
    try:
        record = _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        raise RecordInvalidError(f"no enrolment record of version {VERSION}: {error}") from None
    if encode_record(record) != text:
        raise RecordInvalidError(f"not in the form of version {VERSION}")
    return record


# --- the table
# Every write gets the next generation, so that a reader asks for the rows after the one it knows.
# Rows are never deleted. Runs on the thread of the connection.

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


# --- the store

_MANY: Final = 64


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Which store is open, for logs and audit."""

    store_id: str
    created: bool
    generation: int


class SqliteEnrollmentStore:
    """Implements EnrollmentStore; used from one event loop. Opens the file at the first call."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        fresh_ns: int = FRESH_NS,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self._fresh_ns = fresh_ns
        self._snapshot = EnrollmentSnapshot(fresh_until_ns=0)
        self._loading: asyncio.Future[bool] | None = None
        self._generation = 0
        self._thread: FileThread[Write, Changes] = FileThread(
            path,
            ENROLLMENT,
            self._work,
            self._take,
            clock=clock,
            unavailable=EnrollmentUnavailableError,
            call_seconds=call_seconds,
        )
        self.facts: StoreFacts | None = None
        """None until the file was read for the first time."""

    async def load(self) -> EnrollmentSnapshot:
        """Read what has changed; raises EnrollmentUnavailableError."""
        if self._loading is None or self._loading.done():
            self._loading = self._thread.ask(None)
        await self._thread.answered(self._loading)
        return self._snapshot

    def snapshot(self) -> EnrollmentSnapshot:
        """What the file held when it last answered."""
        return self._snapshot

    async def create_if_absent(self, record: EnrollmentRecord) -> bool:
        """Add the record of a node that has none; False if it has one."""
        write = Write(record.node, None, encode_record(record))
        return await self._thread.answered(self._thread.ask(write))

    async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
        """Replace `old` by `new` (same node); False if the record is not `old` any more."""
        if old.node != new.node:
            raise ValueError(f"records of two nodes: {old.node} and {new.node}")
        write = Write(new.node, encode_record(old), encode_record(new))
        return await self._thread.answered(self._thread.ask(write))

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Let what waits be served and close the file, unless it hangs."""
        await self._thread.close(seconds)

    def _work(
        self, connection: sqlite3.Connection, writes: list[Write]
    ) -> tuple[list[bool], Changes]:
        """On the thread."""
        done = write_all(connection, writes) if writes else []
        changes = changes_after(connection, self._generation)
        self._generation = changes.generation
        return done, changes

    def _take(self, file: StoreFile, changes: Changes, read_ns: int) -> None:
        self._snapshot = replace(
            _with_all(self._snapshot, changes), fresh_until_ns=read_ns + self._fresh_ns
        )
        self.facts = StoreFacts(file.store_id, file.created, changes.generation)


def _with_all(snapshot: EnrollmentSnapshot, changes: Changes) -> EnrollmentSnapshot:
    if len(changes.records) > _MANY:
        changed = {x.node: x for x in changes.records}
        return EnrollmentSnapshot.of({**snapshot.records, **changed}.values())
    for record in changes.records:
        snapshot = snapshot.with_record(record)
    return snapshot
