"""Spans as a real collector on loopback gets them, and what tracing may never do."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import NoReturn

import pytest

from gpuwarden.telemetry import trace_export, tracing
from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import (
    NO_ROUND,
    UNANSWERED,
    Rounds,
    join_round,
    open_round,
    span,
    span_below,
)
from tests.fakes.otlp_collector import (
    CollectedSpan,
    OtlpCollector,
    closed_address,
    silent_address,
)
from tests.hang import HANG_S

CHALLENGE = "0f" * 16


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    """An exporter that still tries draws random numbers, and Hypothesis wants them for itself."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join()


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    collector = OtlpCollector()
    yield collector
    collector.close()


def _on(endpoint: str) -> Callable[[], None]:
    return trace_export.start(f"{endpoint}/", service="agent", version="1", headers={"x-key": "k"})


def _named(spans: list[CollectedSpan]) -> dict[str, CollectedSpan]:
    assert len({span.name for span in spans}) == len(spans)
    return {span.name: span for span in spans}


def test_without_an_endpoint_spans_cost_nothing() -> None:
    end = trace_export.start(None, service="agent", version="1")

    with span(Span.EVIDENCE, node="n1") as active:
        active.set_attribute("code", "ACCEPTED")
        assert tracing.exemplar() is None
    assert span(Span.EVIDENCE) is span(Span.VERIFY)
    assert span_below(Span.FILTER, f"00-{TRACE}-{PARENT}-01") is span(Span.VERIFY)
    assert open_round(Span.CONTROLLER_ATTESTATION, CHALLENGE) is NO_ROUND
    rounds = Rounds()
    rounds.begin(CHALLENGE, join_round(Span.ATTESTATION, CHALLENGE))
    with rounds.of(CHALLENGE).inside():
        rounds.of(CHALLENGE).end("ACCEPTED")
    assert rounds._open == {}
    end()


def test_spans_reach_the_collector(collector: OtlpCollector) -> None:
    end = _on(collector.endpoint)

    assert tracing.exemplar() is None
    with span(Span.EVIDENCE, node_name="n1") as outer, span(Span.INVENTORY):
        outer.set_attribute("code", "ACCEPTED")
        exemplar = tracing.exemplar()
    end()

    found = _named(collector.wait_for("agent.evidence", "agent.inventory"))
    outer_span, inner_span = found["agent.evidence"], found["agent.inventory"]
    assert collector.headers[0]["x-key"] == "k"
    assert inner_span.parent == outer_span.span
    assert inner_span.trace == outer_span.trace
    assert exemplar == {"trace_id": outer_span.trace}
    assert outer_span.attributes == {"node.name": "n1", "code": "ACCEPTED"}
    assert outer_span.service == "agent"
    assert not outer_span.failed


TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_a_trace_that_is_not_sent_is_no_exemplar(
    collector: OtlpCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    end = _on(collector.endpoint)
    with span(Span.EVIDENCE):
        assert tracing.exemplar() is None
    end()


def test_a_caller_s_trace_goes_on_here(collector: OtlpCollector) -> None:
    end = _on(collector.endpoint)

    with span_below(Span.FILTER, f"00-{TRACE}-{PARENT}-01") as active, span(Span.RPC):
        active.set_attribute("result", "passed")
    with span_below(Span.PRIORITIZE, f"00-{TRACE}-{PARENT}-00"):
        pass  # whoever asks does not keep it, so neither do we
    end()

    found = _named(collector.wait_for("controller.filter", "controller.rpc"))
    assert (found["controller.filter"].trace, found["controller.filter"].parent) == (TRACE, PARENT)
    assert found["controller.rpc"].parent == found["controller.filter"].span
    assert set(found) == {"controller.filter", "controller.rpc"}


@pytest.mark.parametrize(
    "header",
    [
        "",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-01\n",
        f"00-{TRACE}-{PARENT}",
    ],
)
def test_what_is_no_trace_begins_one(collector: OtlpCollector, header: str) -> None:
    end = _on(collector.endpoint)

    with span_below(Span.FILTER, header):
        pass
    end()

    [found] = collector.wait_for("controller.filter")
    assert (found.parent, found.trace == TRACE) == ("", False)


def test_a_span_that_fails_says_so_without_the_text(collector: OtlpCollector) -> None:
    end = _on(collector.endpoint)

    with pytest.raises(ValueError, match="secret"), span(Span.VERIFY):
        raise ValueError("secret")
    end()

    [failed] = collector.wait_for("controller.verify")
    assert failed.failed
    assert failed.attributes == {"error.type": "ValueError"}
    assert failed.events == ()  # an exception would come as one, with text and traceback


def test_a_round_is_one_trace_wherever_it_is_opened(collector: OtlpCollector) -> None:
    end = _on(collector.endpoint)
    controller = open_round(Span.CONTROLLER_ATTESTATION, CHALLENGE, node="n1")
    agent = join_round(Span.ATTESTATION, CHALLENGE)
    with agent.inside(), span(Span.EVIDENCE):
        pass
    with controller.inside(), span(Span.MESSAGE), span(Span.VERIFY):
        pass
    agent.end("ACCEPTED")
    controller.end("ACCEPTED")
    with span(Span.FILTER):
        pass
    end()

    found = _named(collector.wait_for("controller.attestation", "controller.filter"))
    digest = sha256(b"gpuwarden round\n" + CHALLENGE.encode()).hexdigest()
    first = found["controller.attestation"]
    assert (first.trace, first.span, first.parent) == (digest[:32], digest[32:48], "")
    assert first.attributes == {"node": "n1", "outcome": "ACCEPTED"}
    assert found["agent.attestation"].parent == first.span
    assert found["agent.attestation"].span != first.span
    assert found["agent.evidence"].parent == found["agent.attestation"].span
    assert found["controller.message"].parent == first.span
    assert found["controller.verify"].parent == found["controller.message"].span
    assert {one.trace for name, one in found.items() if name != "controller.filter"} == {
        first.trace
    }
    assert found["controller.filter"].trace != first.trace


def test_rounds_of_one_stream_end_once_and_the_oldest_unanswered(
    collector: OtlpCollector,
) -> None:
    end = _on(collector.endpoint)
    rounds = Rounds()
    for number in range(Rounds.KEPT + 2):
        rounds.begin(
            f"{number}", open_round(Span.CONTROLLER_ATTESTATION, f"{number}", node=f"{number}")
        )
    rounds.end("3", "ACCEPTED")
    rounds.end("3", "SIGNATURE_INVALID")
    rounds.end("no such", "ACCEPTED")
    rounds.end_all("drained")
    end()

    outcomes = {
        one.attributes["node"]: one.attributes["outcome"]
        for one in collector.wait_for("controller.attestation")
    }
    assert outcomes == {
        "0": UNANSWERED,
        "1": UNANSWERED,
        "2": "drained",
        "3": "ACCEPTED",
        "4": "drained",
        "5": "drained",
    }


async def test_rounds_of_tasks_that_run_together_do_not_mix(collector: OtlpCollector) -> None:
    end = _on(collector.endpoint)
    both = asyncio.Barrier(2)

    async def converse(challenge: str) -> None:
        opened = open_round(Span.CONTROLLER_ATTESTATION, challenge, node=challenge)
        with opened.inside(), span(Span.VERIFY, node=challenge):
            await both.wait()
        opened.end("ACCEPTED")

    await asyncio.gather(converse("aa"), converse("bb"))
    end()

    traces: dict[str, set[str]] = {}
    for one in collector.wait_for("controller.verify"):
        traces.setdefault(one.attributes["node"], set()).add(one.trace)
    assert {node: len(found) for node, found in traces.items()} == {"aa": 1, "bb": 1}
    assert traces["aa"] != traces["bb"]


@pytest.mark.parametrize("sampler", ["always_off", "parentbased_always_off", "traceidratio"])
def test_both_sides_leave_out_the_same_rounds(
    collector: OtlpCollector, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    end = _on(collector.endpoint)
    for number in range(64):
        open_round(Span.CONTROLLER_ATTESTATION, f"{number}").end("ACCEPTED")
        join_round(Span.ATTESTATION, f"{number}").end("ACCEPTED")
    end()

    by_name: dict[str, set[str]] = {"controller.attestation": set(), "agent.attestation": set()}
    for one in collector.wait_for(*(["agent.attestation"] if sampler == "traceidratio" else [])):
        by_name[one.name].add(one.trace)
    assert by_name["agent.attestation"] == by_name["controller.attestation"]
    assert len(by_name["agent.attestation"]) < 64
    assert bool(by_name["agent.attestation"]) is (sampler == "traceidratio")


def test_after_the_end_spans_cost_nothing_again(collector: OtlpCollector) -> None:
    _on(collector.endpoint)()

    assert span(Span.EVIDENCE) is span(Span.VERIFY)


SPANS_FOR_EACH = """
import sys
from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry import otlp, trace_export
from gpuwarden.telemetry.tracing import open_round, span

otlp.EXPORT_S = 3600.0
for endpoint in sys.argv[1:]:
    end = trace_export.start(endpoint, service="a", version="1")
    for number in range(1100):  # more than the queue takes
        with span(Span.VERIFY):
            open_round(Span.CONTROLLER_ATTESTATION, f"{number}").end("ACCEPTED")
    end()
    print(endpoint)
"""
"""A process of its own, as the exporter goes on trying behind the back of whoever ended it.

An export may take an hour here: an end that waits for one hangs.
"""


def test_a_collector_that_is_down_or_slow_holds_up_nothing_not_even_the_end(
    collector: OtlpCollector,
) -> None:
    collector.hold()
    with silent_address() as silent:
        endpoints = (closed_address(), silent, collector.endpoint)
        done = subprocess.run(
            [sys.executable, "-c", SPANS_FOR_EACH, *endpoints],
            stdout=subprocess.PIPE,
            check=True,
            timeout=HANG_S,
        )
    assert done.stdout.decode().split() == list(endpoints)


def test_opentelemetry_is_not_imported_without_an_endpoint() -> None:
    code = (
        "import sys; from gpuwarden.telemetry import logs, metrics, trace_export;"
        "trace_export.start(None, service='a', version='1')();"
        "sys.exit(any(m.startswith('opentelemetry') for m in sys.modules))"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


ODD: list[dict[str, str]] = [
    {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "-1"},
    {"OTEL_BSP_MAX_QUEUE_SIZE": "0"},
    {"OTEL_EXPORTER_OTLP_COMPRESSION": "brotli"},
    {"OTEL_EXPORTER_OTLP_CERTIFICATE": "/nowhere"},
    {"OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "nonsense"},
    {"OTEL_TRACES_SAMPLER": "nonsense"},
    {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "7"},
    {"OTEL_PYTHON_CONTEXT": "nonsense"},
]

WITH_SPANS = """
from gpuwarden.telemetry import logs, trace_export
from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import join_round, open_round, span, span_below

logs.configure("info", "json", service="a")
end = trace_export.start("http://127.0.0.1:9", service="a", version="1")
with span(Span.VERIFY), span_below(Span.VERIFY, f"00-{'a' * 32}-{'b' * 16}-01"):
    open_round(Span.CONTROLLER_ATTESTATION, "ab").end("ACCEPTED")
    join_round(Span.CONTROLLER_ATTESTATION, "ab").end("ACCEPTED")
end()
print("done")
"""


def with_spans(variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """In a process of its own: OpenTelemetry reads variables when it is imported."""
    return subprocess.run(
        [sys.executable, "-c", WITH_SPANS],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )


@pytest.mark.parametrize("variables", ODD, ids=" ".join)
def test_odd_variables_of_opentelemetry_end_no_program(variables: dict[str, str]) -> None:
    ran = with_spans(variables)
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr


def test_what_runs_without_traces_says_so_and_shows_no_value() -> None:
    ran = with_spans(
        {"OTEL_BSP_MAX_QUEUE_SIZE": "0", "OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret"}
    )
    [line] = [x for x in ran.stderr.splitlines() if "telemetry.tracing.off" in x]
    assert " warning " in line
    assert "fault=ValueError" in line
    assert '"OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_EXPORTER_OTLP_HEADERS"' in line
    assert "secret" not in ran.stderr


def test_a_tracer_that_fails_costs_its_spans_alone() -> None:
    class Failing:
        """Raises whatever is asked of it."""

        def span(self, *_args: object) -> NoReturn:
            raise RuntimeError

        def round(self, *_args: object, first: bool) -> NoReturn:
            raise RuntimeError(first)

        def sampled_trace(self) -> NoReturn:
            raise RuntimeError

    tracing.use(Failing())
    try:
        with span(Span.VERIFY), span_below(Span.VERIFY, ""):
            assert open_round(Span.CONTROLLER_ATTESTATION, "ab") is NO_ROUND
            assert tracing.exemplar() is None
    finally:
        tracing.use(None)
