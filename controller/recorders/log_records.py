"""Log records for OpenTelemetry, of audit records and of changes of nodes."""

from datetime import datetime
from types import MappingProxyType
from typing import Final

from controller.audit.sealing import SealedLine
from controller.fleet.trust import TrustChange
from gpuwarden.audit.record import decode_record
from gpuwarden.moment import wall_ns
from gpuwarden.telemetry.log_entry import LogEntry, Severity

AUDIT: Final = "gpuwarden.audit"
"""Scope of audit records, and the beginning of their names."""
FLEET: Final = "gpuwarden.fleet"
NODE_STATE: Final = "gpuwarden.node.state"

_SEVERITY: Final = MappingProxyType(
    dict.fromkeys(("accused", "failed", "lost", "rolled-back", "unavailable"), Severity.ERROR)
    | dict.fromkeys(
        (
            "banned",
            "claim-repelled",
            "evicted",
            "failure-notice",
            "gone_gpu",
            "gpu-lost",
            "gpu-unhealthy",
            "idle",
            "lease-ended",
            "not-ready",
            "other_gpu",
            "quarantined",
            "refused",
            "rejected",
            "reported",
            "revoked",
            "sliced_gpu",
            "exists",
            "taken_gpu",
            "unfit_gpu",
            "unreserved",
            "unreserved_use",
        ),
        Severity.WARNING,
    )
)
"""By the decision of a record, or the kind of a change; what is not here is information."""


def severity(decision: str) -> Severity:
    """How a decision is shown."""
    return _SEVERITY.get(decision, Severity.INFO)


def audit_entry(sealed: SealedLine) -> LogEntry:
    """An audit record: the body is its line, so that what was collected can be verified."""
    record = decode_record(sealed.line)
    return LogEntry(
        scope=AUDIT,
        name=f"{AUDIT}.{record.kind}",
        time_ns=wall_ns(datetime.fromisoformat(record.ts)),
        severity=severity(record.decision),
        body=sealed.line.decode(),
        attributes={
            "gpuwarden.kind": record.kind,
            "gpuwarden.actor": record.actor,
            "gpuwarden.subject": record.subject,
            "gpuwarden.decision": record.decision,
            "gpuwarden.codes": record.codes,
            "gpuwarden.seq": record.seq,
            "gpuwarden.digest": sealed.head.digest,
            "gpuwarden.origin": record.origin,
        },
    )


def state_entry(change: TrustChange, at_ns: int) -> LogEntry:
    """A change of a node as it happens, also where the audit log counts it."""
    codes = (change.code.value,) if change.code else ()
    return LogEntry(
        scope=FLEET,
        name=NODE_STATE,
        time_ns=at_ns,
        severity=severity(change.kind.value),
        body=" ".join((f"node {change.node}: {change.kind.value}", *codes)),
        attributes={
            "gpuwarden.subject": f"node/{change.node}",
            "gpuwarden.decision": change.kind.value,
            "gpuwarden.codes": codes,
            "gpuwarden.detail": change.detail,
            "gpuwarden.gpu": change.gpu or "",
        },
    )
