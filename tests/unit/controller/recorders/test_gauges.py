import structlog

from controller.explain.node import RecentRefusals
from controller.recorders.gauges import FleetGauges, count_fleet
from controller.recorders.trust import MAX_LOGS, MAX_RECORDS, TrustJournal, WitnessAlarms
from gpuwarden.audit.record import RecordKind
from gpuwarden.evidence.model import LogAlarm, LostGpu
from gpuwarden.identity.keeper import KeeperFacts
from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.evidence import NODE, Scene
from tests.builders.node_views import (
    HASH_B,
    S,
    acceptance,
    fleet_of,
    gpu_view,
    node_view,
    past_refusal,
)
from tests.fakes.recording_audit import RecordingAudit


def test_the_fleet_is_counted_by_state() -> None:
    lost = LostGpu(uuid="x", index=1, pci_bus_id="0", error="GPU_IS_LOST")
    gpus = (gpu_view(0), gpu_view(1, lost=lost), gpu_view(2, unhealthy="xid 79"))
    fleet = fleet_of(
        node_view("a", acceptance=acceptance(gpus=gpus)),
        node_view("b", blocked=past_refusal(ReasonCode.SIG_INVALID)),
        node_view("c", acceptance=acceptance(fresh_until_ns=1, attestation_hash=HASH_B)),
        node_view("d", acceptance=None),
    )
    counts = count_fleet(fleet, 50 * S)
    assert dict(counts.nodes) == {
        "unknown": 1,
        "refused": 0,
        "eligible": 1,
        "stale": 1,
        "revoked": 1,
        "quarantined": 0,
    }
    assert dict(counts.gpus) == {"usable": 5, "lost": 1, "unhealthy": 1}
    assert counts.classes == 2


def test_gauges_show_the_present_and_counters_only_what_is_new() -> None:
    instruments = Instruments(Process.CONTROLLER, "0")
    gauges = FleetGauges(instruments)
    for facts in (
        KeeperFacts(0.0, 0, 0, 0, watching=True),
        KeeperFacts(60.0, 1, 1, 2, watching=True),
        KeeperFacts(90.0, 3, 2, 2, watching=True),
        KeeperFacts(80.0, 3, 2, 3, watching=True),
    ):
        gauges.set_svid(facts)
    value = instruments.registry.get_sample_value
    assert value("gpuwarden_svid_expires_seconds") == 80
    assert value("gpuwarden_svid_updates_total", {"result": "taken"}) == 3
    assert value("gpuwarden_svid_updates_total", {"result": "failed"}) == 3
    assert value("gpuwarden_svid_source_restarts_total") == 1
    gauges.set_fleet(count_fleet(fleet_of(node_view("a")), 50 * S))
    gauges.set_fleet(count_fleet(fleet_of(), 50 * S))
    assert value("gpuwarden_nodes", {"state": "eligible"}) == 0
    assert value("gpuwarden_classes") == 0


# --- What nodes say against logs: told once per node, counted, bounded, and never acted on


def alarm(code: str = "LOG_RESET", origin: str = "lab/c", text: str = "text") -> LogAlarm:
    return LogAlarm(code=code, origin=origin, detail=text, known=text, seen=text, wall_ms="7")


class Desk:
    def __init__(self) -> None:
        self.audit = RecordingAudit()
        self.instruments = Instruments(Process.CONTROLLER, "0")
        self.alarms = WitnessAlarms(self.instruments, self.audit)

    def telling(self, code: str) -> float | None:
        return self.instruments.registry.get_sample_value(
            "gpuwarden_audit_witness_alarms", {"code": code}
        )


def test_an_alarm_is_told_once_and_counted_as_long_as_it_is_told() -> None:
    desk = Desk()
    assert desk.telling("LOG_RESET") == 0
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            desk.alarms.told("n1", "spiffe://x/agent/n1", (alarm(), alarm("MADE_UP")))
        desk.alarms.told("n1", "a", (alarm(), alarm("CHECKPOINT_INCONSISTENT")))
        desk.alarms.told("n2", "a", (alarm(),))
    assert [(line["event"], line["node"], line["code"]) for line in logs] == [
        ("audit.witness.alarm", "n1", "LOG_RESET"),
        ("audit.witness.alarm", "n1", "CHECKPOINT_INCONSISTENT"),
        ("audit.witness.alarm", "n2", "LOG_RESET"),
    ]
    record = desk.audit.noted[0]
    assert (record.kind, record.subject) == (RecordKind.LOG_ALARM, "log/lab/c")
    assert (record.actor, record.codes) == ("spiffe://x/agent/n1", ("LOG_RESET",))
    assert record.refs["known"] == "text"
    assert desk.telling("LOG_RESET") == 2
    assert desk.telling("CHECKPOINT_INCONSISTENT") == 1
    desk.alarms.told("n1", "a", ())
    desk.alarms.told("n3", "a", ())
    assert desk.telling("LOG_RESET") == 1


def test_what_nodes_say_fills_no_log() -> None:
    desk = Desk()
    for number in range(MAX_RECORDS + 5):
        desk.alarms.told(f"n{number}", "a", (alarm(text="x" * 10_000),))
    assert len(desk.audit.noted) == MAX_RECORDS
    for number in range(MAX_LOGS + 5):
        desk.alarms.told("m", "a", (alarm(origin=f"o{number}" + "x" * 10_000),))
    assert len(desk.audit.noted) == MAX_RECORDS + MAX_LOGS - 1
    assert all(len(str(dict(record.refs))) < 4096 for record in desk.audit.noted)


def test_accepted_evidence_tells_the_journal() -> None:
    audit = RecordingAudit()
    journal = TrustJournal(
        Instruments(Process.CONTROLLER, "0"), audit, RecentRefusals(lambda: 0), _nobody
    )
    accepted = Scene(evidence={"log_alarms": (alarm(),)}).accepted()
    journal.appraised(accepted, grant=False, seconds=0.0)
    (record,) = audit.noted
    assert record.refs["node"] == NODE


def _nobody(_changes: object) -> None:
    """Nobody is told of changes."""
