"""Chart and kustomize install the same: deploy/kustomize is the source, this holds the chart to it.

What is meant to differ is listed with its reason; a difference that is gone must leave the list.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from controller.policies.file import decode_policy
from controller.policy import Level, NodeMode
from gpuwarden import __version__
from gpuwarden.policy.document import PolicyInvalidError
from gpuwarden.settings.loader import AGENT, CONTROLLER, ConfigType, Inputs, load
from tests.chart.comparing import (
    WAYS,
    Key,
    changes,
    differences,
    of_chart,
    of_kustomize,
    of_parts,
)
from tests.chart.rendering import REQUIRED, Object, Values
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
        "/spec/variables/registered/expression": "goes by `webhooks.enabled` and the namespaces"
    },
    "ValidatingAdmissionPolicy/gpuwarden-enforcement": {
        "/spec/variables/infrastructure/expression": "the list of namespaces, in other quotes"
    },
}
WITHOUT: Final[Mapping[str, frozenset[Key]]] = {
    "given": frozenset(),
    "report": frozenset(),
    "affinity": frozenset({"Deployment/gpuwarden-scheduler"}),
    "self-managed": frozenset(x for x in MEANT if "WebhookConfiguration/" in x),
    "evaluation": frozenset({"DaemonSet/gpuwarden-agent"}),
}
"""Objects that are the same in these ways: no `caBundle` is written, agents look for no GPU."""
ITS_OWN: Final = {"trust_domain": ("prod.acme.io", "example.org"), "cluster": ("berlin-1", "prod")}
"""Setting -> what the chart was given, and the example that kustomize's overlays replace."""
FILES: Final = {
    "ConfigMap/gpuwarden-agent-config",
    "ConfigMap/gpuwarden-controller-config",
    "ConfigMap/gpuwarden-policy",
    "ConfigMap/gpuwarden-scheduler-configuration",
}
"""Compared by what is in them."""
MARK: Final = "gpuwarden.dev/evaluation"
PLAIN: Final[Values] = {
    **REQUIRED,
    "agent": {"runtimeClassName": ""},
    "webhooks": {"existingKeysSecret": "keys"},
}
"""Two renderings of these values are the same: helm draws no keys."""
Installed = dict[Key, Object]
CHANGES: Final[Mapping[str, tuple[Values, Sequence[str]]]] = {
    **{
        f"gpu-access-{x}": ({"agent": {"gpuAccess": x}}, ["DaemonSet/gpuwarden-agent"])
        for x in ("privileged", "nri")
    },
    "mig": ({"agent": {"mig": True}}, ["DaemonSet/gpuwarden-agent"]),
    "selinux": (
        {x: {"seLinuxOptions": {"type": "spc_t"}} for x in ("agent", "controller")},
        ["DaemonSet/gpuwarden-agent", "StatefulSet/gpuwarden-controller"],
    ),
    "no-persistence": (
        {"controller": {"persistence": {"enabled": False}}},
        ["StatefulSet/gpuwarden-controller"],
    ),
    "on-control-plane": (
        {"controller": {"onControlPlane": True}},
        ["StatefulSet/gpuwarden-controller"],
    ),
    "priority-classes": (
        {"hints": {"priorityClasses": {"create": True}}},
        [f"PriorityClass/gpu-{x}" for x in ("default", "high", "medium", "ultra")],
    ),
    "network-egress": (
        {"networkPolicies": {"egress": {"enabled": True}}},
        [f"NetworkPolicy/gpuwarden-{x}-egress" for x in ("agent", "controller", "scheduler")],
    ),
    "no-network-policies": (
        {"networkPolicies": {"enabled": False}},
        ["NetworkPolicy/gpuwarden-agent", "NetworkPolicy/gpuwarden-controller"],
    ),
}
"""Component -> the values that ask for the same, and the objects that either changes."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Installed, Installed]]:
    """Way -> what the chart installs, and what kustomize does."""
    return {
        way: (of_chart(values), of_kustomize(tmp_path_factory.mktemp(way), components))
        for way, (values, components) in WAYS.items()
    }


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def chart(way: str, installed: Mapping[str, tuple[Installed, Installed]]) -> Installed:
    return installed[way][0]


@pytest.fixture
def kustomize(way: str, installed: Mapping[str, tuple[Installed, Installed]]) -> Installed:
    return installed[way][1]


def test_both_install_the_same_objects(way: str, chart: Installed, kustomize: Installed) -> None:
    only = {*ONLY_CHART}
    if way == "affinity":  # without deploy/scheduler, which has the FlowSchema
        only = only - {"PodDisruptionBudget/gpuwarden-scheduler"} | {"FlowSchema/gpuwarden"}
    assert chart.keys() - kustomize.keys() == only
    assert kustomize.keys() - chart.keys() == ONLY_KUSTOMIZE.keys()


def different(chart: Installed, kustomize: Installed) -> set[tuple[Key, str]]:
    """Objects, and at which paths they differ."""
    keys = chart.keys() & kustomize.keys() - FILES
    return {(key, path) for key in keys for path in differences(chart[key], kustomize[key])}


def test_objects_differ_only_where_they_are_meant_to(
    way: str, chart: Installed, kustomize: Installed
) -> None:
    meant = {key: paths for key, paths in MEANT.items() if key not in WITHOUT[way]}
    assert {
        (key, path)
        for key, path in different(chart, kustomize)
        if not any(re.fullmatch(x, path) for x in meant.get(key, {}))
    } == set()


def test_every_difference_that_is_meant_is_there(
    installed: Mapping[str, tuple[Installed, Installed]],
) -> None:
    found = {x for both in installed.values() for x in different(*both)}
    assert {
        (key, meant)
        for key, paths in MEANT.items()
        for meant in paths
        if not any(key == at and re.fullmatch(meant, path) for at, path in found)
    } == set()


@pytest.mark.parametrize("name", ["gpuwarden-policy", "gpuwarden-scheduler-configuration"])
def test_policy_and_scheduler_configuration_are_the_same(
    name: str, way: str, chart: Installed, kustomize: Installed
) -> None:
    if (name, way) == ("gpuwarden-scheduler-configuration", "affinity"):
        assert not {f"ConfigMap/{name}"} & (chart.keys() | kustomize.keys())
        return
    ours, theirs = file_of(chart, name), file_of(kustomize, name)
    if (name, way) == ("gpuwarden-scheduler-configuration", "self-managed"):
        # For the change to managed certificates with two upgrades, which the chart alone makes.
        assert ours["extenders"][0]["tlsConfig"].pop("serverName") == "gpuwarden-extender"
    assert ours == theirs


def file_of(found: Installed, name: str) -> Object:
    """What the only file of a ConfigMap says."""
    (text,) = found[f"ConfigMap/{name}"]["data"].values()
    document: Object = yaml.safe_load(text)
    return document


@pytest.mark.parametrize(
    ("workload", "config"),
    [("DaemonSet/gpuwarden-agent", AGENT), ("StatefulSet/gpuwarden-controller", CONTROLLER)],
    ids=["agent", "controller"],
)
def test_settings_are_the_same(
    workload: Key, config: ConfigType[Any], chart: Installed, kustomize: Installed
) -> None:
    """From file and variables together; certificates by the Secret that is at their path."""
    ours, theirs = (settings(x, workload, config) for x in (chart, kustomize))
    for name, (here, there) in ITS_OWN.items():
        assert (ours.pop(name), theirs.pop(name)) == (here, there)
    assert ours == theirs


@pytest.fixture(scope="module")
def plain_chart() -> Installed:
    return of_chart(PLAIN)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return of_parts(tmp_path_factory.mktemp("base"), ["kustomize/base"], [])


@pytest.mark.parametrize("component", CHANGES)
def test_a_component_changes_what_the_values_change(
    component: str, plain_chart: Installed, base: Installed, tmp_path: Path
) -> None:
    values, objects = CHANGES[component]
    ours = changed(plain_chart, of_chart(merged(PLAIN, values)))
    theirs = changed(base, of_parts(tmp_path, ["kustomize/base"], [component]))
    assert sorted(ours) == objects
    assert ours == theirs


def changed(before: Installed, after: Installed) -> dict[Key, Mapping[str, Any]]:
    """By object, what is elsewhere or gone; one without changes is left out."""
    keys = before.keys() | after.keys()
    gone: dict[Key, Mapping[str, Any]] = {key: {"": None} for key in before.keys() - after.keys()}
    found = {x: changes(before.get(x, {}), after[x]) for x in keys - gone.keys()}
    return {key: x for key, x in (gone | found).items() if x}


def merged(values: Values, more: Values) -> dict[str, Any]:
    """As helm merges two files of values."""
    found = dict(values)
    for name, value in more.items():
        is_group = isinstance(value, dict) and name in found
        found[name] = merged(found[name], value) if is_group else value
    return found


@pytest.mark.parametrize(
    ("component", "obeys"), [("mode-env", False), ("mode-env-honours-variable", True)]
)
def test_mode_env_adds_to_the_policy_what_the_chart_adds(
    component: str, obeys: bool, plain_chart: Installed, base: Installed, tmp_path: Path
) -> None:
    """And nothing else, to no other object."""
    ours = of_chart({**PLAIN, "mode": "env", "envHonoursVariable": obeys})
    theirs = of_parts(tmp_path, ["kustomize/base"], [component])
    policy = file_of(theirs, "gpuwarden-policy")
    assert policy == file_of(ours, "gpuwarden-policy")
    assert policy["pools"] == [{"pattern": "*", "mode": "env", "honoursVariable": obeys}]
    for before, after in ((plain_chart, ours), (base, theirs)):
        assert changed(before, after).keys() == {"ConfigMap/gpuwarden-policy"}


def test_mode_env_keeps_the_policy_of_an_overlay(tmp_path: Path) -> None:
    """Also that of the next overlay's base; in a policy that names a mode already it is refused."""
    made = of_parts(tmp_path, ["kustomize/overlays/prod"], ["mode-env"])
    found = made["ConfigMap/gpuwarden-policy"]["data"]["policy.yaml"]
    policy = decode_policy(found.encode())
    assert (policy.min_level, policy.default_mode) == (Level.L1, NodeMode.ENV)
    assert policy.attestors is not None
    assert policy.attestors["k8s_psat"].images
    lines = found[found.index("defaultMode") :]
    with pytest.raises(PolicyInvalidError, match="again"):
        decode_policy(f"{found}\n{lines}".encode())


def test_an_evaluation_is_marked_like_the_charts(
    installed: Mapping[str, tuple[Installed, Installed]],
) -> None:
    """The namespace too, which a job of the chart labels."""
    ours, theirs = installed["evaluation"]
    assert {key for key, x in theirs.items() if x["metadata"].get("labels", {}).get(MARK)} == {
        *theirs
    }
    for found in (ours, theirs):
        agent = found["DaemonSet/gpuwarden-agent"]["spec"]["template"]
        assert agent["metadata"]["labels"][MARK] == "true"
        assert (
            agent["spec"]["containers"][0]["image"] == f"gpuwarden-agent-evaluation:{__version__}"
        )
    policy = file_of(theirs, "gpuwarden-policy")
    assert (policy["minLevel"], policy["defaultMode"]) == ("L0", "env")
    assert MARK not in str([installed[x] for x in ("given", "self-managed")])


@pytest.mark.parametrize("component", [x for x in CHANGES if x.startswith("gpu-") or x == "mig"])
def test_an_evaluation_asks_for_no_gpu_whatever_came_before(component: str, tmp_path: Path) -> None:
    agent = "DaemonSet/gpuwarden-agent"
    base = ["kustomize/base"]
    alone = of_parts(tmp_path, base, ["evaluation"])[agent]
    assert of_parts(tmp_path, base, [component, "evaluation"])[agent] == alone
    values = merged(merged(PLAIN, CHANGES[component][0]), {"evaluation": {"enabled": True}})
    assert of_chart(values)[agent] == alone


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
