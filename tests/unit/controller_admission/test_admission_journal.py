"""What Prometheus, the log, the audit log and Events are told about admission."""

from typing import Any

import structlog

from controller.admission.review import AdmissionDecision
from controller.recorders.http import AdmissionJournal
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.fakes.placement import Log

ENV = Refusal(ReasonCode.DOOR_ENV, "a")


class Desk:
    def __init__(self) -> None:
        self.audit = Log()
        self.told: list[AdmissionDecision] = []
        self.instruments = Instruments(Process.CONTROLLER, "0")
        self.journal = AdmissionJournal(self.instruments, self.audit, self.told.append)

    def value(self, name: str, **labels: str) -> float | None:
        return self.instruments.registry.get_sample_value(f"gpuwarden_{name}", labels)


def decision(*refusals: Refusal, **changes: Any) -> AdmissionDecision:
    values: dict[str, Any] = {
        "step": "validate",
        "namespace": "n",
        "pod": "p",
        "owner": None,
        "user": "",
        "refusals": refusals,
        "enforced": True,
        "reported": False,
        **changes,
    }
    return AdmissionDecision(**values)


def test_each_code_of_a_decision_counts_once_and_refusals_are_loud() -> None:
    desk = Desk()
    with structlog.testing.capture_logs() as logs:
        desk.journal.note(decision(ENV, ENV, Refusal(ReasonCode.DOOR_CDI, "b")))
        desk.journal.note(decision(ENV, reported=True))
        desk.journal.note(decision())
    assert [(x["event"], x["log_level"], x["decision"]) for x in logs] == [
        ("admission.decided", "info", "refused"),
        ("admission.decided", "info", "reported"),
        ("admission.decided", "debug", "admitted"),
    ]
    assert logs[0]["codes"] == ("DOOR_ENV", "DOOR_CDI")
    assert desk.value("admission_refusals_total", code="DOOR_ENV", decision="refused") == 1
    assert desk.value("admission_refusals_total", code="DOOR_CDI", decision="refused") == 1
    assert desk.value("admission_refusals_total", code="DOOR_ENV", decision="reported") == 1
    assert [x.decision for x in desk.audit.records] == ["refused", "reported", "admitted"]
    assert desk.audit.records[0].actor == "unknown"
    assert len(desk.told) == 3


def test_a_long_name_of_who_creates_is_cut() -> None:
    desk = Desk()
    desk.journal.note(decision(user="u" * 5000))
    assert [x.actor for x in desk.audit.records] == ["u" * 253]


def test_answers_are_counted_and_what_went_wrong_is_logged() -> None:
    desk = Desk()
    with structlog.testing.capture_logs() as logs:
        desk.journal.answered("/mutate", "patched", 0.01)
        desk.journal.answered("/mutate", "bad", 0.01)
        desk.journal.failed("/mutate", None)
        desk.journal.failed("/mutate", RuntimeError("x"))
        desk.journal.certificate_changed(None)
        desk.journal.certificate_changed("torn")
    assert [x["event"] for x in logs] == [
        "admission.request.bad",
        "admission.failed",
        "admission.failed",
        "listener.open",
        "tls.material.refused",
    ]
    assert desk.value("admission_requests_total", path="/mutate", result="patched") == 1
    assert desk.value("admission_request_seconds_count", path="/mutate") == 2
    assert desk.value("tls_material_refused_total", listener="admission") == 1
