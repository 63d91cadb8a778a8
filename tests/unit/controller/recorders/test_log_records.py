"""Log records of audit records and of changes of nodes."""

import pytest

from controller.audit.sealing import LogIdentity, Sealer
from controller.fleet.trust import ChangeKind, TrustChange
from controller.record import Record
from controller.recorders.log_records import audit_entry, severity, state_entry
from gpuwarden.audit.chain import Head
from gpuwarden.audit.record import GENESIS, RecordKind
from gpuwarden.evidence.canonical import sha256_hex
from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry.log_entry import Severity

WALL_NS = 1_700_000_000_123_456_789


def test_an_audit_record_is_its_line_with_its_fields_beside() -> None:
    record = Record(
        RecordKind.EVIDENCE_REFUSED,
        actor="spiffe://lab/agent/n1",
        subject="node/n1",
        decision="refused",
        codes=("INVENTORY_CHANGED",),
        refs={"evidence": "é"},
    )
    sealed = Sealer(LogIdentity("lab/c-0", "boot", "i")).seal(record, WALL_NS, Head(6, GENESIS))
    entry = audit_entry(sealed)
    assert entry.body.encode() == sealed.line
    assert entry.name == "gpuwarden.audit.evidence.refused"
    assert entry.scope == "gpuwarden.audit"
    assert entry.time_ns == 1_700_000_000_123_000_000
    assert entry.severity is Severity.WARNING
    assert entry.attributes == {
        "gpuwarden.kind": "evidence.refused",
        "gpuwarden.actor": "spiffe://lab/agent/n1",
        "gpuwarden.subject": "node/n1",
        "gpuwarden.decision": "refused",
        "gpuwarden.codes": ("INVENTORY_CHANGED",),
        "gpuwarden.seq": 7,
        "gpuwarden.digest": sha256_hex(sealed.line),
        "gpuwarden.origin": "lab/c-0",
    }


def test_a_change_of_a_node_has_its_cause() -> None:
    change = TrustChange(
        "n1", ChangeKind.GPU_LOST, ReasonCode.INVENTORY_CHANGED, "fell off the bus", "GPU-1"
    )
    entry = state_entry(change, WALL_NS)
    assert (entry.scope, entry.name) == ("gpuwarden.fleet", "gpuwarden.node.state")
    assert entry.time_ns == WALL_NS
    assert entry.severity is Severity.WARNING
    assert entry.body == "node n1: gpu-lost INVENTORY_CHANGED"
    assert entry.attributes == {
        "gpuwarden.subject": "node/n1",
        "gpuwarden.decision": "gpu-lost",
        "gpuwarden.codes": ("INVENTORY_CHANGED",),
        "gpuwarden.detail": "fell off the bus",
        "gpuwarden.gpu": "GPU-1",
    }


def test_a_change_without_a_code_or_gpu() -> None:
    entry = state_entry(TrustChange("n1", ChangeKind.FIRST_ACCEPTED), WALL_NS)
    assert entry.severity is Severity.INFO
    assert entry.body == "node n1: first-accepted"
    assert entry.attributes["gpuwarden.codes"] == ()
    assert entry.attributes["gpuwarden.gpu"] == ""


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        ("accepted", Severity.INFO),
        ("released", Severity.INFO),
        ("passed", Severity.INFO),
        ("refused", Severity.WARNING),
        ("rejected", Severity.WARNING),
        ("quarantined", Severity.WARNING),
        ("unreserved_use", Severity.WARNING),
        ("lost", Severity.ERROR),
        ("accused", Severity.ERROR),
        ("unavailable", Severity.ERROR),
    ],
)
def test_the_severity_follows_the_decision(decision: str, expected: Severity) -> None:
    assert severity(decision) is expected


def test_what_takes_trust_from_a_node_is_a_warning() -> None:
    warned = {kind for kind in ChangeKind if severity(kind.value) is Severity.WARNING}
    assert warned == {
        ChangeKind.REFUSED,
        ChangeKind.REVOKED,
        ChangeKind.QUARANTINED,
        ChangeKind.LEASE_ENDED,
        ChangeKind.GPU_LOST,
        ChangeKind.GPU_UNHEALTHY,
        ChangeKind.CLAIM_REPELLED,
    }
