"""The audit log on this replica's disk: `AuditLog` for the event loop, a thread behind it.

Opening never fails: where the log cannot be written, grants are refused until it can,
and `condition` says why.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from controller.audit.log import AuditUnavailableError
from controller.audit.mailbox import Letter, Mailbox, Ticket
from controller.audit.notary import Published
from controller.audit.record import Record
from controller.audit.rounds import Rounds
from controller.audit.sealing import LogIdentity, Sealer
from controller.audit.writer import Losses, Observer, Opened, Sources, Writer
from gpuwarden.audit.exhibit import Exhibit
from gpuwarden.clock import Clock

QUEUE_RECORDS = 8192
GRANT_SECONDS = 2.0
"""Longest wait of a grant."""
LAG_NS = 1_000_000_000
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
        keep: Callable[[Exhibit], None] = lambda _exhibit: None,
        queue_records: int = QUEUE_RECORDS,
        grant_seconds: float = GRANT_SECONDS,
    ) -> None:
        self._clock = clock
        self._keep = keep
        self._grant_seconds = grant_seconds
        self._mailbox = Mailbox(queue_records)
        self._rounds = Rounds()
        self._rounds_lock = threading.Lock()
        self._losses = Losses()
        self._writer = Writer(
            self._mailbox,
            open_store,
            sealer=Sealer(identity),
            clock=clock,
            observer=observer,
            sources=Sources(self._due_rounds, self._all_rounds),
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
        return len(self._mailbox)

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
        record, exhibit = _parted(record)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[str | None] = loop.create_future()

        def resolve(failure: str | None) -> None:
            if not done.done():
                done.set_result(failure)

        ticket = Ticket(lambda failure: _call(loop, resolve, failure))
        with self._rounds_lock:
            self._rounds.absorb(record, self._clock.wall_ns())
        if not self._mailbox.put(self._letter(record, ticket)):
            raise AuditUnavailableError("too many records are waiting")
        try:
            failure = await asyncio.wait_for(done, self._grant_seconds)
        except TimeoutError:
            raise AuditUnavailableError(
                f"the record was not durable within {self._grant_seconds:g} s"
            ) from None
        finally:
            ticket.abandoned = True
        if failure is not None:
            raise AuditUnavailableError(failure)
        self._keep_exhibit(exhibit)

    def note(self, record: Record) -> None:
        """Take the record without waiting; see `AuditLog.note`.

        Unchanged rounds and repeated refusals are counted, see `rounds`.
        """
        record, exhibit = _parted(record)
        with self._rounds_lock:
            absorbed = self._rounds.absorb(record, self._clock.wall_ns())
        if absorbed:
            return
        self._keep_exhibit(exhibit)
        if not self._mailbox.put(self._letter(record, None)):
            self._losses.add(1)

    def _keep_exhibit(self, exhibit: Exhibit | None) -> None:
        """Where space is short, the log needs it more."""
        if exhibit is not None and not self._writer.low:
            self._keep(exhibit)

    def _letter(self, record: Record, ticket: Ticket | None) -> Letter:
        return Letter(record, self._clock.wall_ns(), self._clock.boottime_ns(), ticket)

    def _lag(self) -> str:
        oldest = self._mailbox.oldest_ns()
        if oldest is not None and self._clock.boottime_ns() - oldest > LAG_NS:
            return "the log lags behind"
        return ""

    def _due_rounds(self, wall_ns: int) -> list[Record]:
        with self._rounds_lock:
            return self._rounds.due(wall_ns)

    def _all_rounds(self) -> list[Record]:
        with self._rounds_lock:
            return self._rounds.flush()


def _parted(record: Record) -> tuple[Record, Exhibit | None]:
    """Nothing that waits or is counted holds evidence in memory."""
    if record.exhibit is None:
        return record, None
    return replace(record, exhibit=None), record.exhibit


def _call(
    loop: asyncio.AbstractEventLoop, resolve: Callable[[str | None], None], failure: str | None
) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is gone, and with it the waiter
        loop.call_soon_threadsafe(resolve, failure)
