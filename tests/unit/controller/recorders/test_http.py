from typing import Any

import structlog

from controller.admission.pod_webhooks import AdmissionDecision
from controller.placement.filter_and_score import FilterDecision, Totals
from controller.recorders.http import (
    AdmissionRecorder,
    ApiRecorder,
    ExtenderRecorder,
    FilterRecorder,
)
from controller.web.api.documents import FinalizeRequest
from controller.web.api.operations import Operation
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.fakes.recording_audit import RecordingAudit

# --- What Prometheus, the log, the audit log and Events are told about admission

ENV = Refusal(ReasonCode.BYPASS_ENV, "a")


class Workbench:
    def __init__(self) -> None:
        self.audit = RecordingAudit()
        self.told: list[AdmissionDecision] = []
        self.instruments = Instruments(Process.CONTROLLER, "0")
        self.recorder = AdmissionRecorder(self.instruments, self.audit, self.told.append)

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
    workbench = Workbench()
    with structlog.testing.capture_logs() as logs:
        workbench.recorder.note(decision(ENV, ENV, Refusal(ReasonCode.BYPASS_CDI, "b")))
        workbench.recorder.note(decision(ENV, reported=True))
        workbench.recorder.note(decision())
    assert [(x["event"], x["log_level"], x["decision"]) for x in logs] == [
        ("admission.decided", "info", "refused"),
        ("admission.decided", "info", "reported"),
        ("admission.decided", "debug", "admitted"),
    ]
    assert logs[0]["codes"] == ("BYPASS_ENV", "BYPASS_CDI")
    assert workbench.value("admission_refusals_total", code="BYPASS_ENV", decision="refused") == 1
    assert workbench.value("admission_refusals_total", code="BYPASS_CDI", decision="refused") == 1
    assert workbench.value("admission_refusals_total", code="BYPASS_ENV", decision="reported") == 1
    assert [x.decision for x in workbench.audit.noted] == ["refused", "reported", "admitted"]
    assert workbench.audit.noted[0].actor == "unknown"
    assert len(workbench.told) == 3


def test_a_long_name_of_who_creates_is_cut() -> None:
    workbench = Workbench()
    workbench.recorder.note(decision(user="u" * 5000))
    assert [x.actor for x in workbench.audit.noted] == ["u" * 253]


def test_answers_are_counted_and_what_went_wrong_is_logged() -> None:
    workbench = Workbench()
    with structlog.testing.capture_logs() as logs:
        workbench.recorder.answered("/mutate", "patched", 0.01)
        workbench.recorder.answered("/mutate", "bad", 0.01)
        workbench.recorder.failed("/mutate", None)
        workbench.recorder.failed("/mutate", RuntimeError("x"))
        workbench.recorder.certificate_changed(None)
        workbench.recorder.certificate_changed("torn")
    assert [x["event"] for x in logs] == [
        "admission.request.bad",
        "admission.failed",
        "admission.failed",
        "listener.open",
        "tls.material.refused",
    ]
    assert workbench.value("admission_requests_total", path="/mutate", result="patched") == 1
    assert workbench.value("admission_request_seconds_count", path="/mutate") == 2
    assert workbench.value("tls_material_refused_total", listener="admission") == 1


# --- What answers of the extender leave behind


def filtered(**changes: Any) -> FilterDecision:
    totals = Totals(2, {ReasonCode.HASH_MISMATCH: 3, ReasonCode.NODE_STALE: 1}, "d" * 64)
    values: dict[str, Any] = {
        "namespace": "team-a",
        "pod": "train-0",
        "uid": "u",
        "candidates": 6,
        "policy_digest": "",
        "fleet_version": 1,
        "insecure": (),
        "totals": lambda: totals,
        **changes,
    }
    return FilterDecision(**values)


def test_the_log_has_the_pod_of_a_decision_and_counts_per_code() -> None:
    nowhere = Totals(0, {ReasonCode.HASH_MISMATCH: 6}, "d" * 64)
    recorder = FilterRecorder(RecordingAudit(), lambda _: None)
    with structlog.testing.capture_logs() as logs:
        recorder.note(filtered())
        recorder.note(filtered(pod="p" * 1000, totals=lambda: nowhere))
    first, second = logs
    assert first == {
        "component": "extender",
        "event": "filter.decided",
        "log_level": "info",
        "verb": "filter",
        "pod": "team-a/train-0",
        "decision": "passed",
        "passed": 2,
        "rejected": {"HASH_MISMATCH": 3, "NODE_STALE": 1},
    }
    assert (second["decision"], second["rejected"]) == ("rejected", {"HASH_MISMATCH": 6})
    assert len(second["pod"]) < 300


def test_answers_that_nothing_is_decided_yet_are_in_the_audit_log() -> None:
    audit = RecordingAudit()
    recorder = ExtenderRecorder(Instruments(Process.CONTROLLER, "0"), audit)
    for verb, result in (
        ("filter", "not_ready"),
        ("prioritize", "not_ready"),
        ("filter", "passed"),
        ("preempt", "not_ready"),
    ):
        recorder.answered(verb, result, 0.001)
    record, same = audit.noted
    assert record == same
    assert (record.kind, record.subject, record.decision) == (
        RecordKind.FILTER_DECISION,
        "pods",
        "not-ready",
    )
    assert record.codes == ("CONTROLLER_NOT_READY",)


# --- What calls of the HTTP API leave behind

REQUEST = FinalizeRequest("team-a", "train-0", "uid-0", "v1.k.x", "GPU-1")


def recorder() -> tuple[ApiRecorder, RecordingAudit, Any]:
    instruments, notes = Instruments(Process.CONTROLLER, "0"), RecordingAudit()
    return ApiRecorder(instruments, notes), notes, lambda: instruments.render().decode()


def test_a_call_of_finalize_is_a_record_with_who_called() -> None:
    told, notes, _ = recorder()
    told.finalized("jane", REQUEST, None)
    told.finalized("jane", REQUEST, Refusal(ReasonCode.RESERVATION_UNKNOWN, "no such reservation"))
    good, bad = notes.noted
    assert (good.kind, good.actor, good.subject) == (
        RecordKind.API_FINALIZE,
        "jane",
        "pod/team-a/train-0",
    )
    assert (good.decision, good.codes) == ("confirmed", ())
    assert (bad.decision, bad.codes) == ("refused", ("RESERVATION_UNKNOWN",))
    assert bad.refs == {
        "uid": "uid-0",
        "reservation": "v1.k.x",
        "gpu": "GPU-1",
        "reason": "no such reservation",
    }


def test_answers_and_reviews_are_counted() -> None:
    told, _, rendered = recorder()
    told.answered(Operation.NODES, 200, 0.001)
    told.reviewed("kept")
    told.failed(Operation.NODES, ValueError("x"))
    text = rendered()
    assert 'gpuwarden_api_requests_total{operation="nodes",status="200"} 1.0' in text
    assert 'gpuwarden_token_reviews_total{result="kept"} 1.0' in text


def test_certificates_that_are_refused_are_counted() -> None:
    told, _, rendered = recorder()
    told.certificate_changed(None)
    told.certificate_changed("no such file")
    assert 'gpuwarden_tls_material_refused_total{listener="api"} 1.0' in rendered()
