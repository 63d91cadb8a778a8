"""Nodes that nobody runs: objects with capacity and a heartbeat, for the scheduler to choose from.

Pods bound to them stay pending there. A node whose heartbeat is stopped becomes unready as a
real one would, after the controller manager's grace period.
"""

import threading
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from http.client import HTTPException

from tests.e2e.lab.api import STRATEGIC, Api, ApiError, Document

KIND_LABEL = "lab.gpuwarden.dev/node"
"""`fake` or `real`."""
_HEARTBEAT_S = 10.0
_LEASE_S = 40
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_PROGRAM = "fake-nodes"


class FakeNodes:
    """The fake nodes of one lab; their leases are renewed until `stop`."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._names: list[str] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=_PROGRAM, daemon=True)

    def add(
        self, name: str, *, gpus: int = 8, pods: int = 110, labels: dict[str, str] | None = None
    ) -> Document:
        """Create a ready node; the object as the server has it."""
        self.add_all([name], gpus=gpus, pods=pods, labels=labels)
        return self._api.get(f"/api/v1/nodes/{name}")

    def add_all(
        self,
        names: Iterable[str],
        *,
        gpus: int = 8,
        pods: int = 110,
        labels: dict[str, str] | None = None,
    ) -> None:
        """Create many ready nodes that differ by their names."""
        if not self._thread.is_alive():
            self._thread.start()
        with self._api.kept_open() as api:
            for name in names:
                own = {KIND_LABEL: "fake", "kubernetes.io/hostname": name, **(labels or {})}
                api.post("/api/v1/nodes", node_object(name, own))
                api.post(_LEASES, lease_object(name, _now()))
                status = node_status(_now(), gpus=gpus, pods=pods)
                api.patch(f"/api/v1/nodes/{name}/status", status)
                # The node lifecycle controller would take the taint `not-ready` off, some time.
                api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
                self._names.append(name)

    @property
    def names(self) -> set[str]:
        """Those that are there and beat."""
        return set(self._names)

    def silence(self, name: str) -> None:
        """Renew this node's lease no longer."""
        self._names.remove(name)

    def delete(self, name: str) -> None:
        """Remove the node object; its lease goes with garbage collection."""
        self.silence(name)
        self._api.delete(f"/api/v1/nodes/{name}")
        self._api.delete(f"{_LEASES}/{name}")

    def stop(self) -> None:
        """No more heartbeats."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _renew(self) -> None:
        with self._api.kept_open() as api:
            while not self._stopped.wait(_HEARTBEAT_S):
                for name in tuple(self._names):
                    if self._stopped.is_set():
                        return
                    # Where the API server is down, tests do that; the next round comes.
                    with suppress(OSError, HTTPException, ApiError):
                        api.patch(f"{_LEASES}/{name}", {"spec": {"renewTime": _now()}})
                with suppress(OSError, HTTPException, ApiError):
                    self._return(api)

    def _return(self, api: Api) -> None:
        """Say of nodes that were given up that they are there, as a kubelet does that was slow."""
        for node in api.get(f"/api/v1/nodes?labelSelector={KIND_LABEL}%3Dfake")["items"]:
            name = node["metadata"]["name"]
            states = {x["type"]: x["status"] for x in node["status"].get("conditions", [])}
            if states.get("Ready") == "Unknown" and name in self._names:
                path = f"/api/v1/nodes/{name}/status"
                api.patch(path, {"status": {"conditions": [_ready(_now())]}}, STRATEGIC)


def node_object(name: str, labels: dict[str, str]) -> Document:
    """A Node as a kubelet would register it."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
    }


def node_status(now: str, *, gpus: int, pods: int) -> Document:
    """A patch of a node's status: capacity and the condition Ready."""
    capacity = {"cpu": "64", "memory": "512Gi", "pods": str(pods)}
    if gpus:
        capacity["nvidia.com/gpu"] = str(gpus)
    conditions = [_ready(now)]
    return {"status": {"capacity": capacity, "allocatable": capacity, "conditions": conditions}}


def _ready(now: str) -> Document:
    """The condition, as a kubelet writes it."""
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "fake",
        "lastHeartbeatTime": now[:19] + "Z",
        "lastTransitionTime": now[:19] + "Z",
    }


def lease_object(name: str, now: str) -> Document:
    """The heartbeat of a node."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": _LEASE_S,
            "renewTime": now,
        },
    }


def _now() -> str:
    """In the form of Kubernetes' MicroTime."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
