"""What the pages for users name exists under that name: metrics, codes, settings, commands."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from grpc import StatusCode

from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry.every_metric import METRICS
from gpuwarden.telemetry.names import Event, MetricType, Span
from tests.docs_pages.command_line import command_line_page
from tests.docs_pages.configuration import configuration_page

DOCS = Path(__file__).resolve().parents[4] / "docs"
PAGES = sorted(x.name for x in DOCS.glob("*.md"))
SUFFIXES = ("_bucket", "_count", "_sum")
LABELS = {metric.name: set(metric.labels) for metric in METRICS}
TABLES = {
    "gpuwarden_score",
    "gpuwarden_score_write",
    "gpuwarden_score_learned",
    "gpuwarden_score_run",
}
"""In PostgreSQL."""


def _text(page: str) -> str:
    return (DOCS / page).read_text()


@cache
def _reference() -> str:
    return command_line_page()


@cache
def _settings() -> str:
    return configuration_page()


@cache
def _chart_values() -> frozenset[str]:
    """Values of the Helm chart, for example `agent.image.tag`."""
    values = DOCS.parent / "deploy" / "helm" / "gpuwarden" / "values.yaml"
    return frozenset(_paths(yaml.safe_load(values.read_text()), ""))


def _paths(value: object, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield f"{path}{name}"
            yield from _paths(below, f"{path}{name}.")


def _base(name: str) -> str:
    for suffix in SUFFIXES:
        if name.endswith(suffix) and name.removesuffix(suffix) in LABELS:
            return name.removesuffix(suffix)
    return name


@pytest.mark.parametrize("page", PAGES)
def test_every_metric_exists_with_the_labels_it_is_asked_by(page: str) -> None:
    found = re.findall(r"\b(gpuwarden_[a-z_]+[a-z])(?![a-z_])(?:\{([^}]*)\})?", _text(page))
    for name, matchers in found:
        if name in TABLES:
            continue
        assert _base(name) in LABELS, name
        asked = set(re.findall(r"([a-z]+)(?:=~|!~|!=|=)\"", matchers)) - {"job"}
        assert asked <= LABELS[_base(name)], (name, matchers)


@pytest.mark.parametrize("page", PAGES)
def test_rates_are_taken_of_counters_and_histograms_only(page: str) -> None:
    counted = {metric.name for metric in METRICS if metric.type is MetricType.COUNTER}
    asked = re.findall(r"\b(?:rate|increase)\((gpuwarden_[a-z_]+)", _text(page))
    for name in asked:
        assert name in counted or name.endswith(SUFFIXES), name


VARIABLES = (
    *("OTEL_", "SPIFFE_", "GPUWARDEN_", "PIP_", "NVIDIA_", "CUDA_", "BGS_"),
    *("SCHEDULER_", "SOURCE_DATE_EPOCH", "HTTPS_PROXY"),
    *("AWS_", "HTTP_", "POSTGRES_", "S3_", "EXPORTER_TYPE", "CLUSTER_NAME", "BATCH_SIZE"),
    *("RETRY_COUNT", "LABEL_SELECTOR"),
)
READ_FAILURES = {code.name for code in StatusCode} | {"TOO_MANY"}
CAPABILITIES = {"SYS_ADMIN", "SYS_RAWIO", "SYS_MODULE", "SYS_BOOT", "DAC_READ_SEARCH"}
CONSTANTS = {"CLOCK_BOOTTIME", "SCHED_FIFO", "INVALID_VALUE"}


@pytest.mark.parametrize("page", PAGES)
def test_every_reason_code_exists(page: str) -> None:
    words = set(re.findall(r"[`\"|]([A-Z][A-Z0-9]*_[A-Z0-9_]+)(?=[\\`\"|])", _text(page)))
    known = {code.value for code in ReasonCode}
    variables = {word for word in words if word.startswith(VARIABLES)}
    assert words - known - variables - READ_FAILURES - CAPABILITIES - CONSTANTS == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_exists(page: str) -> None:
    sections = "attestation|agent|audit|limits|listen|extender|clock|store|policy|telemetry"
    keys = set(re.findall(rf"`((?:{sections})\.[a-zA-Z.]+[a-zA-Z])", _text(page)))
    configured = _settings()
    events = {name.value for name in (*Event, *Span)}
    files = {key for key in keys if key.endswith((".json", ".jsonl", ".py"))}
    for key in keys - events - files - _chart_values():
        assert f"| `{key}` |" in configured or f"| `{key}." in configured, key


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_flag_exists(page: str) -> None:
    reference = _reference()
    for line in re.findall(r"(?:\$ |`)(gpuwarden [a-z][^`#\n]*)", _text(page)):
        words = line.split()
        path = [word for word in words[:3] if re.fullmatch(r"[a-z]+(?:-[a-z]+)*", word)]
        while path and f"## {' '.join(path)}\n" not in reference:
            path.pop()
        assert len(path) >= 2, line
        section = reference.split(f"## {' '.join(path)}\n", 1)[1].split("\n### gpuwarden", 1)[0]
        flags = set(re.findall(r"(?<=\s)(--[a-z-]+|-[a-z])(?=\s|$)", line))
        for flag in sorted(flags - {"--help"}):
            assert re.search(rf"(?<![\w-]){flag}(?![\w-])", section), (line, flag)
