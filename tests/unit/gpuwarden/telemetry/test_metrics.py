import re

import pytest
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as open_metrics_families,
)
from prometheus_client.parser import text_string_to_metric_families

from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry import names
from gpuwarden.telemetry.every_metric import METRICS, is_of
from gpuwarden.telemetry.metrics import CONTENT_TYPE, Instruments, takes_exemplars
from gpuwarden.telemetry.names import Event, MetricType, Process, Span

OURS = (names.PREFIX, "gpuid_", "scheduler_")


@pytest.mark.parametrize("process", [Process.AGENT, Process.CONTROLLER, Process.SCORE])
def test_every_metric_of_a_process_is_exported(process: Process) -> None:
    text = Instruments(process, "1.2.3").render().decode()
    exported = {family.name for family in text_string_to_metric_families(text)}

    wanted = {
        metric.name.removesuffix("_total")
        for metric in METRICS
        if is_of(metric, process) and metric.page == names.PAGE
    }
    assert wanted <= exported
    assert CONTENT_TYPE.startswith("text/plain")
    assert 'gpuwarden_build_info{python="3' in text


def test_metric_moves_under_its_name() -> None:
    instruments = Instruments(Process.CONTROLLER, "1")

    instruments.counter(names.EVIDENCE).labels(ReasonCode.ACCEPTED).inc()
    instruments.gauge(names.STREAMS).set(4)
    instruments.histogram(names.EVIDENCE_SECONDS).observe(0.002)

    text = instruments.render().decode()
    assert 'gpuwarden_evidence_total{code="ACCEPTED"} 1.0' in text
    assert "gpuwarden_streams 4.0" in text
    assert 'gpuwarden_evidence_verification_seconds_bucket{le="0.0025"} 1.0' in text


def test_exemplars_are_on_the_page_of_whoever_asks_for_openmetrics() -> None:
    instruments = Instruments(Process.CONTROLLER, "1")
    instruments.histogram(names.EVIDENCE_SECONDS).observe(0.002, {"trace_id": "ab" * 16})
    bucket = 'gpuwarden_evidence_verification_seconds_bucket{le="0.0025"} 1.0'
    text = instruments.render(exemplars=True).decode()
    assert f'{bucket} # {{trace_id="{"ab" * 16}"}} 0.002 ' in text
    assert text.endswith("# EOF\n")
    assert f"{bucket}\n" in instruments.render().decode()
    prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
    assert [takes_exemplars(x) for x in (prometheus, "text/plain", "")] == [True, False, False]


def test_asking_twice_gives_the_same() -> None:
    instruments = Instruments(Process.AGENT, "1")

    assert instruments.gauge(names.AGENT_GPUS) is instruments.gauge(names.AGENT_GPUS)


def test_metric_of_the_other_process_or_type_is_refused() -> None:
    instruments = Instruments(Process.AGENT, "1")

    with pytest.raises(LookupError, match="gpuwarden_streams"):
        instruments.gauge(names.STREAMS)
    with pytest.raises(LookupError, match="no Counter gpuwarden_agent_gpus"):
        instruments.counter(names.AGENT_GPUS)


def test_two_processes_do_not_share_a_registry() -> None:
    first, second = Instruments(Process.AGENT, "1"), Instruments(Process.AGENT, "1")

    first.gauge(names.AGENT_GPUS).set(8)

    assert "gpuwarden_agent_gpus 0.0" in second.render().decode()


OF_GPUID = ("gpuid_export_success_total", "gpuid_export_failure_total")
"""Kept, so that dashboards of that program go on."""
OF_RADIX = (
    "scheduler_decisions_total",
    "scheduler_exploration_ratio",
    "scheduler_avg_uncertainty",
    "scheduler_regret_estimate",
    "scheduler_observe_events_total",
    "scheduler_scoring_duration_seconds",
)
"""The same."""


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_prometheus_practice(metric: names.Metric) -> None:
    of_others = (*OF_GPUID, *OF_RADIX)
    assert metric.name in of_others or re.fullmatch(r"gpuwarden_[a-z][a-z0-9_]*", metric.name)
    assert metric.name.endswith("_total") is (metric.type is MetricType.COUNTER)
    assert bool(metric.buckets) is (metric.type is MetricType.HISTOGRAM)
    assert metric.help.endswith(".")
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*|UUID", label) for label in metric.labels)
    assert not set(metric.labels) & {"pod", "le", "quantile", "job", "instance"}
    unbounded = {"node", "UUID", "serial", "uuid", "hash", "attestation_hash", "index"}
    assert metric.page == names.FLEET_PAGE or not set(metric.labels) & unbounded


OTHER_UNITS = re.compile(
    r"_(ms|millis(econds)?|us|ns|minutes|hours|kb|mb|mib|gib|percent)(_total)?$"
)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_units_are_base_units_and_suffixes_mean_what_they_say(metric: names.Metric) -> None:
    assert not OTHER_UNITS.search(metric.name)
    if metric.type is MetricType.HISTOGRAM:
        assert metric.name.endswith("_seconds")
        assert list(metric.buckets) == sorted(set(metric.buckets))
    if metric.name.endswith("_info"):
        assert metric.type is MetricType.GAUGE
    reserved = ("_count", "_sum", "_bucket", "_created")
    assert not metric.name.endswith(reserved)
    assert "_seconds_" not in metric.name.removesuffix("_total")


@pytest.mark.parametrize("process", [Process.AGENT, Process.CONTROLLER, Process.SCORE])
def test_openmetrics_parser_takes_every_metric_with_every_label(process: Process) -> None:
    """The strict parser refuses wrong suffixes, doubled families and histograms with gaps."""
    instruments = Instruments(process, "1")
    for metric in METRICS:
        if not is_of(metric, process) or metric is names.BUILD_INFO:
            continue
        if metric.page != names.PAGE:
            continue
        made = instruments._made[metric.name]
        child = made.labels(*("x" for _ in metric.labels)) if metric.labels else made
        if metric.type is MetricType.HISTOGRAM:
            child.observe(0.01)  # type: ignore[attr-defined] # a histogram by its type
        else:
            child.inc()  # type: ignore[attr-defined] # a counter or gauge by its type

    text = generate_latest(instruments.registry).decode()  # type: ignore[no-untyped-call] # no types
    parsed = open_metrics_families(text)  # type: ignore[no-untyped-call] # the library's
    ours = [family for family in parsed if family.name.startswith(OURS)]
    assert all(family.samples for family in ours)
    wanted = [x for x in METRICS if is_of(x, process) and x.page == names.PAGE]
    assert len(ours) == len(wanted)


def test_names_are_there_once() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    assert len({event.value for event in Event}) == len(list(Event.__members__))
    assert len({span.value for span in Span}) == len(list(Span.__members__))


@pytest.mark.parametrize("event", Event)
def test_events_are_dotted_names_with_a_meaning(event: Event) -> None:
    assert re.fullmatch(r"[a-z]+(\.[a-z]+)+", event)
    assert event.meaning
