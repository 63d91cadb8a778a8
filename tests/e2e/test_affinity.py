"""Without an extender: the cluster's own scheduler, hint labels on nodes, and the binding webhook.

A node that the binding webhook would refuse is the one that the scheduler prefers, because it is
empty. Without the labels it would be tried again and again.
"""

import os
from collections.abc import Iterator
from typing import Final

import pytest

from controller.kube.nodes.nodes import ENFORCE_LABEL
from controller.placement.keys import HINT_LABEL_PREFIX
from sandbox.fleet.tally import metrics_of
from tests.e2e.lab.api import ApiError, Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace
from tests.e2e.lab.waiting import until
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import Installation
from tests.e2e.product.namespaces import create_namespace, remove_namespace
from tests.e2e.product.pods import explained, managed, refusals, told
from tests.e2e.product.policies import binding
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission

NAMESPACE, PLAIN = "hint-team", "hint-plain"
GOOD, EMPTY = "hint-good", "hint-empty"
"""The second one has no agent."""
SCHEDULER: Final = "default-scheduler"
REQUIREMENT: Final = {"gpu-count": "1"}
NO_NODE: Final = "didn't match Pod's node affinity/selector"
DENIED: Final = "denied the request: gpuwarden: "
OBJECTS: Final = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
PATIENCE_S: Final = 90


class World:
    """Two nodes, and nobody who asks the extender."""

    def __init__(self, lab: Lab, installation: Installation) -> None:
        self.lab = lab
        self.api = lab.api
        self.gpuwarden = installation
        self.pods = Namespace(lab.api, NAMESPACE)

    def create(self, name: str, requirement: dict[str, str] | None = None) -> None:
        where = {"hint": "yes"}
        document = managed(
            name, requirement or REQUIREMENT, gpus=0, scheduler=SCHEDULER, where=where
        )
        self.pods.create(document)

    def remove(self, name: str) -> None:
        self.api.delete(f"{self.pods.path}/pods/{name}", grace_s=0)

    def bound(self) -> dict[str, str]:
        """Nodes of bound pods by name."""
        found = self.api.get(f"{self.pods.path}/pods")["items"]
        return {
            x["metadata"]["name"]: x["spec"]["nodeName"] for x in found if x["spec"].get("nodeName")
        }

    def hints(self, node: str) -> dict[str, str]:
        """The hint labels that a node has."""
        labels = self.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]
        return {key: value for key, value in labels.items() if key.startswith(HINT_LABEL_PREFIX)}

    def wanted(self, pod: str) -> str:
        """The label that a pod waits for."""
        affinity = self.pods.get(pod)["spec"]["affinity"]["nodeAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        (expression,) = term["matchExpressions"]
        assert expression["values"] == ["fits"]
        key: str = expression["key"]
        return key

    def wait_unlabelled(self, node: str, key: str) -> None:
        until(
            f"{node} is not labelled {key}",
            lambda: key not in self.hints(node),
            timeout_s=PATIENCE_S,
        )


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[World]:
    served = admission(lab)
    served.id_keys = lab.folder / "hint-id-keys"
    served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
    served.settings = {"scheduling": {"mode": "affinity"}}
    lab.fake_nodes.add_all((GOOD, EMPTY), gpus=0, labels={"hint": "yes"})
    installation = Installation(lab, "hint", admission=served, policy={"defaultMode": "env"})
    webhooks = Webhooks(lab, served, PODS, BINDINGS)
    world = World(lab, installation)
    try:
        create_namespace(lab, NAMESPACE, {ENFORCE_LABEL: "true"})
        create_namespace(lab, PLAIN)
        installation.start()
        installation.agents.start(h100_node(GOOD))
        installation.agents.hash_of(GOOD)
        webhooks.register()
        until("pods are pinned", lambda: _is_pinned(world), timeout_s=PATIENCE_S)
        yield world
    finally:
        webhooks.remove()
        for name in (NAMESPACE, PLAIN):
            remove_namespace(lab, name)
        installation.close()
        for name in (GOOD, EMPTY):
            lab.fake_nodes.delete(name)


def _is_pinned(world: World) -> bool:
    document = managed("probe", REQUIREMENT, gpus=0, scheduler=SCHEDULER)
    try:
        made = world.api.post(f"{world.pods.path}/pods?dryRun=All", document)
    except ApiError:
        return False
    return "affinity" in made["spec"]


@pytest.fixture(autouse=True)
def _free(world: World) -> Iterator[None]:
    """Each test begins with a free node; labels of earlier requirements stay for a minute."""
    yield
    for each in world.api.get(f"{world.pods.path}/pods")["items"]:
        world.remove(each["metadata"]["name"])
    until("nothing is reserved", lambda: not world.api.get(OBJECTS)["items"], timeout_s=PATIENCE_S)


def test_pods_land_where_they_may_and_the_rest_waits_without_denials(world: World) -> None:
    names = [f"land-{number}" for number in range(10)]
    for name in names:
        world.create(name)
    until("eight are bound", lambda: len(world.bound()) == 8, timeout_s=PATIENCE_S)
    assert set(world.bound().values()) == {GOOD}
    (first, second) = (name for name in names if name not in world.bound())
    key = world.wanted(first)
    assert world.wanted(second) == key
    world.wait_unlabelled(GOOD, key)
    for name in (first, second):
        _waits_for_a_label(world, name)
    denied = [note for name in names for note in refusals(world.pods, name) if DENIED in note]
    assert [note for note in denied if EMPTY in note] == []
    world.remove(next(iter(world.bound())))
    until("the next one lands", lambda: len(world.bound()) == 8, timeout_s=PATIENCE_S)
    (waits,) = (name for name in (first, second) if name not in world.bound())
    world.wait_unlabelled(GOOD, key)
    _waits_for_a_label(world, waits)
    assert world.hints(EMPTY) == {}
    assert _has_counted(world, "changed")
    assert not _has_counted(world, "failed")


def _waits_for_a_label(world: World, name: str) -> None:
    """The scheduler's last word is that no node has it: nothing is tried any more."""

    def says_so() -> bool:
        conditions = world.pods.get(name)["status"].get("conditions", [])
        return any(x["type"] == "PodScheduled" and NO_NODE in x["message"] for x in conditions)

    until(f"{name} waits for a label", says_so, timeout_s=PATIENCE_S)


def _has_counted(world: World, result: str) -> bool:
    (controller,) = world.gpuwarden.controllers
    return f'gpuwarden_kube_hints_total{{result="{result}"}}' in metrics_of(controller.endpoint.ops)


def test_a_label_goes_with_the_evidence_and_comes_back(world: World) -> None:
    world.create("other", {"gpu-uuids": "GPU-00000000-0000-4000-8000-000000000000"})
    assert told(world.pods, "other", NO_NODE, timeout_s=PATIENCE_S)
    world.create("early")
    world.pods.node_of("early", timeout_s=PATIENCE_S)
    key = world.wanted("early")
    until("the label is there", lambda: key in world.hints(GOOD), timeout_s=PATIENCE_S)
    world.gpuwarden.agents.stop(GOOD)
    world.wait_unlabelled(GOOD, key)
    world.create("late")
    assert told(world.pods, "late", NO_NODE, timeout_s=PATIENCE_S)
    assert world.wanted("late") == key != world.wanted("other")
    world.gpuwarden.agents.start(h100_node(GOOD))
    both = {"early": GOOD, "late": GOOD}
    until("it lands", lambda: world.bound() == both, timeout_s=PATIENCE_S)
    note = explained(world.pods, "other", "GPU_NO_MATCH", timeout_s=PATIENCE_S)
    assert note.startswith("gpuwarden: ")
    assert "node has no GPU-00000000-0000-4000-8000-000000000000" in note


def test_who_follows_an_old_label_meets_the_binding_webhook(world: World) -> None:
    world.create("misled")
    key = world.wanted("misled")
    world.pods.node_of("misled", timeout_s=PATIENCE_S)
    world.create("named", {"gpu-uuids": "GPU-00000000-0000-4000-8000-000000000000"})
    with pytest.raises(ApiError, match="gpuwarden: GPU_NO_MATCH"):
        world.api.post(f"{world.pods.path}/pods/named/binding", binding("named", GOOD))
    with pytest.raises(ApiError, match="gpuwarden: NODE_NO_EVIDENCE"):
        world.api.post(f"{world.pods.path}/pods/named/binding", binding("named", EMPTY))
    path = f"/api/v1/nodes/{EMPTY}"
    world.api.patch(path, {"metadata": {"labels": {key: "fits"}}})
    until("a wrong label is taken away", lambda: not world.hints(EMPTY), timeout_s=PATIENCE_S)


def test_elsewhere_requirements_are_refused(world: World) -> None:
    plain = Namespace(world.api, PLAIN)
    with pytest.raises(ApiError, match="BYPASS_SCHEDULER requirements are for enforced namespaces"):
        plain.create(managed("requiring", REQUIREMENT, gpus=0, scheduler=SCHEDULER))
    name = plain.create(managed("plain", {}, gpus=0, scheduler=SCHEDULER))
    plain.node_of(name, timeout_s=PATIENCE_S)


def test_nobody_is_evicted_where_a_pod_with_a_higher_priority_has_no_label(world: World) -> None:
    """Node affinity is nothing that an eviction could help, to kube-scheduler."""
    plain, classes = Namespace(world.api, PLAIN), "/apis/scheduling.k8s.io/v1/priorityclasses"
    world.api.post(classes, {"metadata": {"name": "hint-urgent"}, "value": 1000})
    nobodys = {**REQUIREMENT, "required-hash": f"v1:sha256:{'c' * 64}"}
    try:
        for node in (GOOD, EMPTY):
            where = {"kubernetes.io/hostname": node}
            plain.create(_large(managed(node, {}, gpus=0, scheduler=SCHEDULER, where=where)))
        for node in (GOOD, EMPTY):
            assert plain.node_of(node, timeout_s=PATIENCE_S) == node
        _create_urgent(world, "nowhere", nobodys)
        told(world.pods, "nowhere", NO_NODE, "Preemption is not helpful", timeout_s=PATIENCE_S)
        assert not any(_is_deleted(plain, node) for node in (GOOD, EMPTY))
        _create_urgent(world, "somewhere", REQUIREMENT)
        until("room is made", lambda: _is_deleted(plain, GOOD), timeout_s=PATIENCE_S)
        world.api.delete(f"{plain.path}/pods/{GOOD}", grace_s=0)
        assert world.pods.node_of("somewhere", timeout_s=PATIENCE_S) == GOOD
        assert not _is_deleted(plain, EMPTY)
    finally:
        world.api.delete(f"{classes}/hint-urgent")
        for node in (GOOD, EMPTY):
            world.api.delete(f"{plain.path}/pods/{node}", grace_s=0)


def _large(document: Document) -> Document:
    """Two of them are too much for a node."""
    document["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "40"}}
    return document


def _create_urgent(world: World, name: str, requirement: dict[str, str]) -> None:
    document = managed(name, requirement, gpus=0, scheduler=SCHEDULER, where={"hint": "yes"})
    document["spec"]["priorityClassName"] = "hint-urgent"
    world.pods.create(_large(document))


def _is_deleted(pods: Namespace, name: str) -> bool:
    return "deletionTimestamp" in pods.get(name)["metadata"]
