"""The HTTP API of a controller on a real API server: tokens that it made, pods that it binds."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from controller.kube.nodes.nodes import ENFORCE_LABEL
from tests.e2e.lab.api import ApiError
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.place import Loopback
from tests.e2e.lab.pods import Namespace
from tests.e2e.lab.waiting import until
from tests.e2e.product.command_line import asked
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.http_api import Caller, http_api, svid_file, token_of
from tests.e2e.product.installation import Installation
from tests.e2e.product.pods import managed
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission

NAMESPACE: Final = "api-team"
READER: Final = "reader"
NODE: Final = "api-0"
HERE: Final = {"gate": "api"}
REQUIREMENT: Final = {"gpu-selector": "memory>=1Gi"}
ASSIGNED, RESERVATION = "gpuwarden.dev/gpu-uuids-assigned", "gpuwarden.dev/reservation-id"
OBJECTS: Final = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
PATIENCE_S: Final = 60


class World:
    """An enforced namespace, one replica, one `env` node."""

    def __init__(self, lab: Lab) -> None:
        served = admission(lab)
        served.id_keys = lab.folder / "api-id-keys"
        served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
        self.lab = lab
        self.pods = Namespace(lab.api, NAMESPACE)
        self.gpuwarden = Installation(
            lab,
            "api",
            admission=served,
            policy={"defaultMode": "env"},
            http_api=http_api(lab, Loopback().address, f"{NAMESPACE}/{READER}"),
        )
        self.webhooks = Webhooks(lab, served, PODS, BINDINGS)
        (controller,) = self.gpuwarden.controllers
        self.nobody = Caller(controller.api, lab.control_plane.identities.pki.ca)

    def by_token(self, account: str = "default", **how: Any) -> Caller:
        return replace(self.nobody, token=token_of(self.pods, account, **how))

    def by_svid(self, path: str) -> Caller:
        ca = self.gpuwarden.workload_api.ca
        return replace(self.nobody, svid=svid_file(self.lab.folder, ca, path))

    def word_of(self, name: str) -> dict[str, Any]:
        """What the pod has to say."""
        metadata = self.pods.get(name)["metadata"]
        return {
            "namespace": NAMESPACE,
            "name": name,
            "uid": metadata["uid"],
            "reservation-id": metadata["annotations"][RESERVATION],
            "gpu-uuid": metadata["annotations"][ASSIGNED],
        }

    def runs(self, name: str) -> dict[str, Any]:
        """A pod that is bound with a GPU; its word."""
        self.pods.create(managed(name, REQUIREMENT, gpus=0, where=HERE))
        self.pods.node_of(name, timeout_s=PATIENCE_S)
        return self.word_of(name)

    def told(self, *arguments: str) -> tuple[int, Any]:
        """Exit code of the command line, and what it says for programs."""
        (controller,) = self.gpuwarden.controllers
        return asked(controller, *arguments)

    def record_of(self, gpu: str) -> dict[str, Any]:
        found: dict[str, Any] = self.lab.api.get(f"{OBJECTS}/{gpu.lower()}")
        return found

    def states(self) -> list[str]:
        found = self.lab.api.get(OBJECTS)["items"]
        return sorted(holder["state"] for x in found for holder in x["spec"]["holders"])


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[World]:
    lab.fake_nodes.add(NODE, gpus=0, labels=HERE)
    made = World(lab)
    try:
        labels = {"metadata": {"name": NAMESPACE, "labels": {ENFORCE_LABEL: "true"}}}
        lab.api.post("/api/v1/namespaces", labels)
        accounts = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
        until("the namespace has its account", lambda: lab.api.found(f"{accounts}/default"))
        lab.api.post(accounts, {"metadata": {"name": READER}})
        made.gpuwarden.start()
        made.gpuwarden.agents.start(h100_node(NODE))
        made.gpuwarden.agents.hash_of(NODE)
        made.webhooks.register()
        until("pods are injected", lambda: _is_injected(made), timeout_s=PATIENCE_S)
        yield made
    finally:
        made.webhooks.remove()
        for pod in lab.api.get(f"{made.pods.path}/pods")["items"]:
            lab.api.delete(f"{made.pods.path}/pods/{pod['metadata']['name']}", grace_s=0)
        namespace = f"/api/v1/namespaces/{NAMESPACE}"
        lab.api.delete(namespace)
        made.gpuwarden.close()
        gone = f"{namespace} is gone, so that no later test sees its end"
        until(gone, lambda: not lab.api.found(namespace), timeout_s=PATIENCE_S)
        for each in lab.api.get(OBJECTS)["items"]:
            path = f"{OBJECTS}/{each['metadata']['name']}"
            lab.api.patch(path, {"metadata": {"finalizers": None}})
            lab.api.delete(path)
        lab.fake_nodes.delete(NODE)


def _is_injected(world: World) -> bool:
    """As in the binding webhook's tests: a Binding that says what only we say is refused."""
    world.pods.create(managed("probe", REQUIREMENT, gpus=0, where={"gate": "nowhere"}))
    document = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "probe", "annotations": {ASSIGNED: "x"}},
        "target": {"kind": "Node", "name": NODE},
    }
    try:
        world.lab.api.post(f"{world.pods.path}/pods/probe/binding?dryRun=All", document)
    except ApiError as error:
        return "is not for a Binding to say" in error.message
    finally:
        world.lab.api.delete(f"{world.pods.path}/pods/probe", grace_s=0)
    return False


def test_a_pod_confirms_its_gpu_with_the_token_that_it_was_given(world: World) -> None:
    word = world.runs("train-0")
    pod = world.by_token(pod="train-0")
    for _ in range(2):
        assert pod.ask("POST", "/finalize", word) == (200, {"status": "ok"})
    assert world.states() == ["Confirmed"]
    status, answer = pod.ask("POST", "/finalize", {**word, "gpu-uuid": "GPU-0"})
    assert (status, answer["code"]) == (409, "RESERVATION_CONFLICT")
    status, answer = pod.ask("POST", "/finalize", {"namespace": NAMESPACE})
    assert (status, answer) == (
        400,
        {"error": "missing required fields: name, uid, reservation-id, gpu-uuid"},
    )


def test_no_other_token_does(world: World) -> None:
    word, _ = world.runs("train-1"), world.runs("train-2")
    callers = {
        "another pod": (world.by_token(pod="train-2"), 403),
        "bound to no pod": (world.by_token(), 403),
        "for the API server": (
            world.by_token(pod="train-1", audience="https://kubernetes.default.svc"),
            401,
        ),
        "for another service": (world.by_token(pod="train-1", audience="vault"), 401),
        "none": (world.nobody, 401),
        "invented": (replace(world.nobody, token="eyJhbGciOiJub25lIn0.e30."), 401),  # noqa: S106 -- of nobody
        "an inspector": (world.by_svid("inspector/shop"), 403),
    }
    found = {name: one.ask("POST", "/finalize", word)[0] for name, (one, _) in callers.items()}
    assert found == {name: status for name, (_, status) in callers.items()}
    assert world.by_svid("operator/jane").ask("POST", "/finalize", word)[0] == 200


def test_the_token_of_a_pod_that_is_gone_confirms_nothing(world: World) -> None:
    word = world.runs("train-3")
    pod = world.by_token(pod="train-3")
    assert pod.ask("POST", "/finalize", word)[0] == 200
    world.lab.api.delete(f"{world.pods.path}/pods/train-3", grace_s=0)
    assert pod.ask("POST", "/finalize", word)[0] in {401, 409}
    until(
        "the API server knows the token no more",
        lambda: pod.ask("POST", "/finalize", word)[0] == 401,
        timeout_s=PATIENCE_S,
    )


def test_who_reads_and_what(world: World) -> None:
    word = world.runs("train-4")
    reader = world.by_token(READER)
    status, devices = reader.ask("GET", "/devices")
    assert status == 200
    mine = devices[word["gpu-uuid"]]
    assert (mine["node"], mine["assignment"]["uid"]) == (NODE, word["uid"])
    assert len([x for x in devices.values() if x["node"] == NODE]) == 8
    _, nodes = world.by_svid("inspector/shop").ask("GET", "/nodes")
    assert nodes[NODE]["state"] == "eligible"
    assert nodes[NODE]["attestation-hash"] == world.gpuwarden.agents.hash_of(NODE)
    _, reservations = reader.ask("GET", "/reservations")
    assert list(reservations[word["reservation-id"]]["gpus"]) == [word["gpu-uuid"]]
    for path in ("/devices", "/nodes", "/reservations"):
        assert world.by_token(pod="train-4").ask("GET", path)[0] == 403
        assert world.nobody.ask("GET", path)[0] == 401


def test_the_command_line_tells_a_pod_s_way(world: World) -> None:
    word = world.runs("train-5")
    gpu = word["gpu-uuid"]
    until("it is confirmed", lambda: _state_of(world, gpu) == "Confirmed", timeout_s=PATIENCE_S)
    status, found = world.told("explain", "pod", f"{NAMESPACE}/train-5")
    assert (status, found["uid"], found["guaranteeGiven"]) == (0, word["uid"], "node")
    ways = {x["name"]: x for x in found["stages"]}
    assert [(x["name"], x["state"]) for x in found["stages"]] == [
        ("required", "reached"),
        ("reserved", "reached"),
        ("bound", "reached"),
        ("kubelet", "unneeded"),
        ("nvml", "waiting"),
    ]
    pod = world.pods.get("train-5")
    (scheduled,) = (x for x in pod["status"]["conditions"] if x["type"] == "PodScheduled")
    assert [ways[x]["at"] for x in ("required", "reserved", "bound")] == [
        pod["metadata"]["creationTimestamp"],
        world.record_of(gpu)["metadata"]["creationTimestamp"],
        scheduled["lastTransitionTime"],
    ]
    assert ways["reserved"]["gpus"] == ways["bound"]["gpus"] == [gpu]
    assert (
        "gpuwarden issued its reservation id for this pod, node and GPUs"
        in ways["bound"]["findings"]
    )
    assert len(ways["nvml"]["evidenceDigest"]) == 64
    _, listed = world.told("reservations", "--namespace", NAMESPACE, "--node", NODE)
    assert word["reservation-id"] in {x["id"] for x in listed["reservations"]}
    until(
        "kubectl get gpures shows it",
        lambda: world.record_of(gpu).get("status", {}).get("state") == "Confirmed",
        timeout_s=PATIENCE_S,
    )


def test_the_command_line_tells_why_a_pod_waits(world: World) -> None:
    requirement = {"gpu-selector": "memory>=1Ti"}
    world.pods.create(managed("too-large", requirement, gpus=0, where=HERE))
    try:
        status, found = world.told("explain", "pod", f"{NAMESPACE}/too-large")
        rejections = {x["code"]: x["nodes"] for x in found["rejections"]}
        assert (status, found["passing"]) == (3, 0)
        assert NODE in rejections["GPU_NO_MATCH"]
    finally:
        world.lab.api.delete(f"{world.pods.path}/pods/too-large", grace_s=0)


def _state_of(world: World, gpu: str) -> str:
    (holder,) = world.record_of(gpu)["spec"]["holders"]
    state: str = holder["state"]
    return state
