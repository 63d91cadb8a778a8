"""Reservation at a pod's creation, on a real API server with two replicas and a real scheduler."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest

from controller.kube.nodes.nodes import ENFORCE_LABEL
from tests.builders.examples import example
from tests.e2e.lab.api import ApiError, Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.lab.waiting import until
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import Installation
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission

NAMESPACE: Final = "early-team"
NODES: Final = ("early-0", "early-1")
"""Eight GPUs each."""
HERE: Final = {"early": "yes"}
NOWHERE: Final = {"early": "nowhere"}
EARLY: Final = {
    "gpuwarden.dev/reserve": "admission",
    "gpuwarden.dev/gpu-selector": "memory>=1Gi",
}
ASSIGNED, RESERVATION = "gpuwarden.dev/gpu-uuids-assigned", "gpuwarden.dev/reservation-id"
OBJECTS: Final = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
POLICY: Final = {"defaultMode": "env"}
DRY: Final = "?dryRun=All"
PATIENCE_S: Final = 60
NOT_YET: Final = ("RESERVATION_PENDING", "RESERVATION_CONFLICT")


def early(
    name: str, *, annotations: dict[str, str] | None = None, count: int = 1, **spec: Any
) -> Document:
    """A pod that asks for its GPUs at its creation."""
    document = pod(name, kind="fake", **spec)
    requirements = EARLY | {"gpuwarden.dev/gpu-count": str(count)}
    document["metadata"]["annotations"] = requirements if annotations is None else annotations
    document["spec"]["nodeSelector"] |= HERE
    return document


class World:
    """An enforced namespace behind the webhooks of two replicas."""

    def __init__(self, lab: Lab) -> None:
        self.api = lab.api
        served = admission(lab)
        served.id_keys = lab.folder / "early-id-keys"
        served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
        self.gpuwarden = Installation(lab, "early", replicas=2, admission=served, policy=POLICY)
        self.webhooks = Webhooks(lab, served, PODS, BINDINGS)
        self.pods = Namespace(lab.api, NAMESPACE)

    def create(self, document: Document, how: str = "") -> Document:
        """The pod as it is stored."""
        return self.api.post(f"{self.pods.path}/pods{how}", document)

    def refused(self, document: Document, how: str = "") -> ApiError:
        with pytest.raises(ApiError) as caught:
            self.create(document, how)
        return caught.value

    def remove(self, name: str) -> None:
        self.api.delete(f"{self.pods.path}/pods/{name}", grace_s=0)

    def gpus(self) -> dict[str, str]:
        """What each pod was told that it has."""
        found = self.api.get(f"{self.pods.path}/pods")["items"]
        return {
            x["metadata"]["name"]: x["metadata"].get("annotations", {}).get(ASSIGNED, "")
            for x in found
        }

    def records(self) -> dict[str, list[str]]:
        """States of the holders by GPU."""
        return {
            x["spec"]["gpu"]: [holder["state"] for holder in x["spec"]["holders"]]
            for x in self.api.get(OBJECTS)["items"]
        }

    def wait_states(self, *states: str, timeout_s: float = PATIENCE_S) -> None:
        until(
            f"the ledger holds {states}",
            lambda: sorted(x for y in self.records().values() for x in y) == sorted(states),
            timeout_s=timeout_s,
        )


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[World]:
    lab.fake_nodes.add_all(NODES, gpus=0, labels=HERE)
    made = World(lab)
    try:
        labels = {"metadata": {"name": NAMESPACE, "labels": {ENFORCE_LABEL: "true"}}}
        lab.api.post("/api/v1/namespaces", labels)
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        until("the namespace has its service account", lambda: lab.api.found(account))
        made.gpuwarden.start()
        for name in NODES:
            made.gpuwarden.agents.start(h100_node(name))
            made.gpuwarden.agents.hash_of(name)
        made.webhooks.register()
        until("pods are reserved for", lambda: _reserves(made), timeout_s=PATIENCE_S)
        yield made
    finally:
        made.webhooks.remove()
        _empty(made)
        lab.api.delete(f"/api/v1/namespaces/{NAMESPACE}")
        made.gpuwarden.close()
        for name in [x["metadata"]["name"] for x in made.api.get(OBJECTS)["items"]]:
            made.api.patch(f"{OBJECTS}/{name}", {"metadata": {"finalizers": None}})
            made.api.delete(f"{OBJECTS}/{name}")
        for name in NODES:
            lab.fake_nodes.delete(name)


@pytest.fixture(autouse=True)
def _clean(world: World) -> Iterator[None]:
    """Each test begins with free nodes."""
    yield
    _empty(world)
    world.wait_states(timeout_s=300)


def _reserves(world: World) -> bool:
    try:
        made = world.create(early("probe"), DRY)
    except ApiError:
        return False
    return ASSIGNED in made["metadata"]["annotations"]


def _empty(world: World) -> None:
    for kind in ("deployments", "replicasets"):
        world.api.delete(
            f"/apis/apps/v1/namespaces/{NAMESPACE}/{kind}?propagationPolicy=Background"
        )
    for name in world.gpus():
        world.remove(name)


def test_the_examples_pod_is_reserved_for_when_it_is_applied(world: World) -> None:
    document = example("reservation", NODES[0])
    made = world.create(document)
    annotations = made["metadata"]["annotations"]
    assert annotations[ASSIGNED].startswith("GPU-")
    assert annotations["gpuwarden.dev/node"] in NODES
    world.wait_states("Proposed")


def test_a_reserved_pod_is_bound_to_its_node_with_exactly_its_gpus(world: World) -> None:
    made = world.create(early("train-0", count=2))
    annotations = made["metadata"]["annotations"]
    node, gpus = annotations["gpuwarden.dev/node"], annotations[ASSIGNED].split(",")
    assert node in NODES
    assert "nodeName" not in made["spec"]
    assert sorted(world.records()) == sorted(gpus)
    assert world.pods.node_of("train-0", timeout_s=PATIENCE_S) == node
    world.wait_states("Confirmed", "Confirmed")
    bound = world.pods.get("train-0")["metadata"]["annotations"]
    assert bound | annotations == bound
    assert sorted(world.records()) == sorted(gpus)


def test_no_other_node_gets_it(world: World) -> None:
    made = world.create(early("train-0", schedulingGates=[{"name": "example.org/wait"}]))
    node = made["metadata"]["annotations"]["gpuwarden.dev/node"]
    (other,) = set(NODES) - {node}
    binding = {"metadata": {"name": "train-0"}, "target": {"kind": "Node", "name": other}}
    with pytest.raises(ApiError, match="RESERVATION_CONFLICT"):
        world.api.post(f"{world.pods.path}/pods/train-0/binding", binding)
    assert world.records() == {made["metadata"]["annotations"][ASSIGNED]: ["Proposed"]}


def test_the_seeds_marker_is_answered_in_kind(world: World) -> None:
    document = early("train-0", annotations={})
    document["metadata"]["labels"]["fudo.org/gpu.assign"] = "true"
    annotations = world.create(document)["metadata"]["annotations"]
    gpu = annotations["fudo.org/gpu.uuid"]
    assert annotations[ASSIGNED] == gpu
    assert annotations["cdi.k8s.io/gpu-assignment"] == f"nvidia.com/gpu={gpu}"
    assert annotations["fudo.org/gpu.node"] == world.pods.node_of("train-0", timeout_s=PATIENCE_S)
    assert annotations["fudo.org/gpu.reservation-id"].startswith("v1.k1.")
    world.wait_states("Confirmed")


def test_a_pod_that_names_its_node_is_admitted_with_gpus_there(world: World) -> None:
    requirement = {"gpuwarden.dev/gpu-selector": "memory>=1Gi"}
    made = world.create(early("placed", annotations=requirement, nodeName=NODES[1]))
    annotations = made["metadata"]["annotations"]
    assert annotations["gpuwarden.dev/node"] == made["spec"]["nodeName"] == NODES[1]
    world.wait_states("Confirmed")
    assert list(world.records()) == [annotations[ASSIGNED]]
    message = world.refused(early("misplaced", nodeName="nowhere")).message
    assert "gpuwarden: NODE_NO_EVIDENCE" in message
    about_the_node = early(
        "unserved", annotations={"gpuwarden.dev/min-level": "L0"}, nodeName=NODES[1]
    )
    assert "gpuwarden: BYPASS_NODE_NAME" in world.refused(about_the_node).message


def test_pods_created_at_the_same_moment_never_share(world: World) -> None:
    names = [f"many-{number}" for number in range(20)]

    def create(name: str) -> int:
        try:
            world.create(early(name, schedulingGates=[{"name": "example.org/wait"}]))
        except ApiError as error:
            return error.status
        return 0

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(create, names))
    assert answers == [0] * 20
    given = [x for x in world.gpus().values() if x]
    assert len(given) == len(set(given)) == 16
    assert set(given) == set(world.records())
    _waits_for_a_gpu_and_gets_it(world)


def _waits_for_a_gpu_and_gets_it(world: World) -> None:
    """All GPUs are reserved, for pods that the scheduler does not look at."""
    made = world.create(early("one-more"))
    assert ASSIGNED not in made["metadata"]["annotations"]
    until("it is told why", lambda: _told(world, "GPU_BUSY", "FailedScheduling"))
    holder = next(name for name, gpu in world.gpus().items() if gpu)
    freed = world.gpus()[holder]
    world.remove(holder)
    until("it has the GPU", lambda: world.gpus()["one-more"] == freed, timeout_s=120)


def test_a_dry_run_reserves_nothing(world: World) -> None:
    made = world.create(early("rehearsed"), DRY)
    annotations = made["metadata"]["annotations"]
    assert annotations[RESERVATION] == "dry-run"
    assert annotations[ASSIGNED].startswith("GPU-")
    assert world.records() == {}
    kept = early("rehearsed", annotations=annotations)
    assert "gpuwarden: BYPASS_ANNOTATION" in world.refused(kept).message


def test_keys_that_only_we_write_are_refused(world: World) -> None:
    made = world.create(early("train-0"))
    told = made["metadata"]["annotations"]
    copied = world.refused(early("train-1", annotations=told)).message
    assert "gpuwarden: RESERVATION_EXPIRED" in copied
    for forged in (
        told | {RESERVATION: "v1.k1." + "0" * 32 + "." + "0" * 64},
        told | {ASSIGNED: "GPU-another"},
        EARLY | {ASSIGNED: told[ASSIGNED]},
    ):
        message = world.refused(early("train-1", annotations=forged)).message
        assert "gpuwarden: BYPASS_ANNOTATION" in message
    cdi = EARLY | {"cdi.k8s.io/gpu-assignment": f"nvidia.com/gpu={told[ASSIGNED]}"}
    assert "gpuwarden: BYPASS_CDI" in world.refused(early("train-1", annotations=cdi)).message
    assert set(world.gpus()) == {"train-0"}


def _deployment(replicas: int) -> Document:
    labels = {"app": "over"}
    template = early("over", schedulingGates=[{"name": "example.org/wait"}])
    spec = template["spec"] | {"restartPolicy": "Always"}
    metadata = {"labels": labels, "annotations": template["metadata"]["annotations"]}
    return {
        "metadata": {"name": "over"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": metadata, "spec": spec},
        },
    }


def test_a_replica_set_over_its_quota_gets_no_second_gpu(world: World) -> None:
    quotas = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    world.api.post(quotas, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})
    try:
        until(
            "the quota is in force",
            lambda: world.api.get(f"{quotas}/few").get("status", {}).get("hard"),
        )
        world.api.post(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", _deployment(2))
        until("one pod is there", lambda: len(world.gpus()) == 1, timeout_s=PATIENCE_S)
        until("the other is refused by the quota", lambda: _told(world, "exceeded quota"))
        until(
            "again, and nothing more is reserved", lambda: _told(world, "exceeded quota", times=3)
        )
        assert len(world.records()) == 2
        assert len(world.gpus()) == 1
    finally:
        world.api.delete(f"{quotas}/few")
    until(
        "with room in the quota both are there",
        lambda: _both_are_there(world),
        timeout_s=400,
    )
    given = [x for x in world.gpus().values() if x]
    assert given
    assert len(set(given)) == len(given)
    assert set(given) <= set(world.records())


def _both_are_there(world: World) -> bool:
    """The ReplicaSet waits ever longer between its attempts; a change of it is an occasion."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets"
    for each in world.api.get(path)["items"]:
        now = {"metadata": {"annotations": {"example.org/occasion": os.urandom(4).hex()}}}
        world.api.patch(f"{path}/{each['metadata']['name']}", now)
    return len(world.gpus()) == 2


def _told(world: World, text: str, reason: str = "FailedCreate", *, times: int = 1) -> bool:
    path = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"
    found = world.api.get(f"{path}?fieldSelector=reason%3D{reason}")["items"]
    return sum(text in x["note"] for x in found) >= times
