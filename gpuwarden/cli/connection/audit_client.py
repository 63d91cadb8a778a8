"""Reads the audit log of one replica over gRPC; every failure is a CliError."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from grpc import aio

from gpuwarden.audit.gpu_history import Shown, ShownGpu
from gpuwarden.audit.reading import RecordFilter, record_of
from gpuwarden.audit.record import LogRecord
from gpuwarden.cli.exit_codes import CliError
from gpuwarden.wire.v1 import audit_pb2 as pb
from gpuwarden.wire.v1.audit_pb2_grpc import AuditServiceStub

if TYPE_CHECKING:
    from gpuwarden.wire.v1.audit_pb2_grpc import AuditServiceAsyncStub

Explain = Callable[[aio.AioRpcError], CliError]
Notice = Callable[["aio.Call"], Awaitable[None]]
FOR_EVER: Final = None
"""No time limit: of a call that follows a log."""


@dataclass(slots=True)
class LogPart:
    """What one replica's log has of what was asked for."""

    log: str = ""
    """Origin."""
    logs: tuple[str, ...] = ()
    """Origins of all logs that the replica knows of."""
    since: str = ""
    """Time of the oldest record that was looked at; empty where there is none."""
    newest: int = 0
    """Number of the last record that was looked at; 0 where nobody says."""
    records: list[LogRecord] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    """Of these records, as the log has them: with LF."""
    unknown: int = 0
    """Records that only a newer gpuwarden can read."""
    shown: dict[str, Shown] = field(default_factory=dict)
    """What archived evidence shows, by digest."""
    uuids: tuple[str, ...] = ()
    """Of GPUs that have a serial."""

    def add(self, lines: Iterable[str]) -> None:
        """Add records."""
        for line in lines:
            whole = line.encode() + b"\n"
            record = record_of(whole)
            if record is None:
                self.unknown += 1
            else:
                self.records.append(record)
                self.lines.append(whole)


class AuditClient:
    """The methods of AuditService, each with a time limit but `follow`; each raises CliError."""

    def __init__(
        self, channel: aio.Channel, timeout: float, explain: Explain, notice: Notice
    ) -> None:
        self._service: AuditServiceAsyncStub = AuditServiceStub(channel)
        self._timeout = timeout
        self._explain = explain
        self._notice = notice

    async def last(self, wanted: RecordFilter, last: int) -> LogPart:
        """The last records that fit, the oldest first."""
        request = pb.ReadRecordsRequest(kinds=wanted.kinds, subject=wanted.subject, last=last)
        return await self._joined(self._records(request, self._timeout))

    async def follow(self, wanted: RecordFilter, after: int) -> AsyncIterator[LogPart]:
        """What fits and comes after a record, or from now on for 0; first what log it is."""
        request = pb.ReadRecordsRequest(
            kinds=wanted.kinds, subject=wanted.subject, follow=True, after=after
        )
        async for part in self._records(request, FOR_EVER):
            yield part

    async def with_serial(self, serial: str) -> LogPart:
        """The GPUs that have a serial or have had it."""
        try:
            call = self._service.FindGpus(pb.FindGpusRequest(serial=serial), timeout=self._timeout)
            found = await call
            await self._notice(call)
        except aio.AioRpcError as error:
            raise self._explain(error) from None
        return LogPart(found.log, tuple(found.logs), found.since, uuids=tuple(found.uuids))

    async def of_gpus(self, gpus: Sequence[str], nodes: Iterable[str] = ()) -> LogPart:
        """What the history of GPUs is made of, with the acceptances of these nodes."""
        request = pb.ReadGpuRecordsRequest(gpus=gpus, nodes=sorted(nodes))
        return await self._joined(self._gpu_records(request))

    async def _joined(self, parts: AsyncIterator[LogPart]) -> LogPart:
        whole = LogPart()
        async for part in parts:
            if part.log:
                whole.log, whole.logs, whole.since = part.log, part.logs, part.since
                whole.newest = part.newest
            whole.records += part.records
            whole.lines += part.lines
            whole.unknown += part.unknown
            whole.shown |= part.shown
        return whole

    async def _records(
        self, request: pb.ReadRecordsRequest, limit_s: float | None
    ) -> AsyncIterator[LogPart]:
        try:
            call = self._service.ReadRecords(request, timeout=limit_s)
            async for one in call:
                await self._notice(call)
                part = LogPart(one.log, tuple(one.logs), one.since, one.newest)
                part.add(one.records)
                yield part
        except aio.AioRpcError as error:
            raise self._explain(error) from None

    async def _gpu_records(self, request: pb.ReadGpuRecordsRequest) -> AsyncIterator[LogPart]:
        try:
            call = self._service.ReadGpuRecords(request, timeout=self._timeout)
            async for one in call:
                await self._notice(call)
                part = LogPart(one.log, tuple(one.logs), one.since)
                part.add(one.records)
                part.shown = {x.evidence: _shown(x) for x in one.shown}
                yield part
        except aio.AioRpcError as error:
            raise self._explain(error) from None


def _shown(message: pb.ShownEvidence) -> Shown:
    gpus = (
        ShownGpu(
            x.uuid,
            x.serial if x.HasField("serial") else None,
            x.product if x.HasField("product") else None,
            x.index,
            x.pci_bus_id,
            tuple(x.mig_devices),
        )
        for x in message.gpus
    )
    return Shown(message.machine if message.HasField("machine") else None, tuple(gpus))
