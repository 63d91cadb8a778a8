"""Brings the records of one exporter to their destination: who leads does, the others keep up.

The order is: note in a document under which name the batch goes, where the destination keeps whole
batches; send; note in documents how far this exporter is. Whoever takes over between two of these
steps finds the same records with the same keys, or the batch itself under the noted name. So
nothing is lost, and nothing is there twice that a key or a name can hold back.

What fails is tried again with full jitter, at most so many times, then kept in the dead-letter
file. Where that is full, everything waits.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception
from tenacity.wait import wait_base, wait_random_exponential

from controller.export.backlog import (
    SHARDS,
    Backlog,
    PositionTextError,
    positions_text,
    read_positions,
)
from controller.export.dead_letters import DeadLetters
from controller.export.documents import (
    DocumentChangedError,
    Documents,
    DocumentsUnavailableError,
)
from controller.export.exporter import AlreadySentError, Batch, Exporter
from controller.export.failures import Attempts, Cure, DeliveryError, Step
from controller.export.records import ExportRecord, Facts, batch_digest
from controller.record import AuditLog, Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.clock import Clock
from gpuwarden.counted import counted
from gpuwarden.moment import NS_PER_S, rfc3339
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

FULL_JITTER: Final = wait_random_exponential(multiplier=1.0, max=60.0)
_CHECK_NS: Final = 60 * NS_PER_S
_KEEP_UP_NS: Final = 15 * NS_PER_S
_HOLD_NS: Final = 30 * NS_PER_S
_NAME_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class Terms:
    """How much at once, how often, and how long."""

    cluster: str
    batch: int
    attempts: Attempts
    waiting: int
    timeout_s: float
    """For one attempt."""
    wait: wait_base = FULL_JITTER
    round_s: float = 1.0


class _HeldError(Exception):
    """Nothing more can be delivered now; says why. What waits goes on waiting."""


class Delivery:
    """One exporter with what it still has to deliver; one event loop."""

    def __init__(
        self,
        exporter: Exporter,
        documents: Documents,
        dead_letters: DeadLetters,
        *,
        terms: Terms,
        leads: Callable[[], bool],
        clock: Clock,
        audit: AuditLog,
        instruments: Instruments,
    ) -> None:
        self._exporter = exporter
        self._documents = documents
        self._dead_letters = dead_letters
        self._terms = terms
        self._leads = leads
        self._clock = clock
        self._audit = audit
        self._backlog = Backlog(terms.cluster, terms.waiting)
        self._log = logger("export")
        name = exporter.name
        self._succeeded = instruments.counter(names.EXPORT_SUCCESS).labels(name)
        self._failed = instruments.counter(names.EXPORT_FAILURE).labels(name)
        self._records = instruments.counter(names.EXPORT_RECORDS)
        self._waiting = instruments.gauge(names.EXPORT_WAITING).labels(name)
        self._dead = instruments.gauge(names.EXPORT_DEAD_LETTERS).labels(name)
        self._healthy = instruments.gauge(names.EXPORT_HEALTHY).labels(name)
        self._healthy.set(1)
        self._versions: dict[str, str] = {}
        """Document -> the version that we have read or written."""
        self._is_ready = False
        """We lead, and know how far our predecessor came."""
        self._batch_name: str | None = None
        """Noted for the next batch, and not known to be used up."""
        self._dropped = 0
        self._kept_up_ns = 0
        self._held_until_ns = 0
        self._asked_ns: int | None = None
        self._is_dead_count_known = False
        self._trouble: tuple[str, int] | None = None
        """What is wrong, and since when."""
        self._is_followed = False
        self._hurry = asyncio.Event()
        self._noted = asyncio.Event()
        self._drained = asyncio.Event()

    def note(self, facts: Facts) -> None:
        """Take what accepted evidence shows; returns at once."""
        self._backlog.note(facts)
        self._noted.set()

    @property
    def waiting(self) -> int:
        """How many records are still to be delivered."""
        return len(self._backlog)

    def warning(self) -> str | None:
        """Why records do not arrive; from memory."""
        if self._trouble is None:
            return None
        reason, since_ns = self._trouble
        seconds = (self._clock.boottime_ns() - since_ns) // NS_PER_S
        waiting = f"{counted(len(self._backlog), 'record')} waiting"
        return f"export: {self._exporter.name} for {seconds} s: {reason}; {waiting}"

    async def follow(self) -> NoReturn:
        """Deliver forever; ends by cancellation only."""
        self._is_followed = True
        while True:
            await self.round()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._terms.round_s):
                    await self._noted.wait()
            self._noted.clear()

    async def flush(self) -> None:
        """Return once what waits was tried once more by `follow`, which goes on meanwhile.

        What does not arrive stays for whoever leads next.
        """
        self._hurry.set()
        self._noted.set()
        if self._is_followed:
            await self._drained.wait()

    async def close(self) -> None:
        """Let go of the destination."""
        await self._exporter.close()

    async def round(self) -> None:
        """Deliver what waits, as far as that works now."""
        is_held = self._clock.boottime_ns() < self._held_until_ns and not self._hurry.is_set()
        try:
            if not is_held:
                await self._replay()
            if not self._is_dead_count_known:
                self._dead.set(await asyncio.to_thread(self._dead_letters.count))
                self._is_dead_count_known = True
            if is_held:
                pass
            elif self._leads():
                await self._lead()
            else:
                self._is_ready = False  # another one may deliver before we lead again
                await self._keep_up()
        except DocumentChangedError:
            self._is_ready = False
        except (_HeldError, DocumentsUnavailableError, PositionTextError) as error:
            self._hold(str(error))
        except OSError as error:
            self._hold(f"dead-letter file: {error.strerror}: {error.filename}")
        if self._hurry.is_set():
            self._drained.set()
        self._show()

    async def _lead(self) -> None:
        if not self._is_ready:
            await self._read_positions()
            if self._exporter.keeps_batches:
                await self._adopt_batch_name()
            self._is_ready = True
        while records := self._backlog.take(self._terms.batch):
            await self._deliver(records)
        if self._asked_ns is None or self._is_due(self._asked_ns, _CHECK_NS):
            await self._check()

    async def _keep_up(self) -> None:
        if self._backlog and self._is_due(self._kept_up_ns, _KEEP_UP_NS):
            self._kept_up_ns = self._clock.boottime_ns()
            await self._read_positions()
        self._mend()

    def _hold(self, reason: str) -> None:
        self._is_ready = False
        self._held_until_ns = self._clock.boottime_ns() + _HOLD_NS
        self._suffer(reason)

    def _is_due(self, last_ns: int, every_ns: int) -> bool:
        return self._clock.boottime_ns() - last_ns >= every_ns

    # --- one batch

    async def _deliver(self, records: tuple[ExportRecord, ...]) -> None:
        parts = [records]
        while parts:
            part = parts.pop()
            try:
                if not await self._send(part):
                    half = len(part) // 2
                    parts += (part[half:], part[:half])
                    continue
            except AlreadySentError as found:
                # What our predecessor sent counts; what is left is taken from the backlog again.
                part, parts = found.records, []
            for shard in sorted(self._backlog.delivered(part)):
                await self._write_positions(shard)

    async def _send(self, records: tuple[ExportRecord, ...], name: str | None = None) -> bool:
        """Send, again and again if need be, or bury; False if halves should be tried."""
        attempts = AsyncRetrying(
            retry=retry_if_exception(self._is_worth_waiting),
            wait=self._pause,
            sleep=self._sleep,
            reraise=True,
        )
        tried = 0

        async def once() -> None:
            nonlocal tried
            tried += 1
            await self._attempt(records, name, tried)

        try:
            await attempts(once)
        except _FailedAttemptError as failed:
            if failed.step is Step.SPLIT:
                return False
            if self._hurry.is_set() and failed.error.cure is Cure.TIME:
                raise _HeldError(str(failed.error)) from None
            await self._bury(records, str(failed.error))
        return True

    async def _attempt(
        self, records: tuple[ExportRecord, ...], name: str | None, tried: int
    ) -> None:
        if name is None and not self._leads():
            raise DocumentChangedError("another replica leads")
        if name is None:
            name = await self._name_of_next_batch(records)
        batch = Batch(name, batch_digest(records), records)
        self._asked_ns = self._clock.boottime_ns()
        try:
            async with asyncio.timeout(self._terms.timeout_s):
                await self._exporter.send(batch)
        except AlreadySentError:
            self._batch_name = None
            raise
        except Exception as error:  # noqa: BLE001 -- whatever a library raises is no end of ours
            told = _told(error, self._terms.timeout_s)
            self._failed.inc()
            self._suffer(str(told))
            step = self._terms.attempts.after(told, tried, len(records))
            raise _FailedAttemptError(told, step) from None
        self._batch_name = None
        self._succeeded.inc()
        self._records.labels(self._exporter.name, "delivered").inc(len(records))
        self._mend()

    def _is_worth_waiting(self, error: BaseException) -> bool:
        is_transient = isinstance(error, _FailedAttemptError) and error.step is Step.WAIT
        return is_transient and not self._hurry.is_set()

    def _pause(self, state: RetryCallState) -> float:
        error = None if state.outcome is None else state.outcome.exception()
        asked_s = error.error.retry_after_s if isinstance(error, _FailedAttemptError) else 0.0
        return asked_s + self._terms.wait(state)

    async def _sleep(self, seconds: float) -> None:
        self._show()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hurry.wait()

    async def _bury(self, records: tuple[ExportRecord, ...], reason: str) -> None:
        at = rfc3339(self._clock.wall_ns())
        if not await asyncio.to_thread(self._dead_letters.append, records, reason, at):
            raise _HeldError(f"the dead-letter file is full; {reason}")
        self._records.labels(self._exporter.name, "dead-letter").inc(len(records))
        self._dead.inc(len(records))
        self._log.error(
            Event.EXPORT_BURIED, exporter=self._exporter.name, records=len(records), reason=reason
        )

    async def _check(self) -> None:
        self._asked_ns = self._clock.boottime_ns()
        try:
            async with asyncio.timeout(self._terms.timeout_s):
                await self._exporter.check()
        except Exception as error:  # noqa: BLE001 -- as in `_attempt`
            self._suffer(str(_told(error, self._terms.timeout_s)))
        else:
            self._mend()

    # --- how far we are

    async def _read_positions(self) -> None:
        for shard in range(SHARDS):
            found = await self._read(self._shard_name(shard))
            self._backlog.settle(shard, {} if found is None else read_positions(found))

    async def _write_positions(self, shard: int) -> None:
        await self._write(self._shard_name(shard), positions_text(self._backlog.positions(shard)))

    async def _adopt_batch_name(self) -> None:
        """Take over the name that was noted last: a batch may have gone under it, or may yet.

        A batch goes under it in any case, and only one can. A leader that was only paused cannot
        note another name after us, nor we after it, without finding out.
        """
        found = await self._read(self._head_name)
        self._batch_name = None if found is None else _batch_in(found)

    async def _name_of_next_batch(self, records: tuple[ExportRecord, ...]) -> str:
        if self._batch_name is None:
            name = batch_name(self._clock.wall_ns(), records)
            if self._exporter.keeps_batches:
                await self._write(self._head_name, json.dumps({"batch": name}))
            self._batch_name = name
        return self._batch_name

    @property
    def _head_name(self) -> str:
        return f"gpuwarden-export-{self._exporter.name}"

    def _shard_name(self, shard: int) -> str:
        return f"{self._head_name}-{shard}"

    async def _read(self, name: str) -> str | None:
        found = await self._documents.read(name)
        if found is None:
            self._versions.pop(name, None)
            return None
        self._versions[name] = found.version
        return found.text

    async def _write(self, name: str, text: str) -> None:
        version = self._versions.get(name)
        self._versions[name] = await self._documents.write(name, text, version)

    # --- replay

    async def _replay(self) -> None:
        """Send what an operator wants to be sent again; each replica has its own file."""
        request = await asyncio.to_thread(self._dead_letters.requested)
        replay = await asyncio.to_thread(self._dead_letters.replaying)
        if request is not None:
            count = 0 if replay is None else len(replay.records)
            self._log.info(
                Event.EXPORT_REPLAY,
                exporter=self._exporter.name,
                records=count,
                actor=request.by,
                reason=request.reason,
            )
            self._audit.note(
                Record(
                    RecordKind.EXPORT_REPLAY,
                    actor=request.by,
                    subject=f"export/{self._exporter.name}",
                    decision="requested",
                    refs={"reason": request.reason, "records": count},
                )
            )
        if replay is None:
            return
        for begin in range(0, len(replay.records), self._terms.batch):
            await self._send_again(replay.records[begin : begin + self._terms.batch])
        await asyncio.to_thread(self._dead_letters.replayed)
        self._is_dead_count_known = False

    async def _send_again(self, records: tuple[ExportRecord, ...]) -> None:
        parts = [records]
        while parts:
            part = parts.pop()
            name = f"replay-{batch_digest(part)[:_NAME_DIGITS]}"
            with contextlib.suppress(AlreadySentError):
                if not await self._send(part, name):
                    half = len(part) // 2
                    parts += (part[half:], part[:half])

    # --- health

    def _suffer(self, reason: str) -> None:
        if self._trouble is None:
            self._trouble = reason, self._clock.boottime_ns()
            self._log.error(Event.EXPORT_FAILED, exporter=self._exporter.name, reason=reason)
        self._trouble = reason, self._trouble[1]
        self._healthy.set(0)

    def _mend(self) -> None:
        if self._trouble is not None:
            self._trouble = None
            self._log.info(Event.EXPORT_AVAILABLE, exporter=self._exporter.name)
        self._healthy.set(1)

    def _show(self) -> None:
        self._waiting.set(len(self._backlog))
        dropped, self._dropped = self._backlog.dropped - self._dropped, self._backlog.dropped
        self._records.labels(self._exporter.name, "dropped").inc(dropped)


def batch_name(wall_ns: int, records: tuple[ExportRecord, ...]) -> str:
    """`20261129-114501.123-` and a beginning of the batch's digest."""
    at = rfc3339(wall_ns).replace("-", "").replace(":", "").replace("T", "-").removesuffix("Z")
    return f"{at}-{batch_digest(records)[:_NAME_DIGITS]}"


def _batch_in(text: str) -> str:
    """The name in the document; raises PositionTextError."""
    try:
        return str(json.loads(text)["batch"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise PositionTextError("no name of a batch is in it") from None


def _told(error: Exception, timeout_s: float) -> DeliveryError:
    """The text of an error that the exporter does not know can have a secret in it."""
    if isinstance(error, DeliveryError):
        return error
    if isinstance(error, TimeoutError):
        return DeliveryError(f"no answer within {timeout_s:g} s", Cure.TIME)
    return DeliveryError(f"the exporter failed: {type(error).__name__}", Cure.TIME)


class _FailedAttemptError(Exception):
    """An attempt failed, and what follows."""

    def __init__(self, error: DeliveryError, step: Step) -> None:
        super().__init__(str(error))
        self.error = error
        self.step = step
