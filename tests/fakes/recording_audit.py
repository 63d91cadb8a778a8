"""An audit log that remembers, and that a test can break or hold up."""

import asyncio
from dataclasses import dataclass, field

from controller.record import AuditUnavailableError, Record
from gpuwarden.audit.record import RecordKind


@dataclass
class RecordingAudit:
    granted: list[Record] = field(default_factory=list)
    noted: list[Record] = field(default_factory=list)
    broken: bool = False
    held: asyncio.Event | None = None
    """While set, grants wait for it."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def grant(self, record: Record) -> None:
        self.asked.set()
        if self.held is not None:
            await self.held.wait()
        if self.broken:
            raise AuditUnavailableError("the disk is full")
        self.granted.append(record)

    def note(self, record: Record) -> None:
        self.noted.append(record)

    def kinds(self) -> list[RecordKind]:
        return [record.kind for record in self.noted]
