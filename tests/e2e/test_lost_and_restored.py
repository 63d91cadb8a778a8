"""Definition and records of the ledger deleted and edited, etcd put back: nothing is given away.

Two replicas on a control plane of their own: who restores etcd restarts everything around it.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from controller.kube.nodes.nodes import ENFORCE_LABEL
from tests.e2e.lab.api import ApiError, Document
from tests.e2e.lab.etcd import BUMP
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace
from tests.e2e.lab.waiting import until
from tests.e2e.product.command_line import decide
from tests.e2e.product.controller import Controller
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import Installation, apply
from tests.e2e.product.namespaces import create_namespace
from tests.e2e.product.pods import managed
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission

NAMESPACE: Final = "lost-team"
NODE: Final = "lost-env"
OUT: Final = ("lost-out-0", "lost-out-1", "lost-out-2")
"""Nodes that are quarantined, one by each test that does so."""
GPUS: Final = 3
"""Of the node whose GPUs we give."""
NOWHERE: Final = {"lost": "nowhere"}
"""Pods are bound by hand."""
REQUIREMENT: Final = {"gpu-selector": "memory>=1Gi"}
ASSIGNED: Final = "gpuwarden.dev/gpu-uuids-assigned"
RESERVATIONS: Final = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
ENROLLMENTS: Final = "/apis/gpuwarden.dev/v1alpha1/nodeenrollments"
DEFINITION: Final = (
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpureservations.gpuwarden.dev"
)
POLICY: Final = {"defaultMode": "env"}
PATIENCE_S: Final = 90


@dataclass(frozen=True, slots=True)
class Way:
    """How etcd is restored, under replicas that run on or restart."""

    name: str
    out: str
    options: Sequence[str] = ()
    """Of `etcdutl snapshot restore`; without any, revisions are given a second time."""
    restart: bool = False


WAYS: Final = (
    Way("replicas run on", OUT[0]),
    Way("replicas restart, bumped revision", OUT[1], BUMP, restart=True),
    pytest.param(Way("replicas run on, bumped revision", OUT[2], BUMP), marks=pytest.mark.long),
)


class World:
    """An enforced namespace behind the binding webhook of two replicas."""

    def __init__(self, lab: Lab, installation: Installation) -> None:
        self.lab = lab
        self.api = lab.api
        self.gpuwarden = installation
        self.pods = Namespace(lab.api, NAMESPACE)

    @property
    def controllers(self) -> list[Controller]:
        return self.gpuwarden.controllers

    def create(self, name: str) -> str:
        """A managed pod that waits; its UID."""
        document = managed(name, REQUIREMENT, gpus=0, where=NOWHERE)
        made: Document = self.api.post(f"{self.pods.path}/pods", document)
        return str(made["metadata"]["uid"])

    def remove(self, name: str) -> None:
        self.api.delete(f"{self.pods.path}/pods/{name}", grace_s=0)

    def try_to_bind(self, pod: str, node: str = NODE) -> str:
        """Post a Binding by hand; why it was refused, or nothing."""
        document = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod},
            "target": {"kind": "Node", "name": node},
        }
        try:
            self.api.post(f"{self.pods.path}/pods/{pod}/binding", document)
        except ApiError as error:
            return error.message
        return ""

    def bind(self, pod: str) -> str:
        """Bind it, sometime; its GPU, once that is confirmed."""
        until(
            f"{pod} is bound",
            lambda: not self.try_to_bind(pod) or self.pods.get(pod)["spec"].get("nodeName"),
            timeout_s=PATIENCE_S,
        )
        gpu = str(self.pods.get(pod)["metadata"]["annotations"][ASSIGNED])
        until(
            f"{gpu} is confirmed",
            lambda: self.states().get(gpu) == ["Confirmed"],
            timeout_s=PATIENCE_S,
        )
        return gpu

    def states(self) -> dict[str, list[str]]:
        """States of the holders by GPU."""
        return {
            x["spec"]["gpu"]: [holder["state"] for holder in x["spec"]["holders"]]
            for x in self.api.get(RESERVATIONS)["items"]
        }

    def wait_states(self, wanted: dict[str, list[str]], *, thief: str = "") -> None:
        """All the while `thief` gets nothing."""

        def are_so() -> bool:
            if thief:
                assert self.try_to_bind(thief), f"{thief} got a GPU"
            return self.states() == wanted

        until(f"the ledger holds {wanted}", are_so, timeout_s=PATIENCE_S)

    def use(self, users: dict[str, str]) -> None:
        """What the node's reports show."""
        self.gpuwarden.agents.use(NODE, users)

    def strip(self, name: str) -> None:
        """Take the finalizers off an object that holds a GPU."""
        self.api.patch(f"{RESERVATIONS}/{name}", {"metadata": {"finalizers": None}})

    def quarantine(self, node: str) -> None:
        decide(self.controllers[0], "quarantine", node)

    def is_denied(self, node: str) -> bool:
        return "denial" in self.api.get(f"{ENROLLMENTS}/{node}")["spec"]

    def logged(self, kind: str, decision: str) -> list[Document]:
        """Records of the audit logs of all replicas."""
        found = [x for one in self.controllers for x in one.records()]
        return [x for x in found if (x["kind"], x["decision"]) == (kind, decision)]

    def ready(self) -> None:
        until("both are ready", lambda: self.gpuwarden.service.ready == 2, timeout_s=PATIENCE_S)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with Lab.control_plane_only() as lab:
        served = admission(lab, has_node=False)
        served.id_keys = lab.folder / "id-keys"
        served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
        lab.fake_nodes.add_all((NODE, *OUT), gpus=0)
        installation = Installation(lab, "lost", replicas=2, admission=served, policy=POLICY)
        made = World(lab, installation)
        try:
            create_namespace(lab, NAMESPACE, {ENFORCE_LABEL: "true"})
            installation.start()
            for name, gpus in ((NODE, GPUS), *((x, 1) for x in OUT)):
                installation.agents.start(h100_node(name, gpus))
                installation.agents.hash_of(name)
            Webhooks(lab, served, PODS, BINDINGS).register()
            made.ready()
            made.create("probe")
            made.bind("probe")
            made.remove("probe")
            made.wait_states({})
            yield made
        finally:
            installation.close()


@pytest.fixture(autouse=True)
def _clean(world: World) -> Iterator[None]:
    """Each test begins with a free node."""
    yield
    world.use({})
    for each in world.api.get(f"{world.pods.path}/pods")["items"]:
        world.remove(each["metadata"]["name"])
    world.wait_states({})


def test_the_definition_is_deleted_and_comes_back(world: World) -> None:
    names = ("a", "b", "thief")
    uids = {name: world.create(name) for name in names}
    held = {world.bind(name): uids[name] for name in ("a", "b")}
    before = world.states()
    world.use(held)
    world.api.delete(DEFINITION)
    assert world.states() == before  # finalizers hold the objects, and so the definition
    assert world.try_to_bind("thief")
    for gpu in held:
        world.strip(gpu.lower())
    until(
        "the definition is gone", lambda: world.api.found(DEFINITION) is None, timeout_s=PATIENCE_S
    )
    until(
        "it is on record", lambda: world.logged("ledger.state", "unavailable"), timeout_s=PATIENCE_S
    )
    assert world.try_to_bind("thief")
    apply(world.lab, "kustomize/base")
    until("it is served again", lambda: world.api.answers(RESERVATIONS), timeout_s=PATIENCE_S)
    until(
        "the records are back",
        lambda: before.items() <= world.states().items(),
        timeout_s=PATIENCE_S,
    )
    assert world.bind("thief") not in held
    until(
        "that is on record", lambda: world.logged("ledger.state", "available"), timeout_s=PATIENCE_S
    )


@pytest.mark.parametrize("end", ["Releasing", "Released"])
def test_a_record_is_ended_by_hand(world: World, end: str) -> None:
    """What the schema lets through: each move is one that a controller makes, too."""
    names = [f"full-{number}" for number in range(GPUS)]
    for name in (*names, "thief"):
        world.create(name)
    held = [world.bind(name) for name in names]
    for state in ("Releasing", "Released")[: 1 + (end == "Released")]:
        path = f"{RESERVATIONS}/{held[0].lower()}"
        found = world.api.get(path)
        found["spec"]["version"] += 1
        found["spec"]["holders"][0]["state"] = state
        world.api.put(path, found)
    wanted = {gpu: ["Confirmed"] for gpu in held}
    if end == "Releasing":
        wanted[held[0]] = ["Releasing"]
    world.wait_states(wanted, thief="thief")
    assert "GPU_BUSY" in world.try_to_bind("thief")


def test_records_are_deleted_by_hand_with_their_finalizers(world: World) -> None:
    names = [f"full-{number}" for number in range(GPUS)]
    for name in (*names, "thief"):
        world.create(name)
    held = [world.bind(name) for name in names]
    for gpu in held:
        world.strip(gpu.lower())
        world.api.delete(f"{RESERVATIONS}/{gpu.lower()}")
    world.wait_states({gpu: ["Confirmed"] for gpu in held}, thief="thief")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_etcd_is_restored_from_a_snapshot_of_before_pods_and_a_quarantine(
    world: World, way: Way
) -> None:
    uids = {name: world.create(name) for name in ("keeps", "waits")}
    keeps = world.bind("keeps")
    snapshot = world.lab.control_plane.etcd.snapshot()
    uids["late"] = world.create("late")
    waits, late = world.bind("waits"), world.bind("late")
    users = {keeps: uids["keeps"], waits: uids["waits"], late: uids["late"]}
    world.use(users)
    world.quarantine(way.out)
    restore(world, snapshot, way)
    assert world.api.found(f"{world.pods.path}/pods/late") is None
    assert not world.pods.get("waits")["spec"].get("nodeName")
    world.create("thief")
    world.wait_states(
        {keeps: ["Confirmed"], waits: ["Releasing"], late: ["Releasing"]}, thief="thief"
    )
    until("the quarantine is back", lambda: world.is_denied(way.out), timeout_s=PATIENCE_S)
    assert "NODE_QUARANTINED" in world.try_to_bind("thief", way.out)
    with pytest.raises(ApiError, match="by an act that says so"):
        world.api.patch(f"{ENROLLMENTS}/{way.out}", {"spec": {"denial": None}})
    lost = {x["subject"] for x in world.logged("node.quarantine", "lost")}
    assert f"node/{way.out}" in lost
    world.use({keeps: uids["keeps"]})
    assert {world.bind("thief"), world.bind("waits")} == {waits, late}
    assert world.states() == {gpu: ["Confirmed"] for gpu in (keeps, waits, late)}
    if way.restart:
        held = world.logged("reservation.restored", "kept")
        assert {waits, late} <= {gpu for x in held for gpu in x["refs"]["gpus"]}


def restore(world: World, snapshot: Path, way: Way) -> None:
    """Restore etcd; the replicas know nothing but their logs where they restart."""
    if way.restart:
        for one in world.controllers:
            one.kill()
    world.lab.control_plane.restore(snapshot, way.options)
    kinds = (RESERVATIONS, ENROLLMENTS)
    until("both are served", lambda: all(map(world.api.answers, kinds)), timeout_s=PATIENCE_S)
    if way.restart:
        for one in world.controllers:
            one.resume_service()
    world.ready()
