"""What the mutating webhook adds to pods: each with its namespace's standing and its patch."""

from typing import Any

from controller.admission.gpu_supply import ASSIGNED_PATH
from tests.builders.admitted_pods import (
    LEVEL,
    UUIDS,
    container,
    documents,
    mutate,
    new_pod,
    variable,
)
from tests.builders.pods import GPU_RESOURCE

_ALL = variable("NVIDIA_VISIBLE_DEVICES", "all")
_FIRST = variable("CUDA_VISIBLE_DEVICES", "0")
_OTHER = variable("MODE", "train")
_REFERENCE = {"fieldRef": {"apiVersion": "v1", "fieldPath": ASSIGNED_PATH}}
_OURS = [
    {"name": name, "valueFrom": _REFERENCE}
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
]
_TAINT = "gpuwarden.dev/managed"
_SECRET = {"name": "CUDA_VISIBLE_DEVICES", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


def admission_patches() -> list[dict[str, Any]]:
    """The vectors."""
    return [
        {
            "name": name,
            "enforced": enforced,
            "pod": pod,
            "patch": documents(mutate(pod, enforced=enforced).patch),
        }
        for name, enforced, pod in _cases()
    ]


def _cases() -> list[tuple[str, bool, dict[str, Any]]]:
    by_us = {"annotations": UUIDS}
    return [
        ("no GPU", True, new_pod()),
        ("no GPU, not enforced", False, new_pod()),
        ("GPU from kubelet", True, new_pod(container(gpus=1))),
        ("GPU from kubelet, not enforced", False, new_pod(container(gpus=1), annotations=LEVEL)),
        (
            "GPU from kubelet for one of two, not enforced",
            False,
            new_pod(
                container(gpus=1),
                container("log"),
                initContainers=[container("step")],
                annotations=LEVEL,
            ),
        ),
        ("GPU from kubelet for one of two", True, new_pod(container(gpus=1), container("log"))),
        ("GPU from us", True, new_pod(**by_us)),
        ("GPU from us, not enforced", False, new_pod(**by_us)),
        ("requirement about the node alone", True, new_pod(annotations=LEVEL)),
        ("requirement about the node alone, not enforced", False, new_pod(annotations=LEVEL)),
        (
            "every kind of container",
            True,
            new_pod(
                container(),
                container("second"),
                initContainers=[container("step"), container("sidecar", restartPolicy="Always")],
                **by_us,
            ),
        ),
        ("own variables kept", True, new_pod(container(env=[_OTHER]), **by_us)),
        ("null as the API writes it", True, new_pod(container(env=None), tolerations=None)),
        ("own value replaced whole", True, new_pod(container(env=[_FIRST, _OTHER, _ALL]), **by_us)),
        ("own valueFrom replaced whole", True, new_pod(container(env=[_OTHER, _SECRET]), **by_us)),
        (
            "duplicates collapsed",
            True,
            new_pod(container(env=[_ALL, _OTHER, _ALL, _FIRST, _SECRET]), **by_us),
        ),
        (
            "harmless value made void",
            True,
            new_pod(container(env=[variable("NVIDIA_VISIBLE_DEVICES", "none")])),
        ),
        ("a value that opens devices is left to the bypass", True, new_pod(container(env=[_ALL]))),
        ("all there already", True, _complete()),
        (
            "another toleration kept",
            True,
            new_pod(container(gpus=1), tolerations=[{"key": "a", "operator": "Exists"}]),
        ),
        (
            "every taint tolerated",
            True,
            new_pod(container(gpus=1), tolerations=[{"operator": "Exists"}]),
        ),
        (
            "tolerated for a while alone",
            True,
            new_pod(
                container(gpus=1),
                tolerations=[{"key": _TAINT, "operator": "Exists", "tolerationSeconds": 9}],
            ),
        ),
        ("a foreign scheduler is left to the bypass", True, _scheduled_by("volcano")),
        ("claims", True, _claiming()),
        ("a request of none", True, new_pod(container(gpus=0))),
        (
            "a map, the ordinal not from the name",
            True,
            new_pod(annotations={"gpu-scheduling-map": "0=node1:0", "gpuwarden.dev/ordinal": "0"}),
        ),
        ("seed: assign", False, new_pod(labels={"fudo.org/gpu.assign": "true"})),
    ]


def _scheduled_by(name: str) -> dict[str, Any]:
    pod = new_pod(container(gpus=1))
    pod["spec"]["schedulerName"] = name
    return pod


def _complete() -> dict[str, Any]:
    pod = new_pod(container(env=_OURS), annotations=UUIDS)
    toleration = {"key": _TAINT, "operator": "Exists", "effect": "NoExecute"}
    pod["spec"] |= {"schedulerName": "gpuwarden", "tolerations": [toleration]}
    return pod


def _claiming() -> dict[str, Any]:
    uses = container(resources={"claims": [{"name": "gpu"}]})
    made = new_pod(uses, container("side"), annotations=LEVEL)
    made["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    made["spec"]["containers"][1]["resources"] = {"limits": {GPU_RESOURCE: "0"}}
    return made
