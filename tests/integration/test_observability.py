"""Controller and agent as real programs: what they export is what is declared, and holds together.

One run is looked at from all sides: a node is accepted, a GPU is swapped and refused,
a scheduler asks, both programs end. Spans go to a real OTLP collector.
"""

import asyncio
import http.client
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry.every_metric import METRICS
from gpuwarden.telemetry.metrics import CONTENT_TYPE
from gpuwarden.telemetry.names import PAGE, PREFIX, Event, MetricType, Process
from sandbox.laptop import Laptop, Pace
from sandbox.nodes import CLUSTER, LEGACY, simulated_nodes
from sandbox.nvml.models import h100_sxm
from tests.fakes.eventually import eventually
from tests.fakes.otlp_collector import CollectedLog, CollectedSpan, OtlpCollector, silent_address
from tests.hang import HANG_S

PACE = Pace(interval_s=0.4, challenge_ttl_s=1.0, lease_s=2.0)
GHOST = "ghost-0"
LISTENING = "controller.listening"
"""The sandbox's own line, for whoever started it."""
CALLER_TRACE, CALLER_SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{CALLER_TRACE}-{CALLER_SPAN}-01"
EXTENDER_SPANS = {f"controller.{verb}" for verb in ("filter", "prioritize", "preempt")}
"""What a scheduler sends that traces."""
SERVICES = {Process.AGENT: "gpuwarden-agent", Process.CONTROLLER: "gpuwarden-controller"}
ROUND = {
    "controller.attestation",
    "controller.message",
    "controller.verify",
    "controller.swap",
    "agent.attestation",
    "agent.inventory",
    "agent.evidence",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """What one run left behind."""

    metrics: dict[Process, str]
    content_types: set[str]
    spans: list[CollectedSpan]
    logs: list[CollectedLog]
    audit: list[str]
    """The lines of the audit log."""
    lines: dict[Process, list[dict[str, Any]]]
    statuses: dict[str, int]


def _request(
    address: str, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(address, timeout=HANG_S)
    try:
        connection.request(
            method, path, body or None, {"Content-Type": "application/json", **headers}
        )
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


async def _http(
    address: str, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, str, str]:
    return await asyncio.to_thread(_request, address, method, path, body, **headers)


async def _until(address: str, path: str, holds: Callable[[int, str], bool], what: str) -> None:
    async def probe() -> bool | None:
        status, _, text = await _http(address, "GET", path)
        return True if holds(status, text) else None

    await eventually(probe, what)


def _arguments() -> bytes:
    pod = {
        "metadata": {
            "name": "job",
            "namespace": "research",
            "annotations": {"gpuwarden.dev/gpu-selector": "architecture=hopper"},
        },
        "spec": {
            "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
    }
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": [LEGACY, GHOST]}).encode()


async def _play(laptop: Laptop) -> tuple[dict[Process, str], set[str]]:
    """Acceptance, a decision, a swapped GPU; returns what /metrics says then."""
    [node] = [node for node in simulated_nodes() if node.name == LEGACY]
    await laptop.start_controller((LEGACY,))
    await laptop.start_agent(node)
    listening = await laptop.programs[LEGACY].event("agent.listening", timeout_s=HANG_S)
    ops = {Process.CONTROLLER: laptop.addresses.ops, Process.AGENT: listening["ops"]}
    for address in ops.values():
        await _until(address, "/readyz", lambda status, _: status == 200, "ready")
    for verb in ("filter", "prioritize", "preempt"):
        status, _, _ = await _http(
            laptop.addresses.extender, "POST", f"/{verb}", _arguments(), traceparent=TRACEPARENT
        )
        assert status == 200
    assert (await _http(laptop.addresses.extender, "POST", "/filter", b"no JSON"))[0] == 400
    swapped = msgspec.structs.replace(
        node.scenario, gpus=(node.scenario.gpus[0], h100_sxm(7, LEGACY))
    )
    laptop.show(LEGACY, swapped)
    await _until(
        ops[Process.AGENT], "/metrics", lambda _, text: "INVENTORY_CHANGED" in text, "a refusal"
    )
    ends = re.compile(r'extender_request_seconds_bucket.* # \{trace_id="(\w+)"\}')
    status, kind, page = await _http(
        ops[Process.CONTROLLER], "GET", "/metrics", Accept="application/openmetrics-text"
    )
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    assert CALLER_TRACE in ends.findall(page)
    answers = {process: await _http(address, "GET", "/metrics") for process, address in ops.items()}
    return {process: text for process, (_, _, text) in answers.items()}, {
        kind for _, kind, _ in answers.values()
    }


async def _run(folder: Path, endpoint: str) -> tuple[dict[Process, str], set[str], dict[str, int]]:
    laptop = Laptop(folder, PACE, otlp=endpoint)
    try:
        metrics, kinds = await _play(laptop)
        statuses = {"controller": await laptop.programs["controller"].stop()}
        agent_log = folder / "log" / f"{LEGACY}.log"

        async def misses_the_controller() -> bool | None:
            return True if '"tunnel.failed"' in agent_log.read_text() else None

        await eventually(misses_the_controller, "a failed connection in the agent's log")
        statuses[LEGACY] = await laptop.programs[LEGACY].stop()
    finally:
        await laptop.close()
    return metrics, kinds, statuses


def _lines(log: Path) -> list[dict[str, Any]]:
    """Everything that a program wrote, but for the copies of its audit log."""
    found = [json.loads(line) for line in log.read_text().splitlines()]
    return [line for line in found if not {"seq", "prev"} <= line.keys()]


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    """One run, collected."""
    collector = OtlpCollector()
    with tempfile.TemporaryDirectory(prefix="gw-") as name:
        folder = Path(name)
        try:
            metrics, kinds, statuses = asyncio.run(_run(folder, collector.endpoint))
            spans = collector.wait_for(*ROUND)
            logs = collector.wait_for_logs(
                lambda logs: any(log.name == "gpuwarden.audit.evidence.refused" for log in logs)
            )
        finally:
            collector.close()
        yield Seen(
            metrics=metrics,
            content_types=kinds,
            spans=spans,
            logs=logs,
            audit=[
                line
                for path in sorted((folder / "audit").glob("audit-*.jsonl"))
                for line in path.read_text().splitlines()
            ],
            lines={
                Process.AGENT: _lines(folder / "log" / f"{LEGACY}.log"),
                Process.CONTROLLER: _lines(folder / "log" / "controller.log"),
            },
            statuses=statuses,
        )


def _families(seen: Seen, process: Process) -> dict[str, Family]:
    families = list(text_string_to_metric_families(seen.metrics[process]))
    assert len({family.name for family in families}) == len(families)
    return {family.name: family for family in families}


def _values(seen: Seen, process: Process) -> dict[tuple[str, str], float]:
    """Samples of ours by name and by label values, joined."""
    return {
        (sample.name.removeprefix(PREFIX), ",".join(sample.labels.values())): sample.value
        for family in _families(seen, process).values()
        for sample in family.samples
    }


@pytest.mark.parametrize("process", [Process.AGENT, Process.CONTROLLER])
def test_metrics_are_those_that_are_declared_with_their_labels(
    seen: Seen, process: Process
) -> None:
    ours = {
        name: family
        for name, family in _families(seen, process).items()
        if not name.startswith(("process_", "python_"))
    }
    declared = {
        metric.name.removesuffix("_total"): metric
        for metric in METRICS
        if metric.process in {process, Process.BOTH} and metric.page == PAGE
    }
    assert set(ours) == set(declared)
    for name, family in ours.items():
        metric = declared[name]
        assert family.type == metric.type.value
        assert family.documentation == metric.help
        for sample in family.samples:
            extra = {"le"} if sample.name.endswith("_bucket") else set()
            assert set(sample.labels) == {*metric.labels, *extra}, sample
    assert seen.content_types == {CONTENT_TYPE}


@pytest.mark.parametrize("process", [Process.AGENT, Process.CONTROLLER])
def test_no_label_holds_what_comes_from_outside(seen: Seen, process: Process) -> None:
    closed = {code.value for code in ReasonCode}
    for family in _families(seen, process).values():
        for sample in family.samples:
            code = sample.labels.get("code", "OK")
            assert code == "OK" or code in closed, sample
    for outside in (LEGACY, GHOST, "GPU-", "v1:sha256", "laptop.test", "research", "127.0.0.1"):
        assert outside not in seen.metrics[process]


def test_the_agent_counts_what_happened(seen: Seen) -> None:
    value = _values(seen, Process.AGENT)
    assert value["agent_gpus", ""] == 2
    assert value["agent_gpus_lost", ""] == 1
    assert value["agent_nvml_available", ""] == 1
    assert value["agent_inventory_reads_total", "complete"] >= 2
    assert value["agent_inventory_read_seconds_count", ""] >= 2
    assert value["agent_streams_opened_total", ""] >= 1
    assert value["agent_verdicts_total", "ACCEPTED"] >= 1
    assert value["agent_verdicts_total", "INVENTORY_CHANGED"] >= 1
    assert value["svid_updates_total", "taken"] == 1
    assert 0 < value["svid_expires_seconds", ""] <= 3600


def test_the_controller_counts_what_happened(seen: Seen) -> None:
    value = _values(seen, Process.CONTROLLER)
    assert value["evidence_total", "ACCEPTED"] >= 1
    assert value["evidence_total", "INVENTORY_CHANGED"] >= 1
    assert value["evidence_verification_seconds_count", ""] >= 2
    assert value["challenges_total", "first"] >= 1
    assert value["challenges_total", "interval"] >= 1
    assert value["streams_opened_total", ""] >= 1
    assert value["tls_handshakes_total", "svid"] >= 1
    assert value["nodes", "eligible"] == 0
    assert value["nodes", "quarantined"] == 1
    assert value["audit_grants_total", ""] >= 1
    assert value["audit_grants_refused_total", ""] == 0
    assert value["audit_records_total", "evidence.accepted"] >= 1
    assert value["audit_commit_seconds_count", ""] >= 1
    assert value["audit_available", ""] == 1
    assert value["audit_sequence", ""] >= 1
    assert value["extender_requests_total", "passed,filter"] == 1
    assert value["extender_requests_total", "bad,filter"] == 1
    assert value["extender_request_seconds_count", "filter"] == 2
    assert value["extender_request_seconds_count", "prioritize"] == 1
    assert value["extender_requests_total", "rejected,preempt"] == 1
    assert value["extender_nodes_total", "ACCEPTED"] == 1
    assert value["extender_nodes_total", "NODE_NO_EVIDENCE"] == 1
    assert value["ready", ""] == 1
    assert 0 < value["svid_expires_seconds", ""] <= 3600


@pytest.mark.parametrize("process", [Process.AGENT, Process.CONTROLLER])
def test_log_events_are_those_that_are_declared(seen: Seen, process: Process) -> None:
    events = {line["event"] for line in seen.lines[process]}
    declared = {event.value for event in Event}
    assert events <= declared | {LISTENING}
    assert {"process.started", "process.stopping", "process.stopped", "svid.updated"} <= events


@pytest.mark.parametrize("process", [Process.AGENT, Process.CONTROLLER])
def test_every_line_has_a_time_and_a_level(seen: Seen, process: Process) -> None:
    assert len(seen.lines[process]) > 5
    for line in seen.lines[process]:
        assert datetime.fromisoformat(line["timestamp"]).tzinfo == UTC, line
        assert line["level"] in {"info", "warning", "error"}, line


@pytest.mark.parametrize("process", [Process.AGENT, Process.CONTROLLER])
def test_a_clean_end_is_information(seen: Seen, process: Process) -> None:
    assert set(seen.statuses.values()) == {0}
    events = [line["event"] for line in seen.lines[process]]
    end = events.index("process.stopping")
    at_the_end = seen.lines[process][end:]
    # nobody is there any more: attempts fail before the end, and so may one that is on its way
    known = {(line["event"], line.get("cause")) for line in seen.lines[process][:end]}
    ours = [x for x in at_the_end if (x["event"], x.get("cause")) not in known]
    assert [line for line in ours if line["level"] != "info"] == []
    assert at_the_end[-1]["event"] == "process.stopped"


def test_a_stream_is_opened_only_where_a_controller_answered(seen: Seen) -> None:
    lines = seen.lines[Process.AGENT]
    streams = [line["stream"] for line in lines if line["event"] == "stream.opened"]
    answered = {line["stream"] for line in lines if line["event"] == "verdict.accepted"}
    failed = [line["stream"] for line in lines if line["event"] == "stream.closed"]
    assert streams
    assert set(streams) == answered
    assert set(failed) - answered, "the streams after the controller's end never were open"


def test_the_level_of_a_line_is_its_severity(seen: Seen) -> None:
    for process, event in (
        (Process.AGENT, "verdict.accepted"),
        (Process.CONTROLLER, "evidence.accepted"),
    ):
        [first, *_] = [line for line in seen.lines[process] if line["event"] == event]
        assert (first["level"], first["assurance_level"]) == ("info", "L0")


def test_a_round_is_one_trace_across_both_processes(seen: Seen) -> None:
    traces: dict[str, list[CollectedSpan]] = {}
    for span in seen.spans:
        traces.setdefault(span.trace, []).append(span)
    granted = [
        spans
        for spans in traces.values()
        if {*ROUND, "controller.audit.grant"} <= {span.name for span in spans}
    ]
    assert granted
    for spans in granted:
        by_id = {span.span: span for span in spans}
        [first] = [span for span in spans if not span.parent]
        [agent] = [span for span in spans if span.name == "agent.attestation"]
        assert first.name == "controller.attestation"
        assert first.service == SERVICES[Process.CONTROLLER]
        assert first.attributes["node"] == LEGACY
        assert agent.service == SERVICES[Process.AGENT]
        assert first.attributes["outcome"] == agent.attributes["outcome"] == "ACCEPTED"
        for span in spans:
            assert not span.parent or span.parent in by_id, span
            assert first.begin_ns <= span.begin_ns <= span.end_ns


def test_a_refused_round_says_why_on_both_sides(seen: Seen) -> None:
    refused = {
        (span.name, span.trace)
        for span in seen.spans
        if span.attributes.get("outcome") == "INVENTORY_CHANGED"
    }
    traces = {trace for name, trace in refused if name == "controller.attestation"}
    assert traces
    assert traces & {trace for name, trace in refused if name == "agent.attestation"}


def test_the_scheduler_s_requests_are_spans(seen: Seen) -> None:
    results = [
        (span.name, span.attributes["result"]) for span in seen.spans if span.name in EXTENDER_SPANS
    ]
    assert sorted(results) == [
        ("controller.filter", "bad"),
        ("controller.filter", "passed"),
        ("controller.preempt", "rejected"),
        ("controller.prioritize", "passed"),
    ]


def test_a_filter_is_in_the_trace_of_whoever_asked(seen: Seen) -> None:
    asked = {
        (span.name, span.attributes["result"]): (span.trace, span.parent)
        for span in seen.spans
        if span.name in EXTENDER_SPANS
    }
    theirs = (CALLER_TRACE, CALLER_SPAN)
    assert asked["controller.filter", "passed"] == theirs
    assert asked["controller.prioritize", "passed"] == theirs
    assert asked["controller.preempt", "rejected"] == theirs
    trace, parent = asked["controller.filter", "bad"]  # sent without the header
    assert (trace == CALLER_TRACE, parent) == (False, "")


def test_spans_hold_no_nonce_key_or_exception_text(seen: Seen) -> None:
    names = {name for span in seen.spans for name in span.attributes}
    assert names <= {
        "cause", "code", "error.type", "gpus", "kind", "method", "node", "outcome", "replica",
        "result",
    }  # fmt: skip


def test_the_collector_has_every_audit_record_but_for_those_reported_lost(seen: Seen) -> None:
    """On a busy machine the half second of the end may be too short; then the log says so."""
    sent = [log for log in seen.logs if log.scope == "gpuwarden.audit"]
    assert [log.body for log in sent] == seen.audit[: len(sent)]
    lines = seen.lines[Process.CONTROLLER]
    lost = sum(line["count"] for line in lines if line["event"] == "telemetry.logs.lost")
    assert len(seen.audit) - len(sent) <= lost
    assert '"log.stop"' in seen.audit[-1]
    for log in sent:
        assert log.attributes["gpuwarden.digest"] == sha256(log.body.encode()).hexdigest()
        assert log.resource["service.name"] == SERVICES[Process.CONTROLLER]
        assert log.resource["k8s.cluster.name"] == CLUSTER
        assert log.resource["service.instance.id"] == "controller-0"


def test_a_refusal_and_what_follows_for_the_node_are_warnings(seen: Seen) -> None:
    """Among others: a busy machine refuses late answers, and the quarantined node once more."""
    for name, decision in (
        ("gpuwarden.audit.evidence.refused", "refused"),
        ("gpuwarden.node.state", "quarantined"),
    ):
        log = next(
            one
            for one in seen.logs
            if (one.name, one.attributes["gpuwarden.decision"]) == (name, decision)
            and one.attributes["gpuwarden.codes"] == ("INVENTORY_CHANGED",)
        )
        assert log.severity == (13, "WARN")
        assert log.attributes["gpuwarden.subject"] == f"node/{LEGACY}"
    accepted = {x.severity for x in seen.logs if "first-accepted" in x.attributes.values()}
    assert accepted == {(9, "INFO")}


def test_both_programs_ended_in_order(seen: Seen) -> None:
    assert seen.statuses == {LEGACY: 0, "controller": 0}


def test_a_collector_that_never_answers_delays_no_decision_and_no_end() -> None:
    with tempfile.TemporaryDirectory(prefix="gw-") as name, silent_address() as silent:
        _, _, statuses = asyncio.run(_run(Path(name), silent))
    # The agent ends itself with 1, and we kill the controller, when either takes too long.
    assert statuses == {LEGACY: 0, "controller": 0}


def test_counters_exist_from_the_start_where_they_have_no_labels(seen: Seen) -> None:
    for process in SERVICES:
        families = _families(seen, process)
        for metric in METRICS:
            on_the_page = metric.process in {process, Process.BOTH} and metric.page == PAGE
            if on_the_page and not metric.labels:
                base = metric.name.removesuffix("_total")
                suffix = "_count" if metric.type is MetricType.HISTOGRAM else ""
                found = {sample.name for sample in families[base].samples}
                assert f"{metric.name}{suffix}" in found
