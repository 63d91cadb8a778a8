"""Pods of our one tiny image, and what became of them."""

from pathlib import Path
from typing import Any

from tests.e2e.lab.api import Api, ApiError, Document
from tests.e2e.lab.fake_nodes import KIND_LABEL
from tests.e2e.lab.images import Image
from tests.e2e.lab.waiting import PATIENCE_S, until

PROBE = "lab.gpuwarden.dev/probe:1"


def probe_image(program: Path) -> Image:
    """Also the sandbox image of every pod."""
    return Image(PROBE, {"/probe": program}, ["/probe"])


def pod(name: str, *arguments: str, kind: str = "real", **spec: Any) -> Document:
    """A pod that runs `/probe ARGUMENTS` on a node of that kind; `spec` wins."""
    container: dict[str, Any] = {"name": "main", "image": PROBE, "imagePullPolicy": "Never"}
    if arguments:
        container["args"] = list(arguments)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "containers": [container],
            "nodeSelector": {KIND_LABEL: kind},
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            **spec,
        },
    }


class Namespace:
    """The pods of one namespace."""

    def __init__(self, api: Api, name: str = "default") -> None:
        self.api = api
        self.name = name
        self.path = f"/api/v1/namespaces/{name}"

    def create(self, document: Document) -> str:
        """Create a pod; its name."""
        name: str = self.api.post(f"{self.path}/pods", document)["metadata"]["name"]
        return name

    def get(self, name: str) -> Document:
        return self.api.get(f"{self.path}/pods/{name}")

    def node_of(self, name: str, timeout_s: float = PATIENCE_S) -> str:
        """Where the pod was bound."""
        return until(
            f"pod {name} is bound",
            lambda: str(self.get(name)["spec"].get("nodeName", "")),
            timeout_s=timeout_s,
        )

    def phase(self, name: str, *wanted: str, timeout_s: float = PATIENCE_S) -> str:
        """The first of the wanted phases that the pod is in."""
        return until(
            f"pod {name} is {' or '.join(wanted)}",
            lambda: next((w for w in wanted if self.get(name)["status"].get("phase") == w), ""),
            timeout_s=timeout_s,
        )

    def log(self, name: str) -> str:
        """What the pod's only container has written."""
        return self.api.text(f"{self.path}/pods/{name}/log")

    def says(self, name: str, text: str, timeout_s: float = PATIENCE_S) -> str:
        """The pod's log as soon as it holds `text`."""
        return until(
            f"pod {name} says {text!r}", lambda: self._log_with(name, text), timeout_s=timeout_s
        )

    def delete(self, name: str) -> None:
        """Delete a pod and wait until it is gone."""
        self.api.delete(f"{self.path}/pods/{name}")
        until(f"pod {name} is gone", lambda: self.api.found(f"{self.path}/pods/{name}") is None)

    def _log_with(self, name: str, text: str) -> str:
        try:
            log = self.log(name)
        except ApiError:  # no container yet
            return ""
        return log if text in log else ""
