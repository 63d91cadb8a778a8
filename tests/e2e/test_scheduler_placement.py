"""Managed pods on a real scheduler, with a real controller and many agents. Needs no root."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from sandbox.fleet.hardware import NEXT_DRIVER
from tests.e2e.lab.api import Document
from tests.e2e.lab.fake_kubelet import FakeKubelet
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import pod
from tests.e2e.lab.waiting import until
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import (
    CLUSTERS_OWN,
    DEDICATED,
    NO_PREEMPTION,
    Installation,
)
from tests.e2e.product.pods import GPU, managed, told
from tests.e2e.product.stage import Stage

GOOD = ("good-0", "good-1")
BAD = ("stale-0", "other-0", "unknown-0", "refused-0")
SET = "test.gpuwarden.dev/set"
WAKES_S = 20.0
"""Back-off of a pod included; kube-scheduler's own flush comes after 300 s."""


def verified(stage: Stage) -> str:
    """The class hash of the good nodes."""
    return stage.gpuwarden.agents.hash_of("good-0")


def end(stage: Stage, node: str) -> None:
    """End the agent of a node, and wait until nothing counts that it showed."""
    stage.gpuwarden.agents.stop(node)
    (controller,) = stage.gpuwarden.controllers
    until(f"{node} is stale", lambda: controller.nodes("stale") == 1)


@pytest.fixture(scope="module")
def stage(lab: Lab) -> Iterator[Stage]:
    nodes = lab.fake_nodes
    nodes.add_all(GOOD, labels={SET: "good"})
    nodes.add_all(BAD, labels={SET: "bad"})
    pools = [{"pattern": "full-env-*", "mode": "env"}]
    installation = Installation(lab, "placement", policy={"pools": pools})
    try:
        installation.start()
        agents = installation.agents
        for name in (*GOOD, "stale-0"):
            agents.start(h100_node(name))
            agents.hash_of(name)
        agents.start(h100_node("other-0", driver=NEXT_DRIVER))
        agents.start(h100_node("refused-0", shown="good-0"))
        assert agents.hash_of("other-0") != agents.hash_of("good-0")
        made = Stage(lab, installation)
        end(made, "stale-0")
        yield made
    finally:
        installation.close()
        for name in (*GOOD, *BAD):
            nodes.delete(name)


def test_only_verified_nodes_are_chosen(stage: Stage) -> None:
    requirement = {"required-hash": verified(stage)}
    documents = [managed(f"verified-{number}", requirement, gpus=4) for number in range(5)]
    with stage.created(*documents) as names:
        until(
            "four of five are bound",
            lambda: sum(stage.is_bound(name) for name in names) == 4,
        )
        (left,) = (name for name in names if not stage.is_bound(name))
        told(stage.pods, left, "2 Insufficient nvidia.com/gpu", "1 gpuwarden: HASH_MISMATCH")
        assert {stage.pods.node_of(name) for name in names if name != left} == set(GOOD)


def test_every_reason_stands_in_the_events_of_the_pod(stage: Stage) -> None:
    with stage.created(managed("why", {"required-hash": verified(stage)}, where={SET: "bad"})):
        told(
            stage.pods,
            "why",
            "1 gpuwarden: HASH_MISMATCH attestation mismatch",
            "1 gpuwarden: NODE_STALE attestation is stale",
            "1 gpuwarden: NODE_NO_EVIDENCE no attestation hash",
            "1 gpuwarden: NODE_REFUSED evidence refused (GPU_CLAIMED_TWICE)",
        )


def test_a_pod_is_tried_again_when_its_node_is_good_again(stage: Stage) -> None:
    here = {"kubernetes.io/hostname": "stale-0"}
    requirement = {"required-hash": verified(stage)}
    with stage.created(managed("patient", requirement, where=here)):
        told(stage.pods, "patient", "NODE_STALE")
        stage.gpuwarden.agents.start(h100_node("stale-0"))
        try:
            assert stage.pods.node_of("patient", WAKES_S) == "stale-0"
        finally:
            end(stage, "stale-0")


def test_without_a_controller_managed_pods_wait_and_others_do_not(stage: Stage) -> None:
    ordinary = pod("ordinary", kind="fake")
    ordinary["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    requirement = {"required-hash": verified(stage)}
    try:
        with stage.without_controllers():
            stage.pods.create(managed("waiting", requirement))
            stage.pods.create(ordinary)
            assert stage.pods.node_of("ordinary") in (*GOOD, *BAD)
            told(stage.pods, "waiting", f"127.0.0.1:{stage.gpuwarden.service.port}/filter")
            assert not stage.is_bound("waiting")
        assert stage.pods.node_of("waiting") in GOOD
    finally:
        for name in ("waiting", "ordinary"):
            stage.remove(name)


def test_a_cluster_scheduler_asks_for_gpu_pods_alone(stage: Stage) -> None:
    scheduler = stage.gpuwarden.add_scheduler("clusters-own", CLUSTERS_OWN, profile="cluster")
    scheduler.start()
    requirement = {"required-hash": verified(stage)}
    plain = managed("no-gpu", {}, gpus=0, scheduler="cluster")
    with_gpu = managed("no-requirement", {}, scheduler="cluster")
    asking = managed("asking", requirement, scheduler="cluster", where={SET: "bad"})
    try:
        with stage.created(asking):
            told(stage.pods, "asking", "HASH_MISMATCH", "NODE_NO_EVIDENCE")
        with stage.without_controllers():
            stage.pods.create(plain)
            stage.pods.create(with_gpu)
            assert stage.pods.node_of("no-gpu")
            told(stage.pods, "no-requirement", "/filter")
        assert stage.pods.node_of("no-requirement")
    finally:
        for name in ("no-gpu", "no-requirement"):
            stage.remove(name)
        scheduler.stop()


def test_whole_node_objects_are_answered_alike(stage: Stage) -> None:
    scheduler = stage.gpuwarden.add_scheduler(
        "whole-nodes", DEDICATED, profile="whole", extender={"nodeCacheCapable": False}
    )
    scheduler.start()
    requirement = {"required-hash": verified(stage)}
    try:
        with stage.created(
            managed("whole", requirement, scheduler="whole"),
            managed("whole-not", requirement, scheduler="whole", where={SET: "bad"}),
        ):
            assert stage.pods.node_of("whole") in GOOD
            told(stage.pods, "whole-not", "HASH_MISMATCH", "NODE_REFUSED", "NODE_NO_EVIDENCE")
    finally:
        scheduler.stop()


def test_nobody_is_preempted_for_a_pod_that_attestation_refuses(stage: Stage) -> None:
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    urgent = {"metadata": {"name": "urgent"}, "value": 1000}
    stage.lab.api.post(classes, urgent)
    here = {"kubernetes.io/hostname": "other-0"}
    victim = pod("victim", kind="fake")
    victim["spec"]["nodeSelector"] |= here
    requirement = {"required-hash": verified(stage)}
    try:
        with stage.created(
            victim, managed("urgent", requirement, where=here, priorityClassName="urgent")
        ):
            assert stage.pods.node_of("victim") == "other-0"
            note = told(stage.pods, "urgent", "HASH_MISMATCH", "preemption:")
            assert "Preemption is not helpful for scheduling" in note
            assert "nominatedNodeName" not in stage.pods.get("urgent")["status"]
            assert "deletionTimestamp" not in stage.pods.get("victim")["metadata"]
    finally:
        stage.lab.api.delete(f"{classes}/urgent")


def test_a_restarted_scheduler_goes_on(stage: Stage) -> None:
    scheduler = stage.gpuwarden.scheduler
    requirement = {"required-hash": verified(stage)}
    with stage.created(managed("before", requirement, where={SET: "bad"})):
        told(stage.pods, "before", "HASH_MISMATCH")
        scheduler.stop()
        with stage.created(managed("meanwhile", requirement)):
            scheduler.resume_service()
            assert stage.pods.node_of("meanwhile") in GOOD
            assert not stage.is_bound("before")


def test_the_tighter_node_is_chosen_against_the_usual_spreading(stage: Stage) -> None:
    """The fuller node is the worse one for the scheduler itself."""
    nodes, agents = stage.lab.fake_nodes, stage.gpuwarden.agents
    labels = {SET: "scored"}
    nodes.add("tight-0", gpus=2, labels=labels)
    nodes.add("loose-0", gpus=8, labels=labels)
    load = pod("load", kind="fake", nodeName="tight-0")
    load["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "40", "memory": "300Gi"}}
    try:
        agents.start(h100_node("tight-0", gpus=2))
        agents.start(h100_node("loose-0"))
        for name in ("tight-0", "loose-0"):
            agents.hash_of(name)
        with stage.created(load, managed("choosy", {"min-level": "L0"}, gpus=2, where=labels)):
            assert stage.pods.node_of("choosy") == "tight-0"
    finally:
        for name in ("tight-0", "loose-0"):
            agents.stop(name)
            nodes.delete(name)


# --- preemption on full nodes

CROWD: Final = "test.gpuwarden.dev/crowd"
URGENT: Final = "placement-urgent"
CLASSES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
NOBODYS: Final = f"v1:sha256:{'c' * 64}"
"""No node has this hash."""
PATIENCE_S: Final = 60.0


@dataclass(frozen=True)
class Full:
    """Two nodes of one mode, each with room for two pods."""

    mode: str
    gpus: int
    """That kubelet gives."""
    requirement: dict[str, str]
    cpu: str = "100m"

    @property
    def nodes(self) -> tuple[str, str]:
        """The second one has another hash."""
        return f"full-{self.mode}-0", f"full-{self.mode}-1"

    def pod(self, name: str, scheduler: str, **requirement: str) -> Document:
        made = managed(
            name,
            {"min-level": "L0", **self.requirement, **requirement},
            gpus=min(self.gpus, 1),
            scheduler=scheduler,
            where={SET: f"full-{self.mode}"},
        )
        made["spec"]["containers"][0].setdefault("resources", {})["requests"] = {"cpu": self.cpu}
        return made


PLUGIN: Final = Full("plugin", 2, {})
ENV: Final = Full("env", 0, {"gpu-count": "1"}, cpu="30")
"""The scheduler counts no GPUs there; it is the processors that are short."""


class Crowd:
    """A ReplicaSet whose pods fill two nodes."""

    def __init__(self, stage: Stage, full: Full, scheduler: str) -> None:
        self._pods = stage.pods
        self._api = stage.lab.api
        self._path = "/apis/apps/v1/namespaces/default/replicasets"
        template = full.pod("crowd", scheduler)
        template["spec"] |= {"restartPolicy": "Always"}
        labels = {CROWD: full.mode}
        template["metadata"] = {**template["metadata"], "labels": labels, "name": None}
        spec = {"replicas": 4, "selector": {"matchLabels": labels}, "template": template}
        metadata = {"name": f"crowd-{full.mode}"}
        self._name = metadata["name"]
        self._query = f"labelSelector={CROWD}={full.mode}"
        self._api.post(self._path, {"metadata": metadata, "spec": spec})

    def running(self) -> dict[str, str]:
        """Nodes by the UIDs of the pods that have one and may keep it."""
        return {
            x["metadata"]["uid"]: x["spec"]["nodeName"]
            for x in self._found()
            if x["spec"].get("nodeName") and "deletionTimestamp" not in x["metadata"]
        }

    def remove(self) -> None:
        self._api.delete(f"{self._path}/{self._name}")
        until("the crowd is gone", lambda: not self._found(), timeout_s=PATIENCE_S)

    def _found(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._api.get(f"{self._pods.path}/pods?{self._query}")[
            "items"
        ]
        return found


@contextmanager
def crowded(stage: Stage, full: Full, scheduler: str) -> Iterator[Crowd]:
    """Two full nodes, and somebody who ends what is deleted there."""
    kubelet = FakeKubelet(stage.lab.api, full.nodes)
    crowd = Crowd(stage, full, scheduler)
    try:
        until("both nodes are full", lambda: len(crowd.running()) == 4, timeout_s=PATIENCE_S)
        yield crowd
    finally:
        crowd.remove()
        kubelet.stop()


@pytest.fixture(scope="module")
def full_nodes(stage: Stage) -> Iterator[None]:
    """Of both modes, empty."""
    nodes, agents = stage.lab.fake_nodes, stage.gpuwarden.agents
    names = (*PLUGIN.nodes, *ENV.nodes)
    for full in (PLUGIN, ENV):
        nodes.add_all(full.nodes, gpus=full.gpus, labels={SET: f"full-{full.mode}"})
        first, second = full.nodes
        agents.start(h100_node(first, gpus=2))
        agents.start(h100_node(second, gpus=2, driver=NEXT_DRIVER))
    for name in names:
        agents.hash_of(name)
    stage.lab.api.post(CLASSES, {"metadata": {"name": URGENT}, "value": 1000})
    try:
        yield
    finally:
        stage.lab.api.delete(f"{CLASSES}/{URGENT}")
        for name in names:
            agents.stop(name)
            nodes.delete(name)


def urgent(full: Full, name: str, scheduler: str, wanted: str) -> Document:
    """A pod that may push out others, for the nodes with this hash."""
    document = full.pod(name, scheduler, **{"required-hash": wanted})
    document["spec"]["priorityClassName"] = URGENT
    return document


@pytest.mark.parametrize(
    ("full", "file", "extender"),
    [
        pytest.param(PLUGIN, DEDICATED, {}, id="plugin"),
        pytest.param(PLUGIN, CLUSTERS_OWN, {}, id="plugin-clusters-own"),
        pytest.param(PLUGIN, DEDICATED, {"nodeCacheCapable": False}, id="plugin-whole-pods"),
        pytest.param(ENV, DEDICATED, {}, id="env"),
    ],
)
@pytest.mark.usefixtures("full_nodes")
def test_pods_are_evicted_only_where_the_urgent_pod_may_run(
    stage: Stage, full: Full, file: Path, extender: Document, request: pytest.FixtureRequest
) -> None:
    scheduler = stage.gpuwarden.add_scheduler(
        request.node.callspec.id, file, profile="evicts", extender=extender
    )
    scheduler.start()
    right = full.nodes[1]
    wanted = stage.gpuwarden.agents.hash_of(right)
    try:
        with crowded(stage, full, "evicts") as crowd:
            before = crowd.running()
            with stage.created(urgent(full, "urgent-nowhere", "evicts", NOBODYS)):
                told(stage.pods, "urgent-nowhere", "no candidate node for preemption")
                assert "nominatedNodeName" not in stage.pods.get("urgent-nowhere")["status"]
                assert crowd.running() == before
                with stage.created(urgent(full, "urgent-there", "evicts", wanted)):
                    assert stage.pods.node_of("urgent-there", PATIENCE_S) == right
                    left = crowd.running()
                    assert [before[uid] for uid in before.keys() - left.keys()] == [right]
                    assert left.items() <= before.items()
                assert not stage.is_bound("urgent-nowhere")
    finally:
        scheduler.stop()


@pytest.mark.usefixtures("full_nodes")
def test_a_scheduler_without_preemption_evicts_nobody(stage: Stage) -> None:
    scheduler = stage.gpuwarden.add_scheduler("evicts-nobody", NO_PREEMPTION, profile="nobody")
    scheduler.start()
    right = PLUGIN.nodes[1]
    hashes = {"urgent-none": NOBODYS, "urgent-one": stage.gpuwarden.agents.hash_of(right)}
    try:
        with crowded(stage, PLUGIN, "nobody") as crowd:
            before = crowd.running()
            documents = [urgent(PLUGIN, *x) for x in ((n, "nobody", h) for n, h in hashes.items())]
            with stage.created(*documents) as names:
                for name in names:
                    note = told(stage.pods, name, "Insufficient nvidia.com/gpu")
                    assert "preemption" not in note
                    assert "nominatedNodeName" not in stage.pods.get(name)["status"]
                assert crowd.running() == before
    finally:
        scheduler.stop()
