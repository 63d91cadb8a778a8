"""Chart and kustomize install the same: deploy/kustomize is the source, this holds the chart to it.

What is meant to differ is listed with its reason; a difference that is gone must leave the list.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpuwarden.settings.loader import AGENT, CONTROLLER, ConfigType, Inputs, load
from tests.chart.comparing import (
    Key,
    changes,
    differences,
    of_chart,
    of_kustomize,
    of_parts,
    plain,
)
from tests.chart.comparing import (
    key as key_of,
)
from tests.chart.rendering import REQUIRED, Object, render
from tests.deploy.manifests import container_of, pod_of

ONLY_CHART: Final = {
    "PodDisruptionBudget/gpuwarden-scheduler": "a drained node leaves one scheduler",
    "Secret/gpuwarden-reservation-keys": "helm can draw random keys and keep them",
}
ONLY_KUSTOMIZE: Final = {"Namespace/gpuwarden-system": "helm makes the namespace; a job labels it"}
_POD: Final = "/spec/template/spec"
MEANT: Final[Mapping[Key, Mapping[str, str]]] = {
    "DaemonSet/gpuwarden-agent": {
        f"{_POD}/affinity/.*": "the labels of node-feature-discovery count, too",
        f"{_POD}/nodeSelector/nvidia.com/gpu.present": "the same",
        f"{_POD}/runtimeClassName": "NVIDIA's runtime is the default of few clusters",
    },
    "Deployment/gpuwarden-scheduler": {
        f"{_POD}/containers/kube-scheduler/image": "the cluster's own version",
        f"{_POD}/containers/kube-scheduler/imagePullPolicy": "a value",
        f"{_POD}/enableServiceLinks": "other Services choose no variables",
    },
    "FlowSchema/gpuwarden": {"/metadata/labels/.*component": "every object of the chart has one"},
    "MutatingWebhookConfiguration/gpuwarden-bindings": {"/webhooks/.*/caBundle": "a value"},
    "MutatingWebhookConfiguration/gpuwarden-pods": {"/webhooks/.*/caBundle": "a value"},
    "ValidatingWebhookConfiguration/gpuwarden-pods": {"/webhooks/.*/caBundle": "a value"},
    "StatefulSet/gpuwarden-controller": {
        f"{_POD}/containers/controller/env/GPUWARDEN_.*": "in the settings' file; compared below",
        f"{_POD}/containers/controller/volumeMounts/(access|admission|api|extender)/mountPath": (
            "one folder for all listeners; compared below"
        ),
    },
    "ValidatingAdmissionPolicy/gpuwarden-bindings": {
        "/spec/variables/gated/expression": "goes by `webhooks.enabled` and the list of namespaces"
    },
    "ValidatingAdmissionPolicy/gpuwarden-enforcement": {
        "/spec/variables/infrastructure/expression": "the list of namespaces, in other quotes"
    },
}
ITS_OWN: Final = {"trust_domain": ("prod.acme.io", "example.org"), "cluster": ("berlin-1", "prod")}
"""Setting -> what the chart was given, and the example that kustomize's overlays replace."""
FILES: Final = {
    "ConfigMap/gpuwarden-agent-config",
    "ConfigMap/gpuwarden-controller-config",
    "ConfigMap/gpuwarden-policy",
    "ConfigMap/gpuwarden-scheduler-configuration",
}
"""Compared by what is in them."""


@pytest.fixture(scope="module")
def chart() -> dict[Key, Object]:
    return of_chart()


@pytest.fixture(scope="module")
def kustomize(tmp_path_factory: pytest.TempPathFactory) -> dict[Key, Object]:
    return of_kustomize(tmp_path_factory.mktemp("kustomize"))


def test_both_install_the_same_objects(
    chart: dict[Key, Object], kustomize: dict[Key, Object]
) -> None:
    assert chart.keys() - kustomize.keys() == ONLY_CHART.keys()
    assert kustomize.keys() - chart.keys() == ONLY_KUSTOMIZE.keys()


def test_objects_differ_only_where_they_are_meant_to(
    chart: dict[Key, Object], kustomize: dict[Key, Object]
) -> None:
    found: dict[Key, set[str]] = {}
    used: set[tuple[Key, str]] = set()
    for key in chart.keys() & kustomize.keys() - FILES:
        meant = MEANT.get(key, {})
        for path in differences(chart[key], kustomize[key]):
            allowed = [x for x in meant if re.fullmatch(x, path)]
            used |= {(key, x) for x in allowed}
            if not allowed:
                found.setdefault(key, set()).add(path)
    assert found == {}
    assert {(key, x) for key, meant in MEANT.items() for x in meant} - used == set()


@pytest.mark.parametrize("name", ["gpuwarden-policy", "gpuwarden-scheduler-configuration"])
def test_policy_and_scheduler_configuration_are_the_same(
    name: str, chart: dict[Key, Object], kustomize: dict[Key, Object]
) -> None:
    (ours,), (theirs,) = (x[f"ConfigMap/{name}"]["data"].items() for x in (chart, kustomize))
    assert ours[0] == theirs[0]
    assert yaml.safe_load(ours[1]) == yaml.safe_load(theirs[1])


@pytest.mark.parametrize(
    ("workload", "config"),
    [("DaemonSet/gpuwarden-agent", AGENT), ("StatefulSet/gpuwarden-controller", CONTROLLER)],
    ids=["agent", "controller"],
)
def test_settings_are_the_same(
    workload: Key,
    config: ConfigType[Any],
    chart: dict[Key, Object],
    kustomize: dict[Key, Object],
) -> None:
    """From file and variables together; certificates by the Secret that is at their path."""
    ours, theirs = (settings(x, workload, config) for x in (chart, kustomize))
    for name, (here, there) in ITS_OWN.items():
        assert (ours.pop(name), theirs.pop(name)) == (here, there)
    assert ours == theirs


@pytest.mark.parametrize("access", ["privileged", "cdi", "nri"])
def test_access_to_gpus_changes_the_same(access: str, tmp_path: Path) -> None:
    """`agent.gpuAccess`, and the component of that name."""
    agent = "DaemonSet/gpuwarden-agent"

    def by_chart(value: str) -> Object:
        values = {"agent": {"gpuAccess": value, "runtimeClassName": ""}}
        return next(plain(x) for x in render({**REQUIRED, **values}) if key_of(x) == agent)

    def by_kustomize(*components: str) -> Object:
        return of_parts(tmp_path, ["kustomize/base"], components)[agent]

    ours = changes(by_chart("runtimeClass"), by_chart(access))
    assert ours
    assert ours == changes(by_kustomize(), by_kustomize(f"gpu-access-{access}"))


def settings(found: dict[Key, Object], key: Key, config: ConfigType[Any]) -> dict[str, Any]:
    container = container_of(found[key])
    text = next(iter(found[f"ConfigMap/{key.partition('/')[2]}-config"]["data"].values()))
    places = {"spec.nodeName": "node-1", "metadata.name": "c-0", "metadata.namespace": "here"}
    variables = {
        x["name"]: x["value"] if "value" in x else places[x["valueFrom"]["fieldRef"]["fieldPath"]]
        for x in container["env"]
    }
    loaded = load(config, Inputs((), variables, ("file", text.encode()))).settings
    secrets = {
        mount["mountPath"]: volume["secret"]["secretName"]
        for mount in container["volumeMounts"]
        for volume in pod_of(found[key])["volumes"]
        if mount["name"] == volume["name"] and "secret" in volume
    }
    found_settings: dict[str, Any] = _by_secret(dataclasses.asdict(loaded), secrets)
    return found_settings


def _by_secret(value: Any, secrets: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {name: _by_secret(x, secrets) for name, x in value.items()}
    if isinstance(value, Path) and str(value.parent) in secrets:
        return (secrets[str(value.parent)], value.name)
    return value
