"""EnrollmentStore on a SQLite file that several controllers of one machine may share.

What the file's thread answers arrives in order, so the snapshot is always a state that the
file once had, own successful writes included. A snapshot counts for a few seconds after the
read that confirmed it, then it is stale.
"""

import asyncio
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from controller.fleet.enrollment import (
    EnrollmentRecord,
    EnrollmentSnapshot,
    EnrollmentUnavailableError,
)
from controller.store.enrollment_table import (
    ENROLLMENT,
    Changes,
    Write,
    changes_after,
    write_all,
)
from controller.store.file_thread import CALL_SECONDS, CLOSE_SECONDS, FRESH_NS, FileThread
from controller.store.record_document import encode_record
from controller.store.sqlite_file import StoreFile
from gpuwarden.clock import Clock

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
