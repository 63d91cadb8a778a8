"""What an exporter is: the one interface that stdout, HTTP, PostgreSQL and S3 implement."""

from dataclasses import dataclass
from typing import Protocol

from controller.export.records import ExportRecord
from gpuwarden.counted import counted


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that are delivered together."""

    name: str
    """Names the batch at destinations that keep it as a whole; else only its time."""
    key: str
    """The same for the same records in the same order."""
    records: tuple[ExportRecord, ...]


class AlreadySentError(Exception):
    """The destination has a batch of this name already: with these records, by a predecessor."""

    def __init__(self, records: tuple[ExportRecord, ...]) -> None:
        super().__init__(f"there already: {counted(len(records), 'record')}")
        self.records = records


class Exporter(Protocol):
    """Takes batches to one destination; used from one event loop, one call at a time."""

    @property
    def name(self) -> str:
        """As in settings, metrics and file names."""

    @property
    def keeps_batches(self) -> bool:
        """Whether the destination keeps whole batches by their names, and not records by key."""

    async def send(self, batch: Batch) -> None:
        """Return once all records are there; raises DeliveryError or AlreadySentError."""

    async def check(self) -> None:
        """Ask whether the destination would take records; raises DeliveryError."""

    async def close(self) -> None:
        """Let go of connections."""
