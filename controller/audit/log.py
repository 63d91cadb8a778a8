"""The audit log as the rest of the controller sees it: `grant` waits, `note` never does."""

from typing import Protocol

from controller.audit.record import Record


class AuditUnavailableError(Exception):
    """The record cannot be made durable now; the grant that wanted it must be refused."""


class AuditLog(Protocol):
    """Append-only log of one replica."""

    async def grant(self, record: Record) -> None:
        """Return when the record is durable.

        Raises:
            AuditUnavailableError: it is not, or the log lags behind; refuse with AUDIT_UNAVAILABLE.

        """

    def note(self, record: Record) -> None:
        """Take the record without waiting; written with the next group commit. Never raises."""
