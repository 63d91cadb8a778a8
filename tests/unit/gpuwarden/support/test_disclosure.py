"""Of a foreign text only words of our own lists are told."""

import json
import string
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.settings.loader import CONFIG_TYPES, CONTROLLER, Inputs, load
from gpuwarden.support.disclosure import (
    _ERRORS,
    _KNOWN,
    disclosed_settings,
    known_words,
    may_be_shown,
    metrics_part,
    received_part,
)
from gpuwarden.support.part import Part, missing
from gpuwarden.telemetry.every_metric import METRICS
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import PAGE, Process

# --- known words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("cannot write: [Errno 28] No space left on device: '/secret/audit-1'", ["ENOSPC"]),
        ("INVENTORY_CHANGED: GPU-abc hunter2 is not pinned", ["INVENTORY_CHANGED"]),
        ("<AioRpcError UNAVAILABLE 'token=hunter2'>", ["UNAVAILABLE"]),
        ("no SVID: denied, expired at hunter2", ["denied", "expired"]),
        ("UNAVAILABLEX xUNAVAILABLE", []),
        ("x" * 5000 + " UNAVAILABLE", []),
    ],
)
def test_what_is_reported(text: str, words: list[str]) -> None:
    assert known_words(text) == words


@given(st.text(st.sampled_from(string.printable), max_size=200))
def test_nothing_else_is_ever_reported(text: str) -> None:
    assert set(known_words(text)) <= _KNOWN | set(_ERRORS.values())


# --- support settings


TOKEN = "9f27c1d48e6b3a50"  # noqa: S105 -- made up, to be looked for
GIVEN = {
    "GPUWARDEN_TRUST_DOMAIN": "example.org",
    "GPUWARDEN_CLUSTER": "c1",
    "GPUWARDEN_WORKLOAD_API": f"unix:///run/{TOKEN}/socket",
}
WITHHELD = {
    "workloadApi",
    "policy.file",
    "access.tls.ca",
    "access.tls.cert",
    "access.tls.key",
    "certificates.selfManaged.folder",
    "extender.tls.cert",
    "extender.tls.key",
    "extender.tls.clientCa",
    "extender.tls.previous",
    "admission.tls.cert",
    "admission.tls.key",
    "admission.tls.clientCa",
    "api.tls.cert",
    "api.tls.key",
    "api.readers",
    "staticHashes",
    "listen.local",
    "store.path",
    "database",
    "databasePassword",
    "audit.dir",
    "audit.key",
    "admission.hostPaths",
    "admission.idKeys",
    "telemetry.otlp",
    "telemetry.otlpHeaders",
    "agent.stateDir",
    "agent.kubeletSocket",
    "kubernetes.context",
    "kubernetes.kubeconfig",
    "kubernetes.namespace",
    "console.proxies",
    "export.deadLetter.dir",
    "export.http.authToken",
    "export.http.endpoint",
    "export.postgres.database",
    "export.postgres.host",
    "export.postgres.password",
    "export.postgres.sslRootCert",
    "export.postgres.user",
    "export.s3.bucket",
    "export.s3.endpoint",
    "export.s3.prefix",
    "hints.authToken",
    "hints.ca",
    "hints.schedulerUrl",
}
"""Paths, URLs, headers and free text; whoever adds such a key decides here."""


def shown(environment: Mapping[str, str]) -> tuple[dict[str, dict[str, str]], tuple[str, ...]]:
    content = disclosed_settings(load(CONTROLLER, Inputs(environment={**GIVEN, **environment})))
    value = content.value
    assert isinstance(value, dict)
    return value["settings"], content.withheld


def test_keys_that_could_hold_anything_are_withheld_once_they_are_set() -> None:
    found = {
        key.name
        for config in CONFIG_TYPES.values()
        for key in config.keys
        if not may_be_shown(key, "file x.yaml:1")
    }
    assert found == WITHHELD


@pytest.mark.parametrize("source", ["default", "flag --x", "environment GPUWARDEN_X"])
def test_a_secret_is_withheld_whatever_set_it(source: str) -> None:
    [key] = [key for key in CONTROLLER.keys if key.name == "telemetry.otlpHeaders"]
    assert not may_be_shown(key, source)


def test_values_and_sources_are_shown_where_they_can_be() -> None:
    settings, withheld = shown({"GPUWARDEN_ATTESTATION_INTERVAL": "7s"})
    assert settings["attestation.interval"] == {"value": "7s", "source": "environment"}
    assert settings["audit.dir"] == {"value": "/var/lib/gpuwarden/audit", "source": "default"}
    assert settings["workloadApi"]["value"] == "<redacted>"
    assert withheld == (
        "workloadApi",
        "hints.authToken",
        "export.http.authToken",
        "export.postgres.password",
        "telemetry.otlpHeaders",
    )


def test_nothing_of_an_open_value_is_shown() -> None:
    settings, withheld = shown(
        {
            "GPUWARDEN_AUDIT_DIR": f"/var/{TOKEN}",
            "GPUWARDEN_AUDIT_KEY": f"/keys/{TOKEN}.pem",
            "GPUWARDEN_TELEMETRY_OTLP": f"https://collector/{TOKEN}",
            "GPUWARDEN_TELEMETRY_OTLP_HEADERS": f"authorization=Bearer {TOKEN}",
            "GPUWARDEN_INSECURE_STATIC_HASHES": "true",
            "GPUWARDEN_STATIC_HASHES": json.dumps({"node-1": TOKEN}),
        }
    )
    assert TOKEN not in json.dumps(settings)
    assert {"audit.dir", "audit.key", "telemetry.otlp", "staticHashes"} <= set(withheld)


def test_the_name_of_a_configuration_file_is_not_told() -> None:
    file = (
        f"/etc/{TOKEN}.yaml",
        b"apiVersion: config.gpuwarden.dev/v1alpha1\nkind: ControllerConfig\n",
    )
    content = disclosed_settings(load(CONTROLLER, Inputs(environment=GIVEN, file=file)))
    assert TOKEN not in json.dumps(content.value)


# --- support exposition


@pytest.mark.parametrize("process", [Process.AGENT, Process.CONTROLLER])
def test_every_sample_of_ours_is_kept(process: Process) -> None:
    instruments = Instruments(process, "0.1.0")
    for metric in METRICS:
        is_here = metric.process in {process, Process.BOTH} and metric.page == PAGE
        if is_here and metric.labels:
            made = instruments._get(metric, object)  # type: ignore[type-var]
            if metric.name != "gpuwarden_build_info":
                made.labels(*("/gpuwarden.wire.v1.A/B" for _ in metric.labels))  # type: ignore[attr-defined]
    rendered = instruments.render().decode()
    ours = {line for line in rendered.splitlines() if line.startswith("gpuwarden_")}
    part = metrics_part("metrics.prom", rendered.encode())
    kept = (part.content or b"").decode().splitlines()
    assert {line for line in kept if line.startswith("gpuwarden_")} == ours
    assert "process_open_fds" in (part.content or b"").decode()


@pytest.mark.parametrize(
    "line",
    [
        "somebody_elses_total 1.0",
        'gpuwarden_ready{password="hunter2"} 1.0',
        'gpuwarden_evidence_total{code="hunter 2"} 1.0',
        'gpuwarden_evidence_total{code="\x1b[2J"} 1.0',
        'gpuwarden_evidence_total{code="a"} hunter2',
        "gpuwarden_ready 1.0 # hunter2",
        'process_open_fds{a="b"} 1.0',
        'gpuwarden_node_info{node="gpu-1"} 1',
        'python_info{implementation="hunter2"} 1.0',
        "\xff\xfe",
    ],
)
def test_what_is_not_declared_is_counted_and_not_kept(line: str) -> None:
    text = f"# HELP gpuwarden_ready hunter2\ngpuwarden_ready 1.0\n{line}\n"
    part = metrics_part("metrics.prom", text.encode("latin-1"))
    assert part.content == b"gpuwarden_ready 1.0\n"
    assert part.left_out == 1


# --- told parts


@pytest.mark.parametrize(
    ("name", "content", "kept"),
    [
        ("a.json", b'{"a":"\xe2\x80\xae\x7f"}', b'{\n "a": "\\u202e\\u007f"\n}\n'),
        ("a.jsonl", b'{"a":1}\n{"b":"\xc3\xa4"}\n', b'{"a":1}\n{"b":"\\u00e4"}\n'),
        ("a.prom", b'gpuwarden_ready 1.0\nx{a="\x1b"} 1\n', b"gpuwarden_ready 1.0\n"),
    ],
)
def test_it_is_in_our_spelling(name: str, content: bytes, kept: bytes) -> None:
    assert received_part(Part(name, content, withheld=("a\x1bb",), left_out=2)) == Part(
        name, kept, withheld=("a?b",), left_out=2
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.json", b"no json"), ("a.jsonl", b"{}\nno"), ("a.json", b"\xff"), ("a.json", b"[" * 9**6)],
)
def test_what_it_is_not_is_missing(name: str, content: bytes) -> None:
    part = received_part(Part(name, content))
    assert part.content is None
    assert part.missing.startswith("is not what its name says")


def test_a_reason_is_bounded_and_printable() -> None:
    part = received_part(missing("a.json", "\x1b[2J" + "x" * 1000))
    assert part.missing.startswith("?[2Jxxx")
    assert len(part.missing) == 300
