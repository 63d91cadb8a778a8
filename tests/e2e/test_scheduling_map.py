"""A `gpu-scheduling-map` through the real scheduler: a StatefulSet's pods on the mapped devices.

Map and scheduler name are those of the project whose annotation it is: two of its nodes are known
by the label `gpu-node-name` and two by their names, and two of its pods share a device.
"""

import os
from collections.abc import Iterator
from typing import Final

import pytest

from controller.kube.nodes.nodes import ENFORCE_LABEL
from tests.e2e.lab.api import ApiError
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace
from tests.e2e.lab.waiting import until
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import Installation
from tests.e2e.product.namespaces import create_namespace, remove_namespace
from tests.e2e.product.pods import managed, told
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission

NAMESPACE: Final = "map-team"
MAP: Final = "gpu-scheduling-map"
SEED: Final = "0=node1:0,1\n1=node2:2\n2=node3:0,1,2\n3=node4:3\n4=node4:3"
LABELLED: Final = {"map-a": "node1", "map-b": "node2"}
NAMED: Final = ("node3", "node4")
SPARE: Final = "map-c"
ASSIGNED: Final = "gpuwarden.dev/gpu-uuids-assigned"
OBJECTS: Final = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
PATIENCE_S: Final = 90


class World:
    """Five nodes with eight cards each."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.api = lab.api
        self.pods = Namespace(lab.api, NAMESPACE)
        self.hardware = {name: h100_node(name) for name in (*LABELLED, *NAMED, SPARE)}

    def create(self, name: str, text: str, **metadata: str) -> str:
        """A pod of its own with a map."""
        document = managed(name, {}, gpus=0)
        document["metadata"]["annotations"] = {MAP: text, **metadata}
        return self.pods.create(document)

    def replicas(self, name: str, text: str, count: int) -> None:
        """A StatefulSet, whose pods do not wait for each other."""
        made = managed(name, {}, gpus=0)
        labels = {"app": name}
        template = {
            "metadata": {"labels": labels, "annotations": {MAP: text}},
            "spec": made["spec"] | {"restartPolicy": "Always", "schedulerName": "gpu-scheduler"},
        }
        spec = {
            "replicas": count,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": template,
        }
        self.api.post(self.sets, {"metadata": {"name": name}, "spec": spec})

    def remove_set(self, name: str, count: int) -> None:
        """Without its pods it would make them again."""
        self.api.delete(f"{self.sets}/{name}?propagationPolicy=Orphan")
        for number in range(count):
            self.remove(f"{name}-{number}")

    def remove(self, pod: str) -> None:
        self.api.delete(f"{self.pods.path}/pods/{pod}", grace_s=0)

    @property
    def sets(self) -> str:
        return f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"

    def given(self, pod: str) -> tuple[str, str]:
        """Node and devices of a pod as soon as it is bound, by whoever makes it."""
        path = f"{self.pods.path}/pods/{pod}"
        until(f"pod {pod} is there", lambda: self.api.found(path), timeout_s=PATIENCE_S)
        node = self.pods.node_of(pod, timeout_s=PATIENCE_S)
        return node, self.pods.get(pod)["metadata"]["annotations"][ASSIGNED]

    def cards(self, node: str, *indices: int) -> tuple[str, str]:
        """The node with these of its devices, by the map's indices."""
        uuids = [card.uuid for card in self.hardware[node].scenario.gpus]
        return node, ",".join(uuids[index] for index in indices)

    def holders(self) -> dict[str, set[str]]:
        """The pods that hold each device, confirmed."""
        return {
            item["spec"]["gpu"]: {
                x["pod"]["name"] for x in item["spec"]["holders"] if x["state"] == "Confirmed"
            }
            for item in self.api.get(OBJECTS)["items"]
        }


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[World]:
    served = admission(lab)
    served.id_keys = lab.folder / "map-id-keys"
    served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
    world = World(lab)
    for name in world.hardware:
        own = {"gpu-node-name": LABELLED[name]} if name in LABELLED else {}
        lab.fake_nodes.add(name, gpus=0, labels=own)
    installation = Installation(lab, "map", admission=served, policy={"defaultMode": "env"})
    webhooks = Webhooks(lab, served, PODS, BINDINGS)
    try:
        create_namespace(lab, NAMESPACE, {ENFORCE_LABEL: "true"})
        installation.start()
        for hardware in world.hardware.values():
            installation.agents.start(hardware)
        for name in world.hardware:
            installation.agents.hash_of(name)
        webhooks.register()
        until("wrong maps are refused", lambda: "line 1" in _refused(world, "x"))
        yield world
    finally:
        webhooks.remove()
        remove_namespace(lab, NAMESPACE)
        until("nothing is reserved", lambda: not world.holders(), timeout_s=PATIENCE_S)
        installation.close()
        for name in world.hardware:
            lab.fake_nodes.delete(name)


@pytest.fixture(autouse=True)
def _free(world: World) -> Iterator[None]:
    """Each test begins with free nodes."""
    yield
    until("nothing is reserved", lambda: not world.holders(), timeout_s=PATIENCE_S)


def _refused(world: World, text: str) -> str:
    """What is said of a pod that is not let in; empty for one that would be."""
    document = managed("probe-0", {}, gpus=0)
    document["metadata"]["annotations"] = {MAP: text}
    try:
        world.api.post(f"{world.pods.path}/pods?dryRun=All", document)
    except ApiError as error:
        return error.message
    return ""


def test_a_statefulset_of_the_seed_goes_where_its_map_says(world: World) -> None:
    world.replicas("web", SEED, 5)
    shared = world.cards("node4", 3)
    places = [world.given(f"web-{number}") for number in range(5)]
    assert places == [
        world.cards("map-a", 0, 1),
        world.cards("map-b", 2),
        world.cards("node3", 0, 1, 2),
        shared,
        shared,
    ]
    held = {uuid: {f"web-{n}"} for n, (_, text) in enumerate(places) for uuid in text.split(",")}
    held[shared[1]] = {"web-3", "web-4"}
    until("all is confirmed", lambda: world.holders() == held, timeout_s=PATIENCE_S)
    _others_do_not_share(world, shared)
    world.remove_set("web", 5)


def _others_do_not_share(world: World, shared: tuple[str, str]) -> None:
    """Neither by the same lines of another owner, nor by naming the device."""
    world.replicas("rival", SEED, 5)
    world.create("named-0", f"0={shared[0]}:{shared[1]}")
    for name in ("rival-3", "rival-4", "named-0"):
        assert told(world.pods, name, "GPU_BUSY", timeout_s=PATIENCE_S)
        assert "nodeName" not in world.pods.get(name)["spec"]
    assert world.holders()[shared[1]] == {"web-3", "web-4"}
    world.remove("named-0")
    world.remove_set("rival", 5)


def test_a_line_that_stands_alone_declares_no_sharing(world: World) -> None:
    world.replicas("alone", "0=node4:3\n1=node4:4", 1)
    assert world.given("alone-0") == world.cards("node4", 3)
    world.create("late-0", "0=node4:3")
    assert told(world.pods, "late-0", "GPU_BUSY", timeout_s=PATIENCE_S)
    world.remove_set("alone", 1)
    assert world.given("late-0") == world.cards("node4", 3)
    world.remove("late-0")


def test_a_pod_comes_when_its_node_gets_the_name(world: World) -> None:
    world.create("early-0", "0=node9:7", **{"gpuwarden.dev/ordinal": "0"})
    assert told(world.pods, "early-0", "MAP_ELSEWHERE", timeout_s=PATIENCE_S)
    path = f"/api/v1/nodes/{SPARE}"
    world.api.patch(path, {"metadata": {"labels": {"gpu-node-name": "node9"}}})
    assert world.given("early-0") == world.cards(SPARE, 7)
    world.api.patch(path, {"metadata": {"labels": {"gpu-node-name": None}}})
    world.remove("early-0")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0=node1:0\nx=node2:1", "line 2"),
        ("0=node1:0\n\n# cards\n1=node2:", "line 4"),
        ("0=node1:0\n0=node2:1", "got 0=node2:1; expected each ordinal once"),
        ("0=Node_1:0", "line 1"),
        ("0=node1:0,0", "line 1"),
        ("1=node1:0", "expected a line for this pod's ordinal"),
    ],
)
def test_wrong_lines_are_refused_by_number(world: World, text: str, says: str) -> None:
    message = _refused(world, text)
    assert "gpuwarden: REQ_INVALID" in message
    assert says in message


def test_every_wrong_line_is_told(world: World) -> None:
    message = _refused(world, "x=node1:0\n0=node1:0\n1=node2\n2=node3:a")
    assert [f"line {number}" in message for number in (1, 2, 3, 4)] == [True, False, True, True]
