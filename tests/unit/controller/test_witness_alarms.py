"""What nodes say against logs: told once per node, counted, bounded, and never acted on."""

import structlog

from controller.explain.node import RecentRefusals
from controller.recorders.gauges import MAX_LOGS, MAX_RECORDS, WitnessAlarms
from controller.recorders.trust import TrustJournal
from gpuwarden.audit.record import RecordKind
from gpuwarden.evidence.model import LogAlarm
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.evidence import NODE, Scene
from tests.fakes.recording_audit import RecordingAudit


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
