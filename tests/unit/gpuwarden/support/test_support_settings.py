"""Which settings may leave: by their kind, never by the look of their value."""

import json
from collections.abc import Mapping

import pytest

from gpuwarden.settings.loader import CONFIG_TYPES, CONTROLLER, Inputs, load
from gpuwarden.support.disclosed_settings import disclosed_settings, may_leave

TOKEN = "9f27c1d48e6b3a50"  # noqa: S105 -- made up, to be looked for
GIVEN = {
    "GPUWARDEN_TRUST_DOMAIN": "example.org",
    "GPUWARDEN_CLUSTER": "c1",
    "GPUWARDEN_WORKLOAD_API": f"unix:///run/{TOKEN}/socket",
}
WITHHELD = {
    "workloadApi",
    "policy.file",
    "extender.tls.cert",
    "extender.tls.key",
    "extender.tls.clientCa",
    "admission.tls.cert",
    "admission.tls.key",
    "admission.tls.clientCa",
    "api.tls.cert",
    "api.tls.key",
    "api.readers",
    "staticHashes",
    "listen.local",
    "store.path",
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
        if not may_leave(key, "file x.yaml:1")
    }
    assert found == WITHHELD


@pytest.mark.parametrize("source", ["default", "flag --x", "environment GPUWARDEN_X"])
def test_a_secret_is_withheld_whatever_set_it(source: str) -> None:
    [key] = [key for key in CONTROLLER.keys if key.name == "telemetry.otlpHeaders"]
    assert not may_leave(key, source)


def test_values_and_sources_are_shown_where_they_can_be() -> None:
    settings, withheld = shown({"GPUWARDEN_ATTESTATION_INTERVAL": "7s"})
    assert settings["attestation.interval"] == {"value": "7s", "source": "environment"}
    assert settings["audit.dir"] == {"value": "/var/lib/gpuwarden/audit", "source": "default"}
    assert settings["workloadApi"]["value"] == "<redacted>"
    assert withheld == ("workloadApi", "telemetry.otlpHeaders")


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
