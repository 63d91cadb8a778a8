"""AuditService: what this replica's audit log says of events and of GPUs, for people and tools.

Callers are authorized before they come here. Reads the files of the log on threads, in steps, and
is bounded by how much of the log's end is read. Must not write, nor know other replicas' logs.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Final, TypeVar

import grpc

from controller.rpc.calls import Context, abort_with, reject_field
from gpuwarden.audit.archive import archived_shown
from gpuwarden.audit.gpu_history import (
    HISTORY_KINDS,
    Shown,
    ShownOf,
    Sought,
    evidence_of,
    is_uuid,
    with_serial,
)
from gpuwarden.audit.reading import (
    LINE_LIMIT,
    TAIL_BYTES,
    RecordFilter,
    Tail,
    recent_lines,
    recent_records,
    record_of,
    record_of_kind,
)
from gpuwarden.audit.record import LogRecord, RecordKind
from gpuwarden.identity.spiffe_id import is_node_name
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import audit_pb2 as pb
from gpuwarden.wire.v1.audit_pb2_grpc import AuditServiceServicer

MAX_LAST: Final = 10_000
MAX_KINDS: Final = 32
MAX_GPUS: Final = 256
MAX_OPEN: Final = 32
"""Streams at a time, of all callers."""
HISTORY_BYTES: Final = 1 << 30
"""Of the log's end, for the history of a GPU."""
NAMES_KEY: Final = frozenset({RecordKind.LOG_KEY, RecordKind.LOG_ROTATE, RecordKind.LOG_START})
"""Kinds that name the key of checkpoints; the first record of each file is one of them."""
_KEY_BYTES: Final = TAIL_BYTES + LINE_LIMIT
"""Of the log's end, for the last of these: as long as a file gets, and its last record."""
_MAX_SUBJECT: Final = 1000
_MAX_NAME: Final = 100
_READS_AT_ONCE: Final = 2
_STEP_BYTES: Final = 4 << 20
_STEP_RECORDS: Final = 64
"""A step looks at so many bytes, or gives so many records; then others have their turn."""
_POLL_S: Final = 0.5
T = TypeVar("T")


class AuditServicer(AuditServiceServicer):
    """The servicer; one for all listeners."""

    def __init__(
        self,
        folder: Path,
        origin: str,
        *,
        logs: Callable[[], Iterable[str]],
        with_serial_now: Callable[[str], Iterable[str]],
        poll_s: float = _POLL_S,
    ) -> None:
        """`logs` gives the origins of all logs that are known of.

        `with_serial_now` gives the UUIDs of the GPUs that nodes show now with a serial.
        """
        self._folder = folder
        self._origin = origin
        self._logs = logs
        self._with_serial_now = with_serial_now
        self._poll_s = poll_s
        self._few = asyncio.Semaphore(_READS_AT_ONCE)
        self._open = 0
        self._stopping = asyncio.Event()

    def drain(self) -> None:
        """End all that follow with a clear status, because the controller stops."""
        self._stopping.set()

    async def ReadRecords(  # noqa: N802 - the method's name in the protocol
        self, request: pb.ReadRecordsRequest, context: Context
    ) -> AsyncIterator[pb.ReadRecordsResponse]:
        """The last records, and those that come."""
        await _demand_records(request, context)
        wanted = RecordFilter(tuple(request.kinds), request.subject)
        await self._demand_room(context)
        self._open += 1
        try:
            tail = await self._read(lambda: Tail(self._folder, after=request.after), context)
            last = _Last("", request.after, deque())
            if not request.after:
                last = await self._read(lambda: _last_records(tail, wanted, request.last), context)
                if len(last.lines) < request.last and wanted.kinds and {*wanted.kinds} <= NAMES_KEY:
                    more = partial(_last_lines, self._folder, wanted, request.last)
                    last = replace(last, lines=await self._read(more, context))
            yield pb.ReadRecordsResponse(
                log=self._origin, logs=sorted(self._logs()), since=last.since, newest=last.newest
            )
            lines = list(last.lines)
            for start in range(0, len(lines), _STEP_RECORDS):
                yield pb.ReadRecordsResponse(records=lines[start : start + _STEP_RECORDS])
            goes_on = request.follow or request.after > 0
            while goes_on:
                steps = _steps(tail, wanted)
                while (step := await self._read(lambda: next(steps, None), context)) is not None:  # noqa: B023 - runs before the next one is made
                    if step:
                        yield pb.ReadRecordsResponse(records=step)
                goes_on = request.follow and not await self._stops()
            if request.follow:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "this controller is stopping")
        finally:
            self._open -= 1

    async def FindGpus(  # noqa: N802 - same
        self, request: pb.FindGpusRequest, context: Context
    ) -> pb.FindGpusResponse:
        """The GPUs that have a serial, or have had it."""
        serial = request.serial
        if not 0 < len(serial) <= _MAX_NAME or not serial.isprintable() or is_uuid(serial):
            detail = f"serial is {serial[:80]!a}, expected the serial number of a GPU"
            await reject_field(context, "serial", detail)
        found, since = set(self._with_serial_now(serial)), ""
        if not found:
            found, since = await self._read(lambda: self._find(serial), context)
        return pb.FindGpusResponse(
            log=self._origin, logs=sorted(self._logs()), uuids=sorted(found), since=since
        )

    def _find(self, serial: str) -> tuple[set[str], str]:
        records = recent_records(self._folder, (RecordKind.EVIDENCE_ACCEPTED,), TAIL_BYTES)
        since = _First(records)
        return with_serial(since, serial, self._shown_of), since.ts

    async def ReadGpuRecords(  # noqa: N802 - same
        self, request: pb.ReadGpuRecordsRequest, context: Context
    ) -> AsyncIterator[pb.ReadGpuRecordsResponse]:
        """What the history of some GPUs is made of."""
        await _demand_gpus(request, context)
        sought = Sought(tuple(request.gpus), frozenset(request.nodes))
        await self._demand_room(context)
        self._open += 1
        try:
            steps = _gpu_steps(self._folder, sought, cache(self._shown_of))
            is_first = True
            while (step := await self._read(lambda: next(steps, None), context)) is not None:
                if len(step.named) > MAX_GPUS:
                    detail = f"gpus name more than {MAX_GPUS} GPUs, expected longer beginnings"
                    await reject_field(context, "gpus", detail)
                message = pb.ReadGpuRecordsResponse(records=step.lines, shown=step.shown)
                if is_first:
                    message.log, message.since = self._origin, step.since
                    message.logs.extend(sorted(self._logs()))
                if is_first or step.lines:
                    yield message
                is_first = False
        finally:
            self._open -= 1

    def _shown_of(self, digest: str) -> Shown | None:
        return archived_shown(self._folder, digest)

    async def _read(self, read: Callable[[], T], context: Context) -> T:
        """On a thread, of which few read at a time."""
        try:
            async with self._few:
                return await asyncio.to_thread(read)
        except OSError as error:
            text = f"the audit log cannot be read: {error.strerror or 'it has no file'}"
            await abort_with(context, Refusal(ReasonCode.AUDIT_UNAVAILABLE, text))

    async def _demand_room(self, context: Context) -> None:
        if self._open >= MAX_OPEN:
            text = f"{MAX_OPEN} readers of the audit log are open"
            await abort_with(context, Refusal(ReasonCode.LIMIT_STREAMS, text))

    async def _stops(self) -> bool:
        """Wait until it is time to look again; whether the controller stops instead."""
        try:
            await asyncio.wait_for(self._stopping.wait(), self._poll_s)
        except TimeoutError:
            return False
        return True


# --- requests


async def _demand_records(request: pb.ReadRecordsRequest, context: Context) -> None:
    if request.last > MAX_LAST:
        detail = f"last is {request.last}, expected 0 to {MAX_LAST}"
        await reject_field(context, "last", detail)
    if len(request.kinds) > MAX_KINDS or not all(0 < len(x) <= _MAX_NAME for x in request.kinds):
        detail = f"kinds: expected at most {MAX_KINDS}, each of 1 to {_MAX_NAME} characters"
        await reject_field(context, "kinds", detail)
    if len(request.subject) > _MAX_SUBJECT:
        detail = f"subject: expected at most {_MAX_SUBJECT} characters"
        await reject_field(context, "subject", detail)


async def _demand_gpus(request: pb.ReadGpuRecordsRequest, context: Context) -> None:
    if not 0 < len(request.gpus) <= MAX_GPUS:
        detail = f"gpus: {len(request.gpus)} given, expected 1 to {MAX_GPUS}"
        await reject_field(context, "gpus", detail)
    wrong = next((x for x in request.gpus if not is_uuid(x) or len(x) > _MAX_NAME), None)
    if wrong is not None:
        detail = f"gpus has {wrong[:80]!a}, expected a UUID as GPU-… or MIG-…, or its beginning"
        await reject_field(context, "gpus", detail)
    if len(request.nodes) > MAX_GPUS or not all(map(is_node_name, request.nodes)):
        detail = f"nodes: expected at most {MAX_GPUS} RFC 1123 node names"
        await reject_field(context, "nodes", detail)


# --- on threads


@dataclass(frozen=True, slots=True)
class _Last:
    since: str
    """Time of the oldest record that was looked at."""
    newest: int
    """Number of the last one."""
    lines: deque[str]


def _last_records(tail: Tail, wanted: RecordFilter, last: int) -> _Last:
    """Lines of the last records that fit."""
    found, since, newest = deque[str](maxlen=last), "", 0
    for line, record in tail.new():
        since, newest = since or record.ts, record.seq
        if wanted.fits(record):
            found.append(_text(line))
    return _Last(since, newest, found)


def _last_lines(folder: Path, wanted: RecordFilter, last: int) -> deque[str]:
    """Lines of the last records that fit, from further back."""
    found = deque[str](maxlen=last)
    for line in recent_lines(folder, _KEY_BYTES):
        record = record_of_kind(line, wanted.kinds)
        if record is not None and wanted.fits(record):
            found.append(_text(line))
    return found


def _steps(tail: Tail, wanted: RecordFilter) -> Iterator[list[str]]:
    """Lines that have come and fit, in steps, which may be empty."""
    found, looked = list[str](), 0
    for line, record in tail.new():
        looked += len(line)
        if wanted.fits(record):
            found.append(_text(line))
        if looked >= _STEP_BYTES or len(found) == _STEP_RECORDS:
            yield found
            found, looked = [], 0
    yield found


@dataclass(slots=True)
class _GpuStep:
    since: str
    named: set[str]
    """All UUIDs so far."""
    lines: list[str] = field(default_factory=list)
    shown: list[pb.ShownEvidence] = field(default_factory=list)
    looked: int = 0


def _gpu_steps(folder: Path, sought: Sought, shown_of: ShownOf) -> Iterator[_GpuStep]:
    """Records about the GPUs with what evidence shows of them, in steps, which may be empty."""
    step, given = _GpuStep("", set()), set[str]()
    for line in recent_lines(folder, HISTORY_BYTES):
        step.looked += len(line)
        if not step.since:
            first = record_of(line)
            step.since = "" if first is None else first.ts
        record = record_of_kind(line, HISTORY_KINDS)
        named = set[str]() if record is None else sought.named_by(record, shown_of)
        if record is not None and (named or sought.has_node_of(record)):
            step.named |= named
            step.lines.append(_text(line))
            digest = evidence_of(record)
            shown = None if digest in given else shown_of(digest)
            if shown is not None:
                given.add(digest)
                step.shown.append(_shown_message(digest, shown, sought))
        if step.looked >= _STEP_BYTES or len(step.lines) == _STEP_RECORDS:
            yield step
            step = _GpuStep(step.since, step.named)
    yield step


def _shown_message(digest: str, shown: Shown, sought: Sought) -> pb.ShownEvidence:
    ours = replace(shown, gpus=tuple(x for x in shown.gpus if x.uuid.startswith(sought.gpus)))
    message = pb.ShownEvidence(evidence=digest, machine=ours.machine)
    for gpu in ours.gpus:
        message.gpus.add(
            uuid=gpu.uuid,
            serial=gpu.serial,
            product=gpu.product,
            index=gpu.index,
            pci_bus_id=gpu.pci_bus_id,
            mig_devices=gpu.mig_devices,
        )
    return message


def _text(line: bytes) -> str:
    return line.removesuffix(b"\n").decode()


class _First:
    """Records, and the time of the first of them once they are read."""

    def __init__(self, records: Iterable[LogRecord]) -> None:
        self._records = records
        self.ts = ""

    def __iter__(self) -> Iterator[LogRecord]:
        for record in self._records:
            self.ts = self.ts or record.ts
            yield record
