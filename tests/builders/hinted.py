"""Pods and Jobs that ask for hints, a fleet to choose in, and answers of a scorer."""

from dataclasses import replace
from typing import Any

import msgspec

from controller.admission.hints.request import Workload, decode_workload
from controller.fleet.directory import DirectorySnapshot, KnownNode, Taint
from controller.fleet.view import NodeView
from controller.placement.snapshot import Scene
from controller.policy import NodeMode
from tests.builders.admitted_pods import container, new_pod
from tests.builders.fleet_views import acceptance, gpu, node
from tests.builders.scenes import scene

Document = dict[str, Any]

A100, H100, L4 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA L4"
A100_TYPE, H100_TYPE, L4_TYPE = "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "NVIDIA-L4"
PRODUCT = "nvidia.com/gpu.product"
CLASS = "gpu.nvidia.com/class"
GPU_TAINT = Taint("nvidia.com/gpu", "present", "NoSchedule")


def hinted_pod(
    job_type: str | None = "training", *, gpus: int | None = 1, **parts: Any
) -> Document:
    """A pod at its creation; `annotations` and `labels` beside the job type, else its spec."""
    own = {} if job_type is None else {"app.kubernetes.io/job-type": job_type}
    annotations = own | parts.pop("annotations", {})
    return new_pod(container(gpus=gpus), annotations=annotations or None, **parts)


def job_of(pod: Document, **metadata: Any) -> Document:
    """A Job that makes such pods."""
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "team-a", **metadata},
        "spec": {"template": template},
    }


def workload(document: Document) -> Workload:
    resource = "jobs" if document["kind"] == "Job" else "pods"
    return decode_workload(msgspec.Raw(msgspec.json.encode(document)), resource)


def machine(
    name: str,
    product: str | None,
    *,
    memory_mib: int | None = 81559,
    mode: NodeMode = NodeMode.PLUGIN,
) -> NodeView:
    """A fresh node with two GPUs of the product."""
    gpus = [gpu(i, f"GPU-{name}-{i}", product=product, memory_mib=memory_mib) for i in range(2)]
    return node(name, acceptance(gpus=gpus), mode=mode)


def room(*nodes: NodeView, labels: dict[str, dict[str, str]] | None = None, **parts: Any) -> Scene:
    """A scene in which the cluster has the nodes; `labels` by their names."""
    given = labels or {}
    directory = {x.name: KnownNode("uid", labels=given.get(x.name, {})) for x in nodes}
    extra = {name: KnownNode("uid", labels=x) for name, x in given.items() if name not in directory}
    return replace(scene(*nodes, **parts), nodes=DirectorySnapshot({**directory, **extra}))


def answer(
    gpu_type: str = A100_TYPE, score: object = 85, avoid: object = (), **more: object
) -> bytes:
    """As radix's agent answers, with the type that its mock also has in the terms."""
    return msgspec.json.encode(
        {
            "priority_score": score,
            "gpu_selector": {
                "nodeSelector": {CLASS: gpu_type},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            },
            "avoid_co_locate_with": avoid,
            "terms": {"mu": 10.0, "sigma": 5.0, "ig": 2.56, "penalty": 0.0, "cost": 9.7},
            **more,
        }
    )
