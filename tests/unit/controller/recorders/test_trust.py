from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs
from structlog.typing import EventDict

from controller.access import Caller, CallerKind
from controller.explain.node import RecentRefusals
from controller.fleet.attestation_result import FailureNoticeAccepted, refused
from controller.fleet.trust import ChangeKind, TrustChange
from controller.recorders.http import ExtenderRecorder
from controller.recorders.trust import (
    MAX_LISTED,
    MAX_LOGS,
    MAX_RECORDS,
    SpireRecorder,
    TrustRecorder,
    WitnessAlarms,
)
from controller.spire.client import SpireFailure
from controller.spire.facts import ADMIN_WARNING
from gpuwarden.audit.record import RecordKind
from gpuwarden.evidence.model import LogAlarm
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry.limited import BURST
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.evidence import NODE, Scene
from tests.builders.spire import PARENT, TD, spire_agent, spire_snapshot
from tests.fakes.recording_audit import RecordingAudit

# --- What people, Prometheus and the audit log are told about attestation


class Workbench:
    def __init__(self) -> None:
        self.audit = RecordingAudit()
        self.refusals = RecentRefusals(lambda: 7)
        self.instruments = Instruments(Process.CONTROLLER, "0")
        self.told: list[object] = []
        self.recorder = TrustRecorder(
            self.instruments,
            self.audit,
            self.refusals,
            lambda changes, actor: self.told.append((changes, actor)),
        )
        self.extender = ExtenderRecorder(self.instruments, self.audit)

    def value(self, name: str, **labels: str) -> float | None:
        registry: CollectorRegistry = self.instruments.registry
        return registry.get_sample_value(f"gpuwarden_{name}", labels)


def test_evidence_is_counted_by_code_and_only_grants_and_refusals_are_logged() -> None:
    workbench, scene = Workbench(), Scene()
    accepted = scene.accepted()
    with structlog.testing.capture_logs() as logs:
        workbench.recorder.appraised(accepted, grant=True, seconds=0.001)
        workbench.recorder.appraised(accepted, grant=False, seconds=0.001)
        refusal = refused(Refusal(ReasonCode.SIG_INVALID, "no"), NODE)
        workbench.recorder.appraised(refusal, grant=False, seconds=0.0)
    assert [line["event"] for line in logs] == ["evidence.accepted", "evidence.refused"]
    assert logs[0]["attestation_hash"] == accepted.attestation_hash
    assert (logs[1]["code"], logs[1]["step"], logs[1]["effect"]) == ("SIG_INVALID", 13, "revoke")
    assert workbench.value("evidence_total", code="ACCEPTED") == 2
    assert workbench.value("evidence_total", code="SIG_INVALID") == 1
    assert workbench.value("evidence_verification_seconds_count") == 3
    assert workbench.value("audit_grants_total") == 1
    assert workbench.value("audit_grants_refused_total") == 0


def test_a_grant_that_the_log_could_not_keep_is_counted() -> None:
    workbench = Workbench()
    refusal = refused(Refusal(ReasonCode.AUDIT_UNAVAILABLE, "disk full"), NODE)
    workbench.recorder.appraised(refusal, grant=True, seconds=0.001)
    assert workbench.value("audit_grants_refused_total") == 1
    assert workbench.value("audit_grants_total") == 0


def test_bad_news_counts_as_authentic() -> None:
    workbench, scene = Workbench(), Scene(failure_notice=True)
    news = scene.run()
    assert isinstance(news, FailureNoticeAccepted)
    workbench.recorder.appraised(news, grant=False, seconds=0.0)
    assert workbench.value("evidence_total", code="ACCEPTED") == 1


def test_changes_are_logged_and_those_without_a_record_of_their_own_are_recorded() -> None:
    workbench = Workbench()
    change = TrustChange(NODE, ChangeKind.RENEWED)
    changes = (
        change,
        replace(change, kind=ChangeKind.FIRST_ACCEPTED),
        replace(change, kind=ChangeKind.LEASE_ENDED, code=ReasonCode.NODE_STALE),
        replace(change, kind=ChangeKind.GPU_LOST, gpu="GPU-1", detail="x" * 1000),
    )
    with structlog.testing.capture_logs() as logs:
        workbench.recorder.changed(changes, "controller")
    assert [line["change"] for line in logs] == ["first-accepted", "lease-ended", "gpu-lost"]
    ended, lost = workbench.audit.noted
    assert (ended.kind, ended.decision, ended.codes) == (
        RecordKind.NODE_STATE,
        "lease-ended",
        ("NODE_STALE",),
    )
    assert lost.refs["gpu"] == "GPU-1"
    assert len(str(lost.refs["detail"])) == 300
    assert workbench.told == [(changes, "controller")]


def test_streams_and_challenges_are_counted() -> None:
    workbench, scene = Workbench(), Scene()
    workbench.recorder.opened(scene.opened())
    workbench.recorder.challenged("first")
    workbench.recorder.ended("spiffe://x/y", NODE, "peer", "")
    workbench.recorder.ended("spiffe://x/y", None, "LIMIT_RATE", "")
    assert workbench.value("streams") == 0
    assert workbench.value("streams_opened_total") == 1
    assert workbench.value("challenges_total", cause="first") == 1
    assert workbench.value("stream_ends_total", cause="LIMIT_RATE") == 1


def test_calls_are_counted_by_known_method_and_denials_logged() -> None:
    workbench = Workbench()
    method = "/gpuwarden.wire.v1.FleetService/GetNode"
    caller = Caller(CallerKind.AGENT, "spiffe://example.org/gpuwarden/agent/a", None)
    with structlog.testing.capture_logs() as logs:
        workbench.recorder.called(method, caller, None)
        workbench.recorder.called(method, caller, Refusal(ReasonCode.ROLE_DENIED, "no"))
        workbench.recorder.called("/made.up/Name", None, Refusal(ReasonCode.CHAIN_INVALID, "no"))
    assert workbench.value("rpc_calls_total", method=method, code="OK") == 1
    assert workbench.value("rpc_calls_total", method=method, code="ROLE_DENIED") == 1
    assert workbench.value("rpc_calls_total", method="unknown", code="CHAIN_INVALID") == 1
    denied: list[Any] = [line["caller"] for line in logs]
    assert denied == [caller.name, None]


def test_the_extenders_answers_are_counted_and_bad_requests_logged() -> None:
    workbench = Workbench()
    with structlog.testing.capture_logs() as logs:
        workbench.extender.answered("filter", "passed", 0.01)
        workbench.extender.answered("filter", "too_large", 0.01)
        workbench.extender.certificate_changed(None)
        workbench.extender.certificate_changed("torn")
        workbench.extender.count_nodes({ReasonCode.ACCEPTED: 2, ReasonCode.GPU_BUSY: 0})
    assert [line["event"] for line in logs] == [
        "extender.answered",
        "extender.request.bad",
        "listener.open",
        "tls.material.refused",
    ]
    assert workbench.value("extender_requests_total", verb="filter", result="passed") == 1
    assert workbench.value("extender_nodes_total", code="ACCEPTED") == 2
    assert workbench.value("extender_nodes_total", code="GPU_BUSY") is None
    assert workbench.value("extender_request_seconds_count", verb="filter") == 2
    assert workbench.value("tls_material_refused_total", listener="extender") == 1


def test_refusals_are_remembered_by_code_without_their_text() -> None:
    workbench = Workbench()
    refusal = refused(Refusal(ReasonCode.SIG_INVALID, "what somebody wrote"), NODE)
    workbench.recorder.appraised(refusal, grant=False, seconds=0.0)
    denied = Refusal(ReasonCode.ROLE_DENIED, "what somebody wrote")
    caller = Caller(CallerKind.INSPECTOR, "spiffe://example.org/x", None)
    workbench.recorder.called("/gpuwarden.wire.v1.OperatorService/AcceptNode", caller, denied)
    workbench.recorder.called("/what/somebody wrote", None, denied)
    workbench.recorder.called("/gpuwarden.wire.v1.FleetService/ListNodes", caller, None)
    assert [(x.what, x.subject, x.code, x.step) for x in workbench.refusals.newest_first()] == [
        ("unknown", None, ReasonCode.ROLE_DENIED, None),
        (
            "/gpuwarden.wire.v1.OperatorService/AcceptNode",
            "inspector",
            ReasonCode.ROLE_DENIED,
            None,
        ),
        ("evidence", NODE, ReasonCode.SIG_INVALID, 13),
    ]


# --- What nodes say against logs: told once per node, counted, bounded, and never acted on


def alarm(code: str = "LOG_RESET", origin: str = "lab/c", text: str = "text") -> LogAlarm:
    return LogAlarm(code=code, origin=origin, detail=text, known=text, seen=text, wall_ms="7")


class AlarmBench:
    def __init__(self) -> None:
        self.audit = RecordingAudit()
        self.instruments = Instruments(Process.CONTROLLER, "0")
        self.alarms = WitnessAlarms(self.instruments, self.audit)

    def telling(self, code: str) -> float | None:
        return self.instruments.registry.get_sample_value(
            "gpuwarden_audit_witness_alarms", {"code": code}
        )


def test_an_alarm_is_reported_once_and_counted_while_it_lasts() -> None:
    bench = AlarmBench()
    assert bench.telling("LOG_RESET") == 0
    with structlog.testing.capture_logs() as logs:
        for _ in range(3):
            bench.alarms.report("n1", "spiffe://x/agent/n1", (alarm(), alarm("MADE_UP")))
        bench.alarms.report("n1", "a", (alarm(), alarm("CHECKPOINT_INCONSISTENT")))
        bench.alarms.report("n2", "a", (alarm(),))
    assert [(line["event"], line["node"], line["code"]) for line in logs] == [
        ("audit.witness.alarm", "n1", "LOG_RESET"),
        ("audit.witness.alarm", "n1", "CHECKPOINT_INCONSISTENT"),
        ("audit.witness.alarm", "n2", "LOG_RESET"),
    ]
    record = bench.audit.noted[0]
    assert (record.kind, record.subject) == (RecordKind.LOG_ALARM, "log/lab/c")
    assert (record.actor, record.codes) == ("spiffe://x/agent/n1", ("LOG_RESET",))
    assert record.refs["known"] == "text"
    assert bench.telling("LOG_RESET") == 2
    assert bench.telling("CHECKPOINT_INCONSISTENT") == 1
    bench.alarms.report("n1", "a", ())
    bench.alarms.report("n3", "a", ())
    assert bench.telling("LOG_RESET") == 1


def test_what_nodes_say_fills_no_log() -> None:
    bench = AlarmBench()
    for number in range(MAX_RECORDS + 5):
        bench.alarms.report(f"n{number}", "a", (alarm(text="x" * 10_000),))
    assert len(bench.audit.noted) == MAX_RECORDS
    for number in range(MAX_LOGS + 5):
        bench.alarms.report("m", "a", (alarm(origin=f"o{number}" + "x" * 10_000),))
    assert len(bench.audit.noted) == MAX_RECORDS + MAX_LOGS - 1
    assert all(len(str(dict(record.refs))) < 4096 for record in bench.audit.noted)


def test_accepted_evidence_tells_the_recorder() -> None:
    audit = RecordingAudit()
    recorder = TrustRecorder(
        Instruments(Process.CONTROLLER, "0"), audit, RecentRefusals(lambda: 0), _nobody
    )
    accepted = Scene(evidence={"log_alarms": (alarm(),)}).accepted()
    recorder.appraised(accepted, grant=False, seconds=0.0)
    (record,) = audit.noted
    assert record.refs["node"] == NODE


def _nobody(_changes: object, _actor: str) -> None:
    """Nobody is told of changes."""


# --- What log, metrics and audit are told about the SPIRE server


class Bench:
    def __init__(self, logs: list[EventDict]) -> None:
        self.logs = logs
        self.audit = RecordingAudit()
        self.instruments = Instruments(Process.CONTROLLER, "test")
        self.recorder = SpireRecorder(self.instruments, self.audit)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.instruments.registry.get_sample_value(f"gpuwarden_{name}", labels)

    @property
    def events(self) -> list[str]:
        return [str(x["event"]) for x in self.logs]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with capture_logs() as logs:
        yield Bench(logs)


def test_polls_are_counted_and_availability_is_reported_once(bench: Bench) -> None:
    snapshot = spire_snapshot(spire_agent(), spire_agent(f"{PARENT}-2", banned=True))
    bench.recorder.taken(None, snapshot, 0.01)
    bench.recorder.taken(snapshot, snapshot, 0.01)
    assert bench.metric("spire_polls_total", result="taken") == 2
    assert bench.metric("spire_available") == 1
    assert bench.metric("spire_agents", state="attested") == 1
    assert bench.metric("spire_agents", state="banned") == 1
    assert bench.events == ["spire.available"]
    assert bench.audit.noted == []


def test_each_cause_of_failure_is_reported_once_and_recovery_again(bench: Bench) -> None:
    for _ in range(3):
        bench.recorder.failed(SpireFailure.UNREACHABLE, "unreachable: refused")
    bench.recorder.failed(SpireFailure.DENIED, "denied: no")
    bench.recorder.taken(None, spire_snapshot(), 0.01)
    assert bench.metric("spire_polls_total", result="unreachable") == 3
    assert bench.metric("spire_polls_total", result="denied") == 1
    assert bench.events == ["spire.unavailable", "spire.unavailable", "spire.available"]
    assert bench.logs[0]["reason"] == "unreachable: refused"


def test_availability_falls_with_the_first_failure(bench: Bench) -> None:
    bench.recorder.taken(None, spire_snapshot(), 0.01)
    bench.recorder.failed(SpireFailure.SLOW, "slow")
    assert bench.metric("spire_available") == 0


def test_changed_agents_are_one_line_and_one_record_per_kind(bench: Bench) -> None:
    ids = [f"spiffe://{TD}/spire/agent/x509pop/{number}" for number in range(MAX_LISTED + 3)]
    before = spire_snapshot(*map(spire_agent, ids), spire_agent())
    after = spire_snapshot(*(spire_agent(x, banned=True) for x in ids))
    bench.recorder.taken(before, after, 0.01)
    assert [(x.kind, x.subject, x.decision, dict(x.refs)) for x in bench.audit.noted] == [
        (
            RecordKind.SPIRE_STATUS,
            "spire-agents",
            "banned",
            {"count": len(ids), "agents": tuple(ids[:MAX_LISTED])},
        ),
        (RecordKind.SPIRE_STATUS, "spire-agents", "evicted", {"count": 1, "agents": (PARENT,)}),
    ]
    lines = [x for x in bench.logs if x["event"] == "spire.agents.changed"]
    assert [(x["change"], x["count"]) for x in lines] == [("banned", len(ids)), ("evicted", 1)]


def test_too_many_rights_are_a_warning(bench: Bench) -> None:
    bench.recorder.excessive()
    assert bench.logs[0]["log_level"] == "warning"
    assert bench.logs[0]["warning"] == ADMIN_WARNING


def test_invented_alarms_of_one_node_are_few_lines_and_no_errors() -> None:
    bench = AlarmBench()
    with structlog.testing.capture_logs() as logs:
        for number in range(1800):
            bench.alarms.report("n1", "spiffe://x", (alarm(origin=f"lab/{number}"),))
    assert [line["log_level"] for line in logs] == ["warning"] * BURST
    told = bench.instruments.registry.get_sample_value(
        "gpuwarden_audit_witness_alarms_raised_total", {"code": "LOG_RESET"}
    )
    assert told == 1800


def test_refusals_that_one_peer_repeats_are_few_lines_and_all_counted() -> None:
    workbench = Workbench()
    denied = Refusal(ReasonCode.ROLE_DENIED, "no")
    with structlog.testing.capture_logs() as logs:
        for _ in range(500):
            workbench.recorder.called("/made.up/Name", None, denied)
            workbench.recorder.appraised(
                refused(Refusal(ReasonCode.SIG_INVALID, "x"), NODE), grant=False, seconds=0.0
            )
            workbench.recorder.hung_up("/made.up/Name")
            workbench.recorder.failed("/made.up/Name", ValueError("x"))
    assert Counter(line["event"] for line in logs) == dict.fromkeys(
        ("rpc.denied", "evidence.refused", "rpc.failed"), BURST
    )
    assert workbench.value("rpc_calls_total", method="unknown", code="ROLE_DENIED") == 500
    assert workbench.value("rpc_hang_ups_total", method="unknown") == 500
    assert workbench.value("evidence_total", code="SIG_INVALID") == 500
