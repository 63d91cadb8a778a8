"""Managed pods for fake nodes, and what the scheduler says about them."""

from typing import Any

from tests.e2e.lab.api import Document
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.lab.waiting import PATIENCE_S, until

GPU = "nvidia.com/gpu"


def managed(
    name: str,
    requirements: dict[str, str],
    *,
    gpus: int = 1,
    scheduler: str = "gpuwarden",
    where: dict[str, str] | None = None,
    **spec: Any,
) -> Document:
    """A pod with annotations `gpuwarden.dev/…`, on nodes that have the labels `where`."""
    document = pod(name, kind="fake", schedulerName=scheduler, **spec)
    document["metadata"]["annotations"] = {
        f"gpuwarden.dev/{key}": value for key, value in requirements.items()
    }
    if gpus:
        container = document["spec"]["containers"][0]
        container["resources"] = {"limits": {GPU: str(gpus)}}
    document["spec"]["nodeSelector"] |= where or {}
    return document


def refusals(pods: Namespace, name: str) -> list[str]:
    """The notes of the scheduler's FailedScheduling events about the pod."""
    path = f"/apis/events.k8s.io/v1/namespaces/{pods.name}/events"
    found = pods.api.get(f"{path}?fieldSelector=reason=FailedScheduling")["items"]
    return [x["note"] for x in found if x["regarding"]["name"] == name]


def explained(pods: Namespace, name: str, text: str, *, timeout_s: float = PATIENCE_S) -> str:
    """The first note of gpuwarden's own about the waiting pod that holds the text."""
    path = f"/apis/events.k8s.io/v1/namespaces/{pods.name}/events"

    def found() -> str:
        events = pods.api.get(f"{path}?fieldSelector=reason=PodNotPlaced")["items"]
        notes = (x["note"] for x in events if x["regarding"]["name"] == name)
        return next((note for note in notes if text in note), "")

    return until(f"pod {name} is told {text}", found, timeout_s=timeout_s)


def told(pods: Namespace, name: str, *texts: str, timeout_s: float = PATIENCE_S) -> str:
    """The first note about the pod that holds all the texts."""
    return until(
        f"pod {name} is told {' and '.join(texts)}",
        lambda: next(
            (note for note in refusals(pods, name) if all(text in note for text in texts)), ""
        ),
        timeout_s=timeout_s,
    )
