"""Pods with a job type on a node, as the API server has them while they run and when they ended."""

import json
from collections.abc import Iterable
from typing import Any

from controller.kube.api.resources import Entry
from controller.kube.pods.pods import KnownPod, pod_kind
from controller.placement.keys import RequirementRules
from controller.runs.observation import EndedRun
from controller.runs.pod_run import PodRun, RunEnd, Unreported

DIGEST = "sha256:" + "ab" * 32
OTHER_DIGEST = "sha256:" + "cd" * 32
KIND = pod_kind(RequirementRules())

Document = dict[str, Any]


def at(second: int) -> str:
    return f"2026-05-01T10:{second // 60:02d}:{second % 60:02d}Z"


BEGIN_NS = 1_777_629_600 * 10**9
"""`at(0)`."""


def status_of(
    name: str = "main",
    *,
    began: int | None = 0,
    ended: int | None = None,
    image: str = f"docker.io/library/train@{DIGEST}",
    restarts: int = 0,
) -> Document:
    """A container's status: waiting, running, or terminated."""
    state: Document = {"waiting": {"reason": "ContainerCreating"}}
    if ended is not None:
        since = None if began is None else at(began)
        state = {"terminated": {"exitCode": 0, "startedAt": since, "finishedAt": at(ended)}}
    elif began is not None:
        state = {"running": {"startedAt": at(began)}}
    return {"name": name, "imageID": image, "restartCount": restarts, "state": state}


def pod_with_run(
    *statuses: Document,
    name: str = "train-0",
    job_type: str | None = "training",
    phase: str = "Running",
    node: str = "node-1",
    gpus: Iterable[str | None] = ("1",),
    namespace: str = "team-a",
    metadata: Document | None = None,
    conditions: Iterable[Document] = (),
) -> Document:
    """`gpus`: what each of its containers asks kubelet for; named main, second, third."""
    names = ("main", "second", "third")
    containers = [
        {"name": x, **({"resources": {"limits": {"nvidia.com/gpu": y}}} if y else {})}
        for x, y in zip(names, gpus, strict=False)
    ]
    labels = {} if job_type is None else {"app.kubernetes.io/job-type": job_type}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": labels,
            **(metadata or {}),
        },
        "spec": {"nodeName": node, "containers": containers},
        "status": {
            "phase": phase,
            "conditions": list(conditions),
            "containerStatuses": list(statuses),
        },
    }


def entry(document: Document) -> Entry[KnownPod]:
    return KIND.entry(json.dumps(document).encode())[1]


def read_run(document: Document) -> PodRun | None:
    return entry(document).value.run


def ended_run(
    end: RunEnd | Unreported | None = RunEnd.SUCCEEDED,
    *,
    uid: str = "u",
    seconds: int = 100,
    by_kubelet: bool = True,
    beside: tuple[str, ...] = (),
) -> EndedRun:
    run = PodRun("training", by_kubelet, BEGIN_NS, BEGIN_NS + seconds * 10**9, end, DIGEST)
    return EndedRun("team-a", f"pod-{uid}", uid, "node-1", run, beside)
