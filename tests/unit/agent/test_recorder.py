import json
from dataclasses import replace
from http import HTTPStatus

from structlog.testing import capture_logs

from agent.claims.allocations import AllocationReading, unread
from agent.gpu.reading import NvmlState
from agent.gpu.source import StuckCall
from agent.health import Ops
from agent.recorder import AgentRecorder, Condition
from agent.session.machine import About, End, EndReason, Verdict
from gpuwarden.evidence.model import Allocation, FailedRead, LogAlarm
from gpuwarden.identity.svid_watcher import SvidFacts
from gpuwarden.settings.values import Address
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.attesting import AGENT, reading, xid
from tests.builders.ca import SpiffeCa
from tests.builders.inventory import gpu_uuid
from tests.fakes.agent_ports import FakeSvids
from tests.fakes.clock import FakeClock

REPLICA = Address("10.0.0.1", 9443)
SVID = SpiffeCa().svid(AGENT)


def verdict(code: str = "ACCEPTED", detail: str = "") -> Verdict:
    accepted = code == "ACCEPTED"
    return Verdict(
        challenge_id="00",
        accepted=accepted,
        code=code,
        detail=detail,
        attestation_hash="v1:sha256:00" if accepted else "",
        level="L0" if accepted else "",
        fresh_for_ms=90_000 if accepted else 0,
        next_challenge_ms=25_000,
    )


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.svids = FakeSvids(SVID)
        self.instruments = Instruments(Process.AGENT, "0.1.0")
        self.recorder = AgentRecorder(self.instruments, self.clock, self.svids)
        self.stuck_call: StuckCall | None = None
        self.unreadable = ""
        self.svid_watcher = SvidFacts(600.0, 1, 1, 0, watching=True)
        self.ops = Ops(
            self.instruments,
            self.recorder,
            self.svids,
            stuck=self.stuck,
            unreadable=lambda: self.unreadable,
            facts=self.facts,
        )

    def stuck(self, now: float) -> StuckCall | None:
        del now
        return self.stuck_call

    def facts(self) -> SvidFacts:
        return self.svid_watcher

    def accepted(self) -> None:
        self.recorder.add_replica(REPLICA)
        self.recorder.record_opened(REPLICA, 1)
        self.recorder.record_verdict(REPLICA, 1, verdict(), About.EVIDENCE)

    def metrics(self) -> list[str]:
        return self.ops.metrics().body.decode().splitlines()


def test_ready_while_one_acceptance_holds() -> None:
    bench = Bench()
    assert bench.recorder.readiness().reasons == ("no controller replica is known yet",)
    bench.accepted()
    readiness = bench.recorder.readiness()
    assert (readiness.ready, readiness.reasons) == (True, ())
    assert readiness.replicas[0].fresh_for_s == 90
    bench.clock.advance(91)
    readiness = bench.recorder.readiness()
    assert not readiness.ready
    assert readiness.reasons == ("10.0.0.1:9443: ACCEPTED",)


def test_a_revoking_refusal_counts_at_once_and_a_transient_one_when_the_lease_ends() -> None:
    bench = Bench()
    bench.accepted()
    bench.recorder.record_verdict(
        REPLICA, 1, verdict("INVENTORY_INCOMPLETE", "vbios"), About.EVIDENCE
    )
    readiness = bench.recorder.readiness()
    assert readiness.ready
    assert readiness.replicas[0].code == "INVENTORY_INCOMPLETE"
    bench.recorder.record_verdict(
        REPLICA, 1, verdict("INVENTORY_CHANGED", "new GPU"), About.EVIDENCE
    )
    readiness = bench.recorder.readiness()
    assert not readiness.ready
    assert readiness.reasons == ("10.0.0.1:9443: INVENTORY_CHANGED new GPU",)
    bench.recorder.record_verdict(REPLICA, 1, verdict("UNKNOWN"), About.STREAM)
    assert bench.recorder.readiness().replicas[0].code == "UNKNOWN"


def test_verdicts_on_news_change_nothing_that_is_shown() -> None:
    bench = Bench()
    bench.accepted()
    before = bench.recorder.readiness()
    bench.recorder.record_verdict(REPLICA, 1, verdict("NODE_DENIED"), About.NOTICE)
    assert bench.recorder.readiness() == before


def test_the_svid_is_part_of_being_ready() -> None:
    bench = Bench()
    bench.accepted()
    bench.svids.svid = None
    readiness = bench.recorder.readiness()
    assert (readiness.ready, readiness.reasons) == (False, ("no SVID: not asked yet",))


def test_superseded_is_not_ready_and_says_so() -> None:
    bench = Bench()
    bench.accepted()
    bench.recorder.record_superseded(REPLICA)
    assert bench.recorder.readiness().reasons[0].startswith("STREAM_SUPERSEDED: another instance")


def test_why_a_stream_ended_is_shown_until_there_is_another() -> None:
    bench = Bench()
    bench.recorder.add_replica(REPLICA)
    bench.recorder.record_opened(REPLICA, 1)
    bench.recorder.record_end(REPLICA, 1, End(EndReason.UNPROVEN, "chain: no path to a root"))
    [replica] = bench.recorder.readiness().replicas
    assert replica.condition is Condition.CONNECTING
    assert replica.detail == "unproven: chain: no path to a root"
    bench.recorder.record_end(REPLICA, 2, End(EndReason.PEER, "denied", "NODE_DENIED"))
    assert bench.recorder.readiness().replicas[0].code == "NODE_DENIED"
    bench.recorder.record_opened(REPLICA, 3)
    bench.recorder.record_opened(REPLICA, 4)
    bench.recorder.record_end(REPLICA, 3, End(EndReason.STOPPED, "successor"))
    [replica] = bench.recorder.readiness().replicas
    assert (replica.condition, replica.detail) == (Condition.OPEN, "peer: denied")
    bench.recorder.remove_replica(REPLICA)
    assert bench.recorder.readiness().replicas == ()


def test_only_the_end_that_this_side_asked_for_is_information() -> None:
    levels = {}
    for reason in EndReason:
        with capture_logs() as logged:
            bench = Bench()
            bench.recorder.add_replica(REPLICA)
            bench.recorder.record_end(REPLICA, 1, End(reason, "why"))
        [line] = [x for x in logged if x.get("cause") == reason]
        levels[reason] = (line["event"], line["log_level"])
    assert levels.pop(EndReason.STOPPED) == ("stream.closed", "info")
    assert levels.pop(EndReason.UNPROVEN) == ("challenge.refused", "warning")
    assert set(levels.values()) == {("stream.closed", "warning")}


def test_an_unavailable_library_is_a_reason() -> None:
    bench = Bench()
    bench.recorder.add_replica(REPLICA)
    bench.recorder.record_reading(reading(state=NvmlState.UNAVAILABLE, detail="no driver"), 0.1)
    assert "NVML_UNAVAILABLE: no driver" in bench.recorder.readiness().reasons
    assert "gpuwarden_agent_nvml_available 0.0" in bench.metrics()
    bench.recorder.record_reading(reading(), 0.1)
    assert "gpuwarden_agent_nvml_available 1.0" in bench.metrics()


def test_metrics() -> None:
    bench = Bench()
    bench.accepted()
    failed = (
        FailedRead(fact="vbios", gpu=None, call="nvmlX", error="UNKNOWN"),
        FailedRead(fact="gsp", gpu=None, call="nvmlX", error="ERROR_77"),
        FailedRead(fact="memory", gpu=None, call="nvmlX", error="ERROR_78"),
    )
    bench.recorder.record_reading(reading(3, failed=failed), 0.2)
    bench.recorder.record_lost_round(REPLICA, 1)
    bench.recorder.record_gpu_event(xid())
    bench.recorder.record_unresolved(Address("c.test", 1), "no answer")
    bench.recorder.record_end(REPLICA, 9, End(EndReason.SILENT, "no verdict on evidence"))
    lines = bench.metrics()
    for expected in (
        'gpuwarden_agent_verdicts_total{code="ACCEPTED"} 1.0',
        "gpuwarden_agent_accepted_controllers 1.0",
        'gpuwarden_agent_streams{state="accepted"} 1.0',
        'gpuwarden_agent_streams{state="connecting"} 0.0',
        'gpuwarden_agent_stream_ends_total{cause="silent"} 1.0',
        'gpuwarden_agent_inventory_reads_total{result="failed"} 1.0',
        "gpuwarden_agent_challenges_missed_total 1.0",
        'gpuwarden_agent_nvml_failures_total{call="nvmlX",error="UNKNOWN"} 1.0',
        'gpuwarden_agent_nvml_failures_total{call="nvmlX",error="OTHER"} 2.0',
        'gpuwarden_agent_gpu_events_total{kind="xid"} 1.0',
        "gpuwarden_agent_gpus 3.0",
        "gpuwarden_agent_inventory_read_seconds_count 1.0",
        "gpuwarden_svid_expires_seconds 600.0",
        'gpuwarden_svid_updates_total{result="taken"} 1.0',
        "gpuwarden_svid_source_restarts_total 0.0",
        "gpuwarden_ready 1.0",
    ):
        assert expected in lines, expected
    bench.svid_watcher = SvidFacts(0.0, 2, 3, 4, watching=False)
    lines = bench.metrics()
    assert 'gpuwarden_svid_updates_total{result="taken"} 2.0' in lines
    assert 'gpuwarden_svid_updates_total{result="failed"} 4.0' in lines
    assert "gpuwarden_svid_source_restarts_total 2.0" in lines


def test_liveness_is_the_event_loop_and_a_library_that_returns() -> None:
    bench = Bench()
    assert bench.ops.healthz().status is HTTPStatus.OK
    bench.stuck_call = StuckCall("nvmlDeviceGetCount", 16.2)
    answer = bench.ops.routes()["/healthz"]()
    assert answer.status is HTTPStatus.SERVICE_UNAVAILABLE
    assert answer.body == b"NVML call nvmlDeviceGetCount has not returned for 16 s\n"


def test_liveness_ends_where_only_a_new_container_helps() -> None:
    bench = Bench()
    bench.unreadable = "NVML has read nothing for 180 s: nvmlInitWithFlags: UNKNOWN"
    answer = bench.ops.healthz()
    assert answer.status is HTTPStatus.SERVICE_UNAVAILABLE
    assert answer.body == f"{bench.unreadable}\n".encode()


def test_readiness_as_json() -> None:
    bench = Bench()
    answer = bench.ops.readyz()
    assert answer.status is HTTPStatus.SERVICE_UNAVAILABLE
    bench.accepted()
    answer = bench.ops.readyz()
    assert answer.status is HTTPStatus.OK
    assert json.loads(answer.body) == {
        "ready": True,
        "reasons": [],
        "identity": f"SVID {AGENT}",
        "alarms": [],
        "replicas": [
            {
                "address": "10.0.0.1:9443",
                "state": "accepted",
                "code": "ACCEPTED",
                "detail": "",
                "level": "L0",
                "attestationHash": "v1:sha256:00",
                "freshForSeconds": 90,
            }
        ],
    }


def test_an_alarm_about_a_log_is_shown_and_takes_no_readiness_away() -> None:
    bench = Bench()
    bench.accepted()
    for code in ("CHECKPOINT_INCONSISTENT", "LOG_RESET", "LOG_RESET"):
        alarm = LogAlarm(code=code, origin="lab/c", detail="why", known="k", seen="s", wall_ms="7")
        bench.recorder.record_alarm(alarm)
    answer = json.loads(bench.ops.readyz().body)
    assert answer["ready"]
    assert answer["alarms"] == [
        "CHECKPOINT_INCONSISTENT: lab/c: why",
        *["LOG_RESET: lab/c: why"] * 2,
    ]
    assert 'gpuwarden_agent_log_alarms{code="LOG_RESET"} 2.0' in bench.metrics()
    assert 'gpuwarden_agent_log_alarms{code="CHECKPOINT_INCONSISTENT"} 1.0' in bench.metrics()


def test_kubelet_reports_are_counted_and_each_change_is_logged_once() -> None:
    bench = Bench()
    held = Allocation("team-a", "job", "main", "nvidia.com/gpu", gpu_uuid(1))
    told, failed = AllocationReading((held,)), unread("UNAVAILABLE", "UNAVAILABLE: gone")
    with capture_logs() as logged:
        for found in (told, failed, failed, told, told):
            bench.recorder.record_reading(replace(reading(), allocations=found), 0.1)
        bench.recorder.record_reading(reading(), 0.1)
        metrics = bench.metrics()
        bench.recorder.record_reading(replace(reading(), allocations=failed), 0.1)
    assert 'gpuwarden_agent_kubelet_reads_total{result="complete"} 3.0' in metrics
    assert 'gpuwarden_agent_kubelet_reads_total{result="UNAVAILABLE"} 2.0' in metrics
    assert "gpuwarden_agent_allocations 1.0" in metrics
    assert 'gpuwarden_agent_inventory_reads_total{result="complete"} 6.0' in metrics
    assert "gpuwarden_agent_allocations 0.0" in bench.metrics()
    events = [x for x in logged if x["event"].startswith("allocations.")]
    assert [(x["event"], x["log_level"]) for x in events] == [
        ("allocations.unread", "warning"),
        ("allocations.read", "info"),
        ("allocations.unread", "warning"),
    ]
    assert (events[0]["error"], events[0]["detail"]) == ("UNAVAILABLE", "UNAVAILABLE: gone")
