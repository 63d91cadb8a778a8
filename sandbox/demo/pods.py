"""The pods of a demo that stays up: made from `examples`, placed as a cluster places them.

Each is created through the webhooks, then kube-scheduler's part is played (`/filter`,
`/prioritize`, a Binding), then kubelet's (devices, processes, a status). What the controller makes
of it is its own.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from controller.kube.api.client import MERGE_PATCH
from controller.kube.api.resources import ApiError
from gpuwarden.strict_yaml import parse_plain
from sandbox import files
from sandbox.demo.checks import eligible
from sandbox.demo.stage import CheckFailedError, Stage
from sandbox.kube.cluster import InsecureCluster
from sandbox.kube.exchange import HttpExchange
from sandbox.kube.kubelet import Kubelet
from sandbox.kube.objects import wall_time
from sandbox.nodes import HOPPER, REAL
from sandbox.nvml.scenario import FakeGpu

ENFORCED: Final = {"gpuwarden.dev/enforce": "true"}
NAMESPACES: Final = ("default", "research")
EARLY: Final = "default/notebook"
WAITING: Final = "research/protein-0"
_ASSIGNED: Final = "gpuwarden.dev/gpu-uuids-assigned"
_SELECTOR: Final = "gpuwarden.dev/gpu-selector"
_HASH: Final = "gpuwarden.dev/required-hash"
_REQUEST: Final = "nvidia.com/gpu"
_MAX_YAML: Final = 1 << 20
_SEEN_S: Final = 20.0
_POLL_S: Final = 0.1

Pod = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Planned:
    """A pod, and what it is to show."""

    name: str
    example: str
    """Of the folder `examples`: a pod, or what has a template of one."""
    about: str
    namespace: str = NAMESPACES[0]
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    """The ReplicaSet that made it."""
    is_busy: bool = True
    """Whether its processes use the GPUs that it gets."""
    waits: bool = False
    """Whether no node is to take it."""

    @property
    def path(self) -> str:
        """Of all pods of its namespace."""
        return f"/api/v1/namespaces/{self.namespace}/pods"


def plan(hopper_class: str) -> tuple[Planned, ...]:
    """All pods in the order in which they are created."""
    served: Any = partial(
        Planned, example="deployment", annotations={_HASH: hopper_class}, owner="inference-6f9c"
    )
    return (
        Planned("train-0", "pod", "uses its GPU"),
        served("inference-6f9c-x2k4p", about="uses its GPU"),
        served("inference-6f9c-zt8mn", about="uses its GPU"),
        Planned("notebook", "reservation", "reserved at its creation, idle", is_busy=False),
        Planned(
            "protein-0",
            "pod",
            "waits: no GPU is that large",
            namespace=NAMESPACES[1],
            annotations={_SELECTOR: "memory>=140Gi"},
            waits=True,
        ),
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of a pod."""

    name: str
    node: str
    """Empty while it waits."""
    about: str


class DemoPods:
    """Creates and places them. Used from one event loop."""

    def __init__(self, stage: Stage, cluster: InsecureCluster) -> None:
        self._stage = stage
        self._cluster = cluster
        self._api = HttpExchange(cluster.kubeconfig)

    async def fill(self) -> Sequence[Seen]:
        """All pods, and what the nodes' evidence says of them; raises CheckFailedError."""
        try:
            return await self._filled()
        finally:
            await self._api.close()

    async def _filled(self) -> Sequence[Seen]:
        for name in NAMESPACES:
            metadata = {"name": name, "labels": ENFORCED}
            await self._api.call("POST", "/api/v1/namespaces", {"metadata": metadata})
        self._run(HOPPER, self._gpus(HOPPER)[-1].uuid, None)
        hopper_class = (await self._stage.node(HOPPER)).attestation_hash
        seen = [await self._created(one) for one in plan(hopper_class)]
        await self._until_reserved(sum(bool(x.node) for x in seen))
        await asyncio.gather(*(self._shown_again(name) for name in self._stage.nodes))
        return seen

    async def _created(self, planned: Planned) -> Seen:
        await asyncio.gather(*(self._stage.until(x, eligible) for x in self._stage.nodes))
        pod = await self._api.call("POST", planned.path, _pod(planned))
        at = f"{planned.path}/{planned.name}"
        if planned.waits:
            _, why = await self._chosen(pod)
            await self._status(at, {"conditions": [_unschedulable(why)]})
            return Seen(f"{planned.namespace}/{planned.name}", "", planned.about)
        node = await self._bound(pod, at)
        bound = await self._api.call("GET", at)
        for gpu in self._given(bound, node):
            if planned.is_busy:
                self._run(node, gpu, bound["metadata"]["uid"])
        await self._status(at, _running(bound))
        return Seen(f"{planned.namespace}/{planned.name}", node, planned.about)

    async def _bound(self, pod: Pod, at: str) -> str:
        """The node that it is bound to; kube-scheduler tries again for a while, too."""
        why = ""
        try:
            async with asyncio.timeout(_SEEN_S):
                while True:
                    node, why = await self._chosen(pod)
                    try:
                        if node:
                            await self._api.call("POST", f"{at}/binding", _binding(pod, node))
                            return node
                    except ApiError as error:
                        why = str(error)
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise CheckFailedError(f"{pod['metadata']['name']} is not bound: {why}") from None

    async def _chosen(self, pod: Pod) -> tuple[str, str]:
        """The node that kube-scheduler takes, or none and why; real GPUs are given to nobody."""
        names = sorted(x for x in self._cluster.kubelets if x != REAL)
        asked: dict[str, Any] = {"Pod": pod, "Nodes": None, "NodeNames": names}
        answer = await self._stage.post("filter", asked)
        passing = answer["NodeNames"]
        if not passing:
            reasons = answer["FailedAndUnresolvableNodes"]
            return "", "; ".join(f"{node}: {reasons[node]}" for node in names)
        scores = await self._stage.post("prioritize", asked | {"NodeNames": passing})
        return max(scores, key=lambda x: (x["Score"], x["Host"]))["Host"], ""

    def _given(self, pod: Pod, node: str) -> Sequence[str]:
        """GPUs that the pod gets: those that gpuwarden chose, or the first free ones by kubelet."""
        metadata, kubelet = pod["metadata"], self._kubelet(node)
        assigned = metadata.get("annotations", {}).get(_ASSIGNED, "")
        if assigned:
            return [self._card(node, uuid) for uuid in assigned.split(",")]
        container = pod["spec"]["containers"][0]
        count = int(container["resources"]["limits"][_REQUEST])
        taken = kubelet.given() | set(kubelet.pids)
        given = [x.uuid for x in self._gpus(node) if x.uuid not in taken][:count]
        kubelet.give(metadata["namespace"], metadata["name"], container["name"], given)
        return given

    def _run(self, node: str, gpu: str, pod_uid: str | None) -> None:
        self._kubelet(node).run_on(gpu, pod_uid)
        self._stage.laptop.show_processes(node)

    def _kubelet(self, node: str) -> Kubelet:
        return self._cluster.kubelets[node]

    def _gpus(self, node: str) -> Sequence[FakeGpu]:
        return self._stage.nodes[node].scenario.gpus

    def _card(self, node: str, uuid: str) -> str:
        """The GPU that has this UUID, or a MIG device of it."""
        return next(
            x.uuid for x in self._gpus(node) if uuid in {x.uuid, *(mig.uuid for mig in x.mig)}
        )

    async def _status(self, path: str, status: dict[str, Any]) -> None:
        await self._api.call(
            "PATCH", f"{path}/status", {"status": status}, content_type=MERGE_PATCH
        )

    async def _until_reserved(self, pods: int) -> None:
        """Until the ledger holds a GPU for each of so many pods, for good."""
        try:
            async with asyncio.timeout(_SEEN_S):
                while len(self._confirmed()) < pods:  # noqa: ASYNC110 - polls another process
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            text = f"{len(self._confirmed())} of {pods} pods have a reservation"
            raise CheckFailedError(text) from None

    async def _shown_again(self, node: str) -> None:
        """Until there is evidence that was read after all this."""
        last = (await self._stage.node(node)).evidence_digest
        await self._stage.until(node, lambda x: x.evidence_digest != last)

    def _confirmed(self) -> set[str]:
        records = self._cluster.api.objects.all("gpureservations").values()
        holders = (x for record in records for x in record["spec"]["holders"])
        return {x["pod"]["uid"] for x in holders if x["state"] == "Confirmed"}


def _pod(planned: Planned) -> Pod:
    document: Any = parse_plain(
        files.data(f"examples/{planned.example}.yaml").read_bytes(), max_bytes=_MAX_YAML
    )
    template = document["spec"].get("template", document)
    metadata = template["metadata"]
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": planned.owner,
        "uid": f"uid-{planned.owner}",
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": planned.name,
            "labels": metadata.get("labels", {}),
            "annotations": metadata["annotations"] | planned.annotations,
            **({"ownerReferences": [owner]} if planned.owner else {}),
        },
        "spec": template["spec"],
        "status": {"phase": "Pending"},
    }


def _binding(pod: Pod, node: str) -> dict[str, Any]:
    """As kube-scheduler writes it."""
    metadata = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
    target = {"kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


def _unschedulable(why: str) -> dict[str, Any]:
    """As kube-scheduler writes it."""
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": f"no node is available: {why}",
        "lastTransitionTime": wall_time(),
    }


def _running(pod: Pod) -> dict[str, Any]:
    """As kubelet writes it."""
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": wall_time()}
    return {
        "phase": "Running",
        "startTime": wall_time(),
        "conditions": [*pod["status"]["conditions"], ready],
        "containerStatuses": [
            {
                "name": container["name"],
                "ready": True,
                "state": {"running": {"startedAt": wall_time()}},
            }
            for container in pod["spec"]["containers"]
        ],
    }
