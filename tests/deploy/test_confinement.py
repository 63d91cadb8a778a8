"""What the shipped workloads may do, and what keeps them up: each setting, with its reason.

A setting that is taken out, weakened or added to makes its row fail.
"""

from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import KUSTOMIZE, Object, container_of, objects, one, pod_of

SCHEDULER = KUSTOMIZE.parent / "scheduler"
FILES = [x for x in (*objects(), *objects(SCHEDULER)) if "metadata" in x]
EXTENDER = [yaml.safe_load((KUSTOMIZE / "components/extender/controller.yaml").read_text())]
POD = "spec/template/spec"
CONTAINER = f"{POD}/containers/0"
RUNTIME_DEFAULT = {"type": "RuntimeDefault"}
NOBODY = {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532}
POWERLESS = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One place of one object; the value there is exactly `wanted`."""

    kind: str
    name: str
    path: str
    wanted: Any
    why: str


def agent(path: str, wanted: object, why: str) -> Setting:
    return Setting("DaemonSet", "gpuwarden-agent", path, wanted, why)


def controller(path: str, wanted: object, why: str) -> Setting:
    return Setting("StatefulSet", "gpuwarden-controller", path, wanted, why)


def scheduler(path: str, wanted: object, why: str) -> Setting:
    return Setting("Deployment", "gpuwarden-scheduler", path, wanted, why)


def labels(component: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": "gpuwarden", "app.kubernetes.io/component": component}


def spread(topology: str) -> Object:
    return {
        "topologyKey": topology,
        "maxSkew": 1,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels("controller")},
    }


def field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


SETTINGS = (
    agent(f"{POD}/hostPID", wanted=True, why="GPU processes have the host's numbers"),
    agent(f"{POD}/securityContext", {"seccompProfile": RUNTIME_DEFAULT}, "nothing beside it"),
    agent(
        f"{CONTAINER}/securityContext",
        {"runAsUser": 0, "runAsGroup": 0, "privileged": False, **POWERLESS},
        "root for kubelet's socket and the system's UUID, without any capability",
    ),
    agent(
        f"{CONTAINER}/env",
        [
            field("NODE_NAME", "spec.nodeName"),
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        ],
        "who it is, all GPUs, and no more of the driver than NVML and its processes",
    ),
    agent(
        f"{CONTAINER}/resources",
        {"requests": {"cpu": "20m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "a leak ends the agent, not the node",
    ),
    agent(f"{POD}/automountServiceAccountToken", wanted=False, why="no rights, so no token"),
    agent(f"{POD}/enableServiceLinks", wanted=False, why="other Services choose no variables"),
    agent(f"{POD}/priorityClassName", "system-node-critical", "evicted after all workloads"),
    agent(f"{POD}/tolerations", [{"operator": "Exists"}], "tainted nodes have GPUs, too"),
    agent(
        f"{POD}/nodeSelector",
        {"kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true"},
        "GPU nodes only",
    ),
    agent(
        f"{POD}/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution",
        {
            "nodeSelectorTerms": [
                {
                    "matchExpressions": [
                        {"key": "gpuwarden.dev/agent", "operator": "NotIn", "values": ["off"]},
                        *(
                            {
                                "key": f"nvidia.com/gpu.deploy.{x}",
                                "operator": "NotIn",
                                "values": ["paused-for-driver-upgrade", "paused-for-mig-change"],
                            }
                            for x in ("device-plugin", "client")
                        ),
                    ]
                }
            ]
        },
        "a driver is exchanged while no agent has its devices open",
    ),
    agent(
        "spec/updateStrategy",
        {"rollingUpdate": {"maxUnavailable": "10%", "maxSurge": 0}},
        "never two agents for one node",
    ),
    agent(
        f"{POD}/volumes/3",
        {
            "name": "state",
            "hostPath": {"path": "/var/lib/gpuwarden", "type": "DirectoryOrCreate"},
        },
        "the witness's memory outlives the pod",
    ),
    controller(
        f"{POD}/securityContext",
        {**NOBODY, "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": RUNTIME_DEFAULT},
        "not root, and the owner of its volume, which is not walked at each start",
    ),
    controller(
        f"{CONTAINER}/lifecycle",
        {"preStop": {"sleep": {"seconds": 5}}},
        "endpoints go before the replica does",
    ),
    controller(
        f"{CONTAINER}/securityContext", {"privileged": False, **POWERLESS}, "no capability at all"
    ),
    controller(
        f"{CONTAINER}/env",
        [field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace")],
        "who it is, and where its Lease lies",
    ),
    controller(
        f"{CONTAINER}/resources",
        {"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"memory": "4Gi"}},
        "a leak ends the replica, not the node",
    ),
    controller(f"{POD}/enableServiceLinks", wanted=False, why="other Services choose no variables"),
    controller(f"{POD}/priorityClassName", "system-cluster-critical", "evicted after workloads"),
    controller(
        f"{POD}/topologySpreadConstraints",
        [spread("kubernetes.io/hostname"), spread("topology.kubernetes.io/zone")],
        "one node or zone does not take both replicas along",
    ),
    controller("spec/replicas", 2, "one may be away"),
    controller("spec/podManagementPolicy", "Parallel", "none waits for one that is not ready"),
    controller(
        "spec/persistentVolumeClaimRetentionPolicy",
        {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "the log outlives the StatefulSet",
    ),
    scheduler(f"{POD}/securityContext", {**NOBODY, "seccompProfile": RUNTIME_DEFAULT}, "as above"),
    scheduler(f"{CONTAINER}/securityContext", POWERLESS, "no capability at all"),
    scheduler(
        f"{CONTAINER}/resources", {"requests": {"cpu": "100m", "memory": "128Mi"}}, "has its share"
    ),
    scheduler(f"{POD}/priorityClassName", "system-cluster-critical", "evicted after workloads"),
    scheduler("spec/replicas", 2, "one may be away"),
    Setting(
        "PodDisruptionBudget",
        "gpuwarden-controller",
        "spec",
        {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": labels("controller")},
        },
        "a drain takes one replica at a time, and one that is not ready never holds it up",
    ),
    Setting(
        "Service",
        "gpuwarden-controller",
        "spec/publishNotReadyAddresses",
        wanted=True,
        why="a controller becomes ready by hearing from agents",
    ),
    Setting(
        "Service",
        "gpuwarden-controller",
        "spec/clusterIP",
        "None",
        "agents speak with every replica",
    ),
    Setting("NetworkPolicy", "gpuwarden-agent", "spec/policyTypes", ["Ingress"], "no egress rule"),
    Setting("NetworkPolicy", "gpuwarden-controller", "spec/policyTypes", ["Ingress"], "as above"),
    Setting(
        "Namespace",
        "gpuwarden-system",
        "metadata/labels",
        {
            "app.kubernetes.io/name": "gpuwarden",
            "pod-security.kubernetes.io/enforce": "privileged",
            "pod-security.kubernetes.io/warn": "privileged",
        },
        "without it Pod Security may refuse hostPID and hostPath",
    ),
)


def at(found: Object, path: str) -> Any:
    """The value there; None where there is none."""
    value: Any = found
    for step in path.split("/"):
        value = value[int(step)] if isinstance(value, list) else value.get(step)
        if value is None:
            return None
    return value


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda x: f"{x.name}/{x.path}")
def test_it_is_exactly_as_wanted(setting: Setting) -> None:
    found = at(one(FILES, setting.kind, setting.name), setting.path)
    assert found == setting.wanted, setting.why


ALWAYS = {"containers", "securityContext", "serviceAccountName", "priorityClassName", "volumes"}
PRODUCT = {*ALWAYS, "enableServiceLinks", "terminationGracePeriodSeconds"}


@pytest.mark.parametrize(
    ("kind", "name", "keys"),
    [
        (
            "DaemonSet",
            "gpuwarden-agent",
            {
                *PRODUCT,
                "affinity",
                "automountServiceAccountToken",
                "hostPID",
                "nodeSelector",
                "tolerations",
            },
        ),
        (
            "StatefulSet",
            "gpuwarden-controller",
            {*PRODUCT, "affinity", "tolerations", "topologySpreadConstraints"},
        ),
        ("Deployment", "gpuwarden-scheduler", {*ALWAYS, "affinity", "tolerations"}),
    ],
)
def test_a_pod_has_no_other_settings(kind: str, name: str, keys: set[str]) -> None:
    """No host's network, no host's IPC, no shared processes, no containers beside its own."""
    assert pod_of(one(FILES, kind, name)).keys() == keys


@pytest.mark.parametrize(
    ("kind", "name", "writable"),
    [
        ("DaemonSet", "gpuwarden-agent", {"/var/lib/gpuwarden"}),
        ("StatefulSet", "gpuwarden-controller", {"/run/gpuwarden", "/var/lib/gpuwarden"}),
        ("Deployment", "gpuwarden-scheduler", set()),
    ],
)
def test_what_can_be_written(kind: str, name: str, writable: set[str]) -> None:
    mounts = container_of(one(FILES, kind, name))["volumeMounts"]
    assert {x["mountPath"] for x in mounts if not x.get("readOnly")} == writable


def test_folders_in_memory_are_bounded_and_keys_are_not_for_everybody() -> None:
    volumes = {
        x["name"]: x for x in pod_of(one(FILES, "StatefulSet", "gpuwarden-controller"))["volumes"]
    }
    assert volumes["local"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Mi"}
    for found, kind, name in (
        (EXTENDER, "StatefulSet", "gpuwarden-controller"),
        (FILES, "Deployment", "gpuwarden-scheduler"),
    ):
        (secret,) = [
            x["secret"] for x in pod_of(one(found, kind, name))["volumes"] if "secret" in x
        ]
        assert secret["defaultMode"] == 0o440
