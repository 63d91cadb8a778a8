"""Record.

Holds: record, log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from gpuwarden.audit.archived_evidence import ArchivedEvidence
from gpuwarden.audit.record import RecordKind

# --- record
# What happened, before it gets its place in the log. Pure: no IO, no clock.

Json = bool | int | str | list["Json"] | tuple["Json", ...] | Mapping[str, "Json"] | None
"""What may stand in `refs`: no floats; integers within ±2**53 (RFC 8785 section 6)."""


@dataclass(frozen=True, slots=True)
class Record:
    """One event for the log; time, sequence, origin and chain are added when it is written.

    `actor` is who caused it (a SPIFFE ID, `kube-scheduler`, `controller`), `subject`
    what it is about (`node/gpu-7`, `pod/team-a/train-0`), `decision` the outcome in one
    word (`accepted`, `refused`, `revoked`, `passed`, …), `codes` the reason codes, and
    `refs` digests, counts and names. No secrets. A record that would exceed 4 KB has its
    longest lists replaced by their length and digest.
    """

    kind: RecordKind
    actor: str
    subject: str
    decision: str
    codes: tuple[str, ...] = ()
    refs: Mapping[str, Json] = field(default_factory=lambda: MappingProxyType({}))
    archived_evidence: ArchivedEvidence | None = field(default=None, compare=False, repr=False)
    """Evidence to archive if the record goes into the log itself; where the record goes into a
    counter, once another one cites its digest in `refs.evidence`."""


# --- log
# The audit log as the rest of the controller sees it: `grant` waits, `note` never does.


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
