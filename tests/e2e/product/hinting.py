"""Hints on a lab: a namespace that opted in, GPU types to choose from, and what a scorer knows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from msgspec.structs import replace as changed

from controller.kube.nodes.nodes import ENFORCE_LABEL
from controller.placement.keys import MANAGED_TAINT
from sandbox.fleet.hardware import NodeHardware
from tests.e2e.lab.api import Document
from tests.e2e.lab.device_plugin import RESOURCE
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import PROBE, Namespace, pod
from tests.e2e.lab.waiting import until
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import Installation
from tests.e2e.product.namespaces import create_namespace, remove_namespace
from tests.e2e.product.scoring import ScoringService

HINTED: Final = "test-webhook"
JOB, JOB_TYPE = "test-mutation", "train-bert"
H100, H200 = "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200"
PRODUCT: Final = "nvidia.com/gpu.product"
BUCKETS: Final = {"gpu-ultra": 1000, "gpu-high": 750, "gpu-medium": 500, "gpu-default": 250}
"""Priorities by class, as docs/hints.md has them."""
SEED: Final = f"""\
apiVersion: batch/v1
kind: Job
metadata:
  name: {JOB}
  namespace: {HINTED}
  annotations:
    app.kubernetes.io/job-type: "{JOB_TYPE}"
    gpu.mem.gi: "40"
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: trainer
        image: {PROBE}
        command: ["/probe", "say", "trained"]
        resources:
          limits:
            nvidia.com/gpu: "1"
"""
"""The Job that radix's users apply to see a mutation, with an image of the lab.

Theirs has the GPU in `requests` alone, which the API server refuses.
"""
OTHER_NODE: Final = "hints-0"
_CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
_RADIX: Final = "scheduler.radix.ai/"
_KNOWN_S: Final = 90


@contextmanager
def opted_in(lab: Lab, gpuwarden: Installation, scorer: ScoringService) -> Iterator[Namespace]:
    """The real node has H100s, on which the job runs fast, and a smaller fake one has H200s.

    Nobody may have asked for hints before: what is there is looked at every few seconds only.
    """
    nodes, api = lab.fake_nodes, lab.api
    real, other = f"/api/v1/nodes/{lab.node.name}", f"/api/v1/nodes/{OTHER_NODE}"
    for name, value in BUCKETS.items():
        api.post(_CLASSES, {"metadata": {"name": name}, "value": value})
    create_namespace(lab, HINTED, {ENFORCE_LABEL: "true", f"{_RADIX}enabled": "true"})
    api.patch(real, {"metadata": {"labels": {PRODUCT: H100}}})
    nodes.add(OTHER_NODE, gpus=1, labels={PRODUCT: H200})
    taint = {"key": MANAGED_TAINT, "effect": "NoExecute"}
    api.patch(other, {"spec": {"taints": [taint]}})
    gpuwarden.agents.start(_with_h200())
    try:
        scorer.start()
        scorer.learn(JOB_TYPE, H100, *(590.0, 600.0, 610.0) * 4)
        scorer.learn(JOB_TYPE, H200, *(1790.0, 1800.0, 1810.0) * 4)
        until(
            "every controller knows both nodes",
            lambda: {x.nodes("eligible") for x in gpuwarden.controllers} == {2},
            timeout_s=_KNOWN_S,
        )
        yield Namespace(api, HINTED)
    finally:
        gpuwarden.agents.stop(OTHER_NODE)
        scorer.stop()
        remove_namespace(lab, HINTED)
        nodes.delete(OTHER_NODE)
        api.patch(real, {"metadata": {"labels": {PRODUCT: None}}})
        for name in BUCKETS:
            api.delete(f"{_CLASSES}/{name}")


def asking(name: str) -> Document:
    """A pod that asks for hints, and that no scheduler looks at."""
    document = pod(
        name,
        schedulingGates=[{"name": "test.gpuwarden.dev/never"}],
        automountServiceAccountToken=False,
    )
    document["metadata"]["annotations"] = {
        "app.kubernetes.io/job-type": JOB_TYPE,
        "gpu.mem.gi": "40",
    }
    document["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: "1"}}
    return document


def working(name: str, job_type: str, **spec: Any) -> Document:
    """A pod with a GPU and hints that works until it is deleted."""
    document = pod(name, "say", "here", automountServiceAccountToken=False, **spec)
    document["metadata"]["annotations"] = {"app.kubernetes.io/job-type": job_type}
    document["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: "1"}}
    return document


def decision(metadata: Document) -> dict[str, str]:
    """What the annotations say of it, by what follows their prefix; empty without hints."""
    found = metadata.get("annotations", {}).items()
    return {key.removeprefix(_RADIX): text for key, text in found if key.startswith(_RADIX)}


def preferred(spec: Document) -> dict[str, int]:
    """Weights of the GPU types to whose nodes it is led; KeyError where it is led by more."""
    affinity = dict(spec["affinity"])
    node = dict(affinity.pop("nodeAffinity"))
    terms = node.pop("preferredDuringSchedulingIgnoredDuringExecution")
    if affinity or node:
        raise KeyError(f"{spec['affinity']}: expected preferred node affinity alone")
    found = {}
    for term in terms:
        (rule,) = term["preference"]["matchExpressions"]
        (model,) = rule["values"]
        assert (rule["key"], rule["operator"]) == (PRODUCT, "In")
        found[model] = term["weight"]
    return found


def _with_h200() -> NodeHardware:
    hardware = h100_node(OTHER_NODE, 1)
    (card,) = hardware.scenario.gpus
    h200 = changed(card, name="NVIDIA H200", memory_bytes=141 << 30)
    return replace(hardware, scenario=changed(hardware.scenario, gpus=(h200,)))
