"""The audit log on this replica's disk: `AuditLog` for the event loop, a thread behind it.

Opening never fails: where the log cannot be written, grants are refused until it can,
and `condition` says why.
"""

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

from controller.audit.checkpoints import Published
from controller.audit.held_evidence import HeldEvidence
from controller.audit.repeats import RepeatCounter
from controller.audit.sealing import LogIdentity, SealedLine, Sealer
from controller.audit.writer import (
    Losses,
    Observer,
    Opened,
    QueuedRecord,
    RecordQueue,
    Waiter,
    Writer,
)
from controller.record import AuditUnavailableError, Record
from gpuwarden.audit.archived_evidence import ArchivedEvidence
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

QUEUE_RECORDS = 8192
GRANT_SECONDS = 2.0
"""Longest wait of a grant."""
LAG_NS = NS_PER_S
"""Age of the oldest waiting record from which on grants are refused at once."""
CLOSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Condition:
    """How the log is doing."""

    available: bool
    low: bool
    """Space has run out; only the reserve is left."""
    reason: str
    """Why it is not available."""


class DurableLog:
    """Implements `AuditLog`; used from one event loop."""

    def __init__(
        self,
        open_store: Callable[[], Opened],
        identity: LogIdentity,
        clock: Clock,
        observer: Observer,
        *,
        rotate_bytes: int,
        keep: Callable[[ArchivedEvidence], None] = lambda _archived_evidence: None,
        keep_cited: Callable[[ArchivedEvidence], None] = lambda _archived_evidence: None,
        held: HeldEvidence | None = None,
        queue_records: int = QUEUE_RECORDS,
        grant_seconds: float = GRANT_SECONDS,
    ) -> None:
        """Make it, not yet opened.

        `keep` archives evidence that comes with its record; `keep_cited` what `held` has of counted
        rounds, once another record cites it. Both return at once.
        """
        self._clock = clock
        self._keep = keep
        self._keep_cited = keep_cited
        self._held = held or HeldEvidence(0)
        self._grant_seconds = grant_seconds
        self._queue = RecordQueue(queue_records)
        self._repeats = RepeatCounter()
        self._counting = threading.Lock()
        self._losses = Losses()
        self._writer = Writer(
            self._queue,
            open_store,
            sealer=Sealer(identity),
            clock=clock,
            observer=observer,
            due=self._take_due_repeats,
            flush=self._take_all_repeats,
            losses=self._losses,
            rotate_bytes=rotate_bytes,
        )
        self._thread = threading.Thread(target=self._writer.run, name="audit-writer", daemon=True)

    async def open(self) -> Self:
        """Start writing; returns after the first attempt to open the log."""
        self._thread.start()
        await asyncio.to_thread(self._writer.attempted.wait)
        return self

    async def close(self, timeout: float = CLOSE_SECONDS) -> bool:  # noqa: ASYNC109 -- the thread's own deadline, not the task's
        """Write what waits and a `log.stop`; False if the disk was too slow for that."""
        self._writer.stop()
        await asyncio.to_thread(self._thread.join, timeout)
        return not self._thread.is_alive()

    @property
    def condition(self) -> Condition:
        """How the log is doing right now, for readiness and for people."""
        reason = self._writer.down or self._lag()
        return Condition(not reason, self._writer.low, reason)

    @property
    def waiting(self) -> int:
        """Records that wait to be written."""
        return len(self._queue)

    @property
    def published(self) -> Published | None:
        """The last checkpoint and its proofs."""
        return self._writer.published

    def want_proof(self, size: int) -> None:
        """Ask for a proof from the checkpoint of this size; it is published within two seconds."""
        self._writer.want_proof(size)

    async def grant(self, record: Record) -> None:
        """Return when the record is durable; see `AuditLog.grant`."""
        reason = self._writer.down or self._lag()
        if reason:
            raise AuditUnavailableError(reason)
        record, archived_evidence = _parted(record)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str | None] = loop.create_future()

        def resolve(failure: str | None) -> None:
            if not done.done():
                done.set_result(failure)

        waiter = Waiter(lambda failure: _call(loop, resolve, failure))
        with self._counting:
            self._repeats.absorb(record, self._clock.wall_ns())
        if not self._queue.put(self._queued(record, waiter)):
            raise AuditUnavailableError("too many records are waiting")
        try:
            failure = await asyncio.wait_for(done, self._grant_seconds)
        except TimeoutError:
            raise AuditUnavailableError(
                f"the record was not durable within {self._grant_seconds:g} s"
            ) from None
        finally:
            waiter.abandoned = True
        if failure is not None:
            raise AuditUnavailableError(failure)
        self._archive_evidence(record, archived_evidence)

    def note(self, record: Record) -> None:
        """Take the record without waiting; see `AuditLog.note`.

        Unchanged rounds and repeated refusals are counted, see `RepeatCounter`; their evidence is
        held in case that another record cites it.
        """
        record, archived_evidence = _parted(record)
        with self._counting:
            absorbed = self._repeats.absorb(record, self._clock.wall_ns())
            if absorbed and archived_evidence is not None:
                self._held.hold(record.subject, _cited(record), archived_evidence)
        if absorbed:
            return
        self._archive_evidence(record, archived_evidence)
        if not self._queue.put(self._queued(record, None)):
            self._losses.add(1)

    def _archive_evidence(self, record: Record, archived_evidence: ArchivedEvidence | None) -> None:
        """Archive what comes with a record, or what it cites.

        Where space is short, the log needs it more.
        """
        if self._writer.low:
            return
        if archived_evidence is not None:
            self._keep(archived_evidence)
            return
        with self._counting:
            cited = self._held.take(_cited(record))
        if cited is not None:
            self._keep_cited(cited)

    def _queued(self, record: Record, waiter: Waiter | None) -> QueuedRecord:
        return QueuedRecord(record, self._clock.wall_ns(), self._clock.boottime_ns(), waiter)

    def _lag(self) -> str:
        oldest = self._queue.oldest_ns()
        if oldest is not None and self._clock.boottime_ns() - oldest > LAG_NS:
            return "the log lags behind"
        return ""

    def _take_due_repeats(self, wall_ns: int) -> list[Record]:
        with self._counting:
            return self._repeats.take_due(wall_ns)

    def _take_all_repeats(self) -> list[Record]:
        with self._counting:
            return self._repeats.take_all()


def _parted(record: Record) -> tuple[Record, ArchivedEvidence | None]:
    """Nothing that waits or is counted holds evidence in memory."""
    if record.archived_evidence is None:
        return record, None
    return replace(record, archived_evidence=None), record.archived_evidence


def _cited(record: Record) -> str:
    """Digest of the evidence that a record is about or rests on; empty for none."""
    digest = record.refs.get("evidence")
    return digest if isinstance(digest, str) else ""


def _call(
    loop: asyncio.AbstractEventLoop, resolve: Callable[[str | None], None], failure: str | None
) -> None:
    with contextlib.suppress(RuntimeError):  # the event loop is closed, so the waiter is gone
        loop.call_soon_threadsafe(resolve, failure)


# --- copies for log collectors

MAX_WAITING = 4 << 20
"""Bytes of copies that may wait."""


class Copies:
    """Copies durable records to a file descriptor, from a thread of its own.

    A collector that reads slowly, or not at all, must not hold up the log: copies wait in
    a bounded queue, and what does not fit is counted as lost.
    """

    def __init__(self, descriptor: int, lost: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._lost = lost
        self._blocks: deque[tuple[bytes, int]] = deque()
        self._waiting = 0
        self._closing = False
        self._torn = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="audit-copies", daemon=True)
        self._thread.start()

    def put(self, block: bytes, records: int) -> None:
        """Queue a block of `records` lines; never waits."""
        with self._changed:
            if self._waiting + len(block) > MAX_WAITING or self._closing:
                self._lost(records)
                return
            self._blocks.append((block, records))
            self._waiting += len(block)
            self._changed.notify()

    def close(self, timeout: float) -> None:
        """Write what waits, for at most `timeout` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while (item := self._next()) is not None:
            block, records = item
            if not self._write(block):
                self._lost(records)
            with self._changed:
                self._waiting -= len(block)

    def _next(self) -> tuple[bytes, int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._blocks or self._closing)
            return self._blocks.popleft() if self._blocks else None

    def _write(self, block: bytes) -> bool:
        view = memoryview(b"\n" + block if self._torn else block)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            self._torn = True
            return False
        self._torn = False
        return True


# --- metrics and log events

COPIES_CLOSE_SECONDS = 1.0


class Reporting:
    """Implements the writer's `Observer`: metrics, log events, copies on standard output."""

    def __init__(
        self,
        instruments: Instruments,
        copies: Callable[[Callable[[int], None]], Copies] | None,
        also_copy: Callable[[Sequence[SealedLine]], None] = lambda _lines: None,
        also_close: Callable[[float], None] = lambda _timeout: None,
    ) -> None:
        """`also_copy` takes each durable group and returns at once."""
        self._also_copy = also_copy
        self._also_close = also_close
        self._log = logger("audit")
        self._records = instruments.counter(names.AUDIT_RECORDS)
        self._lost = instruments.counter(names.AUDIT_LOST)
        self._copies_lost = instruments.counter(names.AUDIT_COPIES_LOST)
        self._seconds = instruments.histogram(names.AUDIT_COMMIT_SECONDS)
        self._available = instruments.gauge(names.AUDIT_AVAILABLE)
        self._sequence = instruments.gauge(names.AUDIT_SEQUENCE)
        self._copies = copies(self._copies_lost.inc) if copies else None
        self._low = False

    def committed(self, lines: Sequence[SealedLine], kinds: Sequence[str], seconds: float) -> None:
        """Count a durable group and copy it."""
        for kind in kinds:
            self._records.labels(kind).inc()
        self._seconds.observe(seconds)
        self._sequence.set(lines[-1].head.seq)
        if self._copies is not None:
            self._copies.put(b"".join(line.line + b"\n" for line in lines), len(lines))
        self._also_copy(lines)

    def lost(self, records: int) -> None:
        """Count records that could not be kept."""
        self._lost.inc(records)

    def state(self, down: str, *, low: bool) -> None:
        """Show the new state."""
        self._available.set(0 if down else 1)
        if down:
            self._log.error(Event.AUDIT_UNAVAILABLE, reason=down)
        elif low and not self._low:
            self._log.error(Event.AUDIT_LOW_SPACE)
        else:
            self._log.info(Event.AUDIT_AVAILABLE)
        self._low = low

    def close(self) -> None:
        """Write the copies that wait."""
        self._available.set(0)
        if self._copies is not None:
            self._copies.close(COPIES_CLOSE_SECONDS)
        self._also_close(COPIES_CLOSE_SECONDS)
