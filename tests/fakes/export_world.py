"""Destinations and documents in memory, and controllers that die at a chosen step."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from tenacity.wait import wait_base, wait_none

from controller.export.dead_letters import DeadLetters
from controller.export.delivery import Delivery, Terms
from controller.export.documents import (
    Document,
    DocumentChangedError,
    DocumentsUnavailableError,
)
from controller.export.exporter import AlreadySentError, Batch
from controller.export.failures import Attempts, DeliveryError
from controller.export.records import ExportRecord, Facts
from gpuwarden import __version__
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.exported import CLUSTER
from tests.fakes.clock import FakeClock
from tests.fakes.recording_audit import RecordingAudit

NO_WAIT = wait_none()


class KilledError(BaseException):
    """The process is gone; nothing catches it."""


class Steps:
    """Counts what reaches the outside world; the process dies at one step, before or after it."""

    def __init__(self, dies_at: int | None = None, *, after: bool = False) -> None:
        self.count = 0
        self._dies_at = dies_at
        self._after = after

    def begin(self) -> None:
        self.count += 1
        if self.count == self._dies_at and not self._after:
            raise KilledError

    def end(self) -> None:
        if self.count == self._dies_at and self._after:
            raise KilledError


class MemoryDocuments:
    """Of all replicas; versions are numbers."""

    def __init__(self) -> None:
        self.texts: dict[str, tuple[str, int]] = {}
        self.is_down = False
        self.writes: list[str] = []

    def read(self, name: str) -> Document | None:
        if self.is_down:
            raise DocumentsUnavailableError("the API server is down")
        found = self.texts.get(name)
        return None if found is None else Document(found[0], str(found[1]))

    def write(self, name: str, text: str, version: str | None) -> str:
        if self.is_down:
            raise DocumentsUnavailableError("the API server is down")
        found = self.texts.get(name)
        if (None if found is None else str(found[1])) != version:
            raise DocumentChangedError(name)
        self.writes.append(name)
        self.texts[name] = text, (0 if found is None else found[1]) + 1
        return str(self.texts[name][1])


class RecordSink:
    """Like a table whose key is the record's."""

    keeps_batches = False

    def __init__(self) -> None:
        self.rows: dict[str, ExportRecord] = {}

    def take(self, batch: Batch) -> None:
        for each in batch.records:
            self.rows.setdefault(each.key, each)

    @property
    def records(self) -> list[ExportRecord]:
        return list(self.rows.values())


class ObjectSink:
    """Like a bucket: a name is taken once, and nobody looks into objects."""

    keeps_batches = True

    def __init__(self) -> None:
        self.objects: dict[str, tuple[ExportRecord, ...]] = {}

    def take(self, batch: Batch) -> None:
        if batch.name in self.objects:
            raise AlreadySentError(self.objects[batch.name])
        self.objects[batch.name] = batch.records

    @property
    def records(self) -> list[ExportRecord]:
        return [x for records in self.objects.values() for x in records]


Sink = RecordSink | ObjectSink


class StubExporter:
    """One replica's way to a sink."""

    name = "postgres"

    def __init__(self, sink: Sink, steps: Steps) -> None:
        self._sink = sink
        self._steps = steps
        self.keeps_batches = sink.keeps_batches
        self.batches: list[Batch] = []
        self.failures: list[Exception] = []
        """Raised one by one, before anything is taken."""
        self.refuses: Callable[[Batch], DeliveryError | None] = lambda _batch: None
        self.held: asyncio.Event | None = None
        self.asked = asyncio.Event()
        self.checks = 0
        self.is_closed = False

    async def send(self, batch: Batch) -> None:
        self._steps.begin()
        self.batches.append(batch)
        self.asked.set()
        if self.held is not None:
            await self.held.wait()
        if self.failures:
            raise self.failures.pop(0)
        refused = self.refuses(batch)
        if refused is not None:
            raise refused
        self._sink.take(batch)
        self._steps.end()

    async def check(self) -> None:
        self.checks += 1
        if self.failures:
            raise self.failures.pop(0)

    async def close(self) -> None:
        self.is_closed = True


class _SteppedDocuments:
    def __init__(self, documents: MemoryDocuments, steps: Steps) -> None:
        self._documents = documents
        self._steps = steps

    async def read(self, name: str) -> Document | None:
        return self._documents.read(name)

    async def write(self, name: str, text: str, version: str | None) -> str:
        self._steps.begin()
        written = self._documents.write(name, text, version)
        self._steps.end()
        return written


class Replica:
    """One controller's delivery."""

    def __init__(
        self,
        name: str,
        sink: Sink,
        documents: MemoryDocuments,
        folder: Path,
        *,
        steps: Steps | None = None,
        leads: bool = True,
        batch: int = 4,
        attempts: int = 3,
        waiting: int = 1000,
        dead_letter_bytes: int = 1 << 20,
        clock: FakeClock | None = None,
        wait: wait_base = NO_WAIT,
        timeout_s: float = 60.0,
    ) -> None:
        self.steps = steps or Steps()
        self.leads = leads
        self.clock = clock or FakeClock()
        self.audit = RecordingAudit()
        self.instruments = Instruments(Process.CONTROLLER, __version__)
        self.exporter = StubExporter(sink, self.steps)
        self.dead_letters = DeadLetters(folder / name, self.exporter.name, dead_letter_bytes)
        self.delivery = Delivery(
            self.exporter,
            _SteppedDocuments(documents, self.steps),
            self.dead_letters,
            terms=Terms(
                cluster=CLUSTER,
                batch=batch,
                attempts=Attempts(attempts),
                waiting=waiting,
                timeout_s=timeout_s,
                wait=wait,
                round_s=0.01,
            ),
            leads=lambda: self.leads,
            clock=self.clock,
            audit=self.audit,
            instruments=self.instruments,
        )

    def note(self, *facts: Facts) -> None:
        for each in facts:
            self.delivery.note(each)

    def value(self, name: str, **labels: str) -> float | None:
        return self.instruments.registry.get_sample_value(
            name, {"exporter": self.exporter.name, **labels}
        )
