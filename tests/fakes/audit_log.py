"""An audit log in memory that can be made unavailable; for tests of those who write records."""

from controller.record import AuditUnavailableError, Record


class MemoryAuditLog:
    """Implements `AuditLog`."""

    def __init__(self) -> None:
        self.granted: list[Record] = []
        self.noted: list[Record] = []
        self.unavailable = ""

    async def grant(self, record: Record) -> None:
        if self.unavailable:
            raise AuditUnavailableError(self.unavailable)
        self.granted.append(record)

    def note(self, record: Record) -> None:
        self.noted.append(record)
