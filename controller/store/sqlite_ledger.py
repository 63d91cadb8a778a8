"""LedgerStore on a SQLite file that several controllers of one machine may share.

The file is the same as the enrolments', on a thread of its own. A snapshot counts for a few
seconds after the read that confirmed it, then it is stale.
"""

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Final

from controller.ledger.record import GpuRecord
from controller.ledger.store import (
    Entry,
    LedgerSnapshot,
    LedgerUnavailableError,
    demand_successor,
)
from controller.store.file_thread import CALL_SECONDS, CLOSE_SECONDS, FRESH_NS, FileThread
from controller.store.ledger_table import (
    LEDGER,
    LedgerChanges,
    LedgerWrite,
    reservations_after,
    write_reservations,
)
from controller.store.reservation_document import encode_reservation
from controller.store.sqlite_file import StoreFile
from gpuwarden.clock import Clock

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
