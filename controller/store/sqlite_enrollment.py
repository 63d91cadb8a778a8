"""EnrollmentStore on a SQLite file that several controllers of one machine may share.

The file is touched by one thread only, which serves whatever waits in one transaction;
nobody waits for it longer than a deadline. What it answers arrives in order, so the
snapshot is always a state that the file once had, own successful writes included. A
snapshot counts for a few seconds after the read that confirmed it, then it is stale.
"""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
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
from controller.store.record_document import encode_record
from controller.store.sqlite_file import StoreError, StoreFile, open_store
from gpuwarden.clock import Clock

FRESH_NS: Final = 5_000_000_000
"""How long a snapshot counts after the read that confirmed it."""
CALL_SECONDS: Final = 3.0
"""Longest wait for the file."""
CLOSE_SECONDS: Final = 1.0
"""The process ends although the file hangs."""
_MOST_WAITING: Final = 8192
_MOST_AT_ONCE: Final = 512
_MANY: Final = 64


@dataclass(frozen=True, slots=True)
class _Request:
    write: Write | None
    """None only reads."""
    loop: asyncio.AbstractEventLoop
    done: "asyncio.Future[bool]"


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
        self._path = path
        self._clock = clock
        self._fresh_ns = fresh_ns
        self._call_seconds = call_seconds
        self._snapshot = EnrollmentSnapshot(fresh_until_ns=0)
        self._waiting: queue.Queue[_Request | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._loading: asyncio.Future[bool] | None = None
        self._file: StoreFile | None = None
        self._generation = 0
        self.facts: StoreFacts | None = None
        """None until the file was read for the first time."""

    async def load(self) -> EnrollmentSnapshot:
        """Read what has changed; raises EnrollmentUnavailableError."""
        if self._loading is None or self._loading.done():
            self._loading = self._asked(None)
        await self._answered(self._loading)
        return self._snapshot

    def snapshot(self) -> EnrollmentSnapshot:
        """What the file held when it last answered."""
        return self._snapshot

    async def create_if_absent(self, record: EnrollmentRecord) -> bool:
        """Add the record of a node that has none; False if it has one."""
        write = Write(record.node, None, encode_record(record))
        return await self._answered(self._asked(write))

    async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
        """Replace `old` by `new` (same node); False if the record is not `old` any more."""
        if old.node != new.node:
            raise ValueError(f"records of two nodes: {old.node} and {new.node}")
        write = Write(new.node, encode_record(old), encode_record(new))
        return await self._answered(self._asked(write))

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Let what waits be served and close the file, unless it hangs."""
        thread = self._thread
        if thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
            await asyncio.to_thread(thread.join, seconds)

    def _asked(self, write: Write | None) -> "asyncio.Future[bool]":
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="store", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()
        try:
            self._waiting.put_nowait(_Request(write, loop, done))
        except queue.Full:
            raise EnrollmentUnavailableError("too many requests wait for the store") from None
        return done

    async def _answered(self, done: "asyncio.Future[bool]") -> bool:
        """Others may wait for the same answer, and it counts although nobody does any more."""
        finished, _ = await asyncio.wait({done}, timeout=self._call_seconds)
        if not finished:
            raise EnrollmentUnavailableError(
                f"{self._path} did not answer within {self._call_seconds:g} s"
            )
        return done.result()

    def _deliver(
        self,
        changes: Changes,
        read_ns: int,
        answers: list[tuple[_Request, bool]],
        facts: StoreFacts,
    ) -> None:
        """On the event loop, in the order of the batches."""
        self._snapshot = replace(
            _with_all(self._snapshot, changes), fresh_until_ns=read_ns + self._fresh_ns
        )
        self.facts = facts
        for request, answer in answers:
            if not request.done.done():
                request.done.set_result(answer)

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

    def _serve_batch(self, requests: list[_Request]) -> None:
        loop = requests[0].loop
        try:
            read_ns = self._clock.boottime_ns()
            file, changes, answers = self._worked(requests)
        except (StoreError, sqlite3.Error) as error:
            text = str(error) if isinstance(error, StoreError) else f"{self._path}: {error}"
            _call(loop, lambda: _fail(requests, text))
            return
        facts = StoreFacts(file.store_id, file.created, changes.generation)
        _call(loop, lambda: self._deliver(changes, read_ns, answers, facts))

    def _worked(
        self, requests: list[_Request]
    ) -> tuple[StoreFile, Changes, list[tuple[_Request, bool]]]:
        if self._file is None:
            self._file = open_store(self._path, ENROLLMENT)
        self._file.demand_same()
        connection = self._file.connection
        writes = [x.write for x in requests if x.write is not None]
        done = iter(write_all(connection, writes) if writes else ())
        answers = [(x, x.write is None or next(done)) for x in requests]
        changes = changes_after(connection, self._generation)
        self._generation = changes.generation
        return self._file, changes, answers


def _with_all(snapshot: EnrollmentSnapshot, changes: Changes) -> EnrollmentSnapshot:
    if len(changes.records) > _MANY:
        changed = {x.node: x for x in changes.records}
        return EnrollmentSnapshot.of({**snapshot.records, **changed}.values())
    for record in changes.records:
        snapshot = snapshot.with_record(record)
    return snapshot


def _fail(requests: list[_Request], text: str) -> None:
    for request in requests:
        if not request.done.done():
            request.done.set_exception(EnrollmentUnavailableError(text))
            request.done.exception()  # looked at, in case that nobody waits any more


def _call(loop: asyncio.AbstractEventLoop, deliver: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waits
        loop.call_soon_threadsafe(deliver)
