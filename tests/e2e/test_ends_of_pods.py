"""Pods end in every way at once, and no reservation is left of any of them.

On a real API server with its own controllers; fake nodes, and a kubelet that only plays it. At
the end the ledger is compared with the API, and every GPU is given once more.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pytest

from controller.kube.nodes.nodes import ENFORCE_LABEL
from sandbox.laptop import Pace
from tests.e2e.lab.api import Document
from tests.e2e.lab.fake_kubelet import FakeKubelet
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace
from tests.e2e.lab.waiting import until
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import Installation
from tests.e2e.product.ledger import Held, forget_records, held, live
from tests.e2e.product.namespaces import create_namespace, remove_namespace
from tests.e2e.product.pods import managed
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission

TEAM, GONE = "ends-team", "ends-gone"
"""Namespaces; the second one is deleted."""
STAYS: Final = "stays"
WAY: Final = "ends"
"""Label of pods and nodes: how pods end there."""
REQUIREMENTS: Final = {"gpu-count": "1"}
GRACE: Final = {"nodeGoneGrace": "90s"}
"""The shortest that there is."""
_JOBS: Final = f"/apis/batch/v1/namespaces/{TEAM}/jobs"
_PRIORITIES: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"
_EVICTION: Final = {"apiVersion": "policy/v1", "kind": "Eviction"}


@dataclass(frozen=True, slots=True)
class Size:
    """Of the storm."""

    name: str
    ways: tuple[str, ...]
    nodes: int
    """For each way."""
    gpus: int
    """Of each node."""
    job: int
    """Pods of the Job."""
    pace: Pace
    patience_s: float
    poll_s: float


SMALL: Final = Size(
    "one node each",
    ways=("deleted", "namespace", "evicted", "job"),
    nodes=1,
    gpus=4,
    job=8,
    pace=Pace(interval_s=1, challenge_ttl_s=2, lease_s=6),
    patience_s=90,
    poll_s=0.1,
)
PUSHED_OUT: Final = Size(
    "one of higher priority",
    ways=("pushed-out",),
    nodes=2,
    gpus=2,
    job=0,
    pace=SMALL.pace,
    patience_s=90,
    poll_s=0.1,
)
LARGE: Final = Size(
    "1,000 pods of a Job, 800 others",
    ways=("deleted", "namespace", "evicted", "node", "job"),
    nodes=25,
    gpus=8,
    job=1000,
    pace=Pace(interval_s=10, challenge_ttl_s=10, lease_s=60),
    patience_s=600,
    poll_s=2,
)


class World:
    """Enforced namespaces behind the binding webhook of two replicas; nodes for each way to end."""

    def __init__(self, lab: Lab, size: Size, installation: Installation) -> None:
        self.lab = lab
        self.api = lab.api
        self.size = size
        self.gpuwarden = installation
        self.nodes = {
            way: [f"ends-{size.nodes}-{way}-{n}" for n in range(size.nodes)] for way in size.ways
        }
        self.nodes[STAYS] = [f"ends-{size.nodes}-{STAYS}"]
        self._ours = frozenset(self.all_nodes())
        self.kubelet = FakeKubelet(lab.api, self._ours)

    def all_nodes(self) -> list[str]:
        return [name for names in self.nodes.values() for name in names]

    def count(self, way: str) -> int:
        """How many GPUs the nodes of this way have."""
        return len(self.nodes[way]) * self.size.gpus

    def gpus(self, *ways: str) -> set[str]:
        """Of the nodes of these ways."""
        hardware = (h100_node(name, self.size.gpus) for way in ways for name in self.nodes[way])
        return {card.uuid for node in hardware for card in node.scenario.gpus}

    def fill(self, run: str, ways: Iterable[str], *, gone: str = "") -> None:
        """Pods that have every GPU of these ways; those of the way `gone` in the namespace GONE."""
        where = [(way, n) for way in ways for n in range(self.count(way))]

        def create(way: str, number: int) -> None:
            made = pod_of(way, f"{run}-{way}-{number}")
            Namespace(self.api, GONE if way == gone else TEAM).create(made)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda x: create(*x), where))

    def wait_full(self, *ways: str) -> None:
        """Every GPU of these ways and no other is held, by the pod that was told that it has it."""
        wanted = Counter(self.gpus(*ways))

        def are_given() -> bool:
            given = self.given()
            return Counter(x.gpu for x in given) == wanted and self.held() == given

        self.until(f"the GPUs of {ways} are given, each once", are_given)

    def held(self) -> list[Held]:
        """What the ledger has of our nodes."""
        return [x for x in held(self.api) if x.node in self._ours]

    def given(self) -> list[Held]:
        """What the ledger ought to have of them, by the pods that there are."""
        return [x for x in live(self.api) if x.node in self._ours]

    def until(self, what: str, ask: Callable[[], bool]) -> None:
        """A server that is too busy to answer has said nothing."""

        def is_so() -> bool:
            with suppress(TimeoutError):
                return ask()
            return False

        until(what, is_so, timeout_s=self.size.patience_s, poll_s=self.size.poll_s)

    def pods(self, selector: str, most: int = 1000) -> list[str]:
        """Names of pods of the team that carry these labels."""
        query = f"labelSelector={selector}&limit={most}"
        found = self.api.get(f"/api/v1/namespaces/{TEAM}/pods?{query}")["items"]
        return [x["metadata"]["name"] for x in found]


def pod_of(way: str, name: str) -> Document:
    """A pod for the nodes of this way."""
    document = managed(name, REQUIREMENTS, gpus=0, where={WAY: way})
    document["metadata"]["labels"][WAY] = way
    return document


@pytest.fixture
def world(lab: Lab, request: pytest.FixtureRequest) -> Iterator[World]:
    size: Size = request.param
    served = admission(lab)
    served.id_keys = lab.folder / "ends-id-keys"
    served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
    served.settings = {"reservation": GRACE}
    installation = Installation(
        lab,
        f"ends-{size.nodes}",
        replicas=2,
        pace=size.pace,
        admission=served,
        policy={"defaultMode": "env"},
    )
    webhooks = Webhooks(lab, served, PODS, BINDINGS)
    made = World(lab, size, installation)
    try:
        for name in (TEAM, GONE):
            create_namespace(lab, name, {ENFORCE_LABEL: "true"})
        for way, names in made.nodes.items():
            lab.fake_nodes.add_all(names, gpus=0, labels={WAY: way})
        installation.start()
        hardware = (h100_node(name, size.gpus) for name in made.all_nodes())
        installation.agents.start_all(hardware, per_second=50)
        webhooks.register()
        made.until("pods are injected", lambda: _is_injected(made))
        yield made
    finally:
        webhooks.remove()
        for name in (TEAM, GONE):
            remove_namespace(lab, name, patience_s=size.patience_s)
        made.kubelet.stop()
        installation.close()
        forget_records(lab.api)
        for name in lab.fake_nodes.names.intersection(made.all_nodes()):
            lab.fake_nodes.delete(name)


def _is_injected(world: World) -> bool:
    path = f"/api/v1/namespaces/{TEAM}/pods?dryRun=All"
    return "env" in world.api.post(path, pod_of(STAYS, "dry"))["spec"]["containers"][0]


def _all_deleted(world: World) -> None:
    world.api.delete(f"/api/v1/namespaces/{TEAM}/pods?labelSelector={WAY}=deleted")


def _namespace_deleted(world: World) -> None:
    world.api.delete(f"/api/v1/namespaces/{GONE}")


def _evicted(world: World) -> None:
    for name in world.pods(f"{WAY}=evicted"):
        path = f"/api/v1/namespaces/{TEAM}/pods/{name}/eviction"
        world.api.post(path, {**_EVICTION, "metadata": {"name": name}})


def _nodes_deleted(world: World) -> None:
    for name in world.nodes["node"]:
        world.kubelet.leave(name)
        world.gpuwarden.agents.stop(name)
        world.lab.fake_nodes.delete(name)


def _worked_through(world: World) -> None:
    """More pods at once than the way has GPUs: some have to wait for what others give back."""
    made = pod_of("job", "work")
    metadata = {key: made["metadata"][key] for key in ("labels", "annotations")}
    spec = {
        "completions": world.size.job,
        "parallelism": world.count("job") * 3 // 2,
        "template": {"metadata": metadata, "spec": made["spec"]},
    }
    world.api.post(_JOBS, {"metadata": {"name": "work"}, "spec": spec})


ENDS: Final = {
    "deleted": _all_deleted,
    "namespace": _namespace_deleted,
    "evicted": _evicted,
    "node": _nodes_deleted,
    "job": _worked_through,
}


def _are_over(world: World) -> bool:
    """All pods that were to end have, as the API server says."""
    work = world.api.get(f"{_JOBS}/work")["status"]
    if work.get("succeeded") != world.size.job:
        return False
    is_there = world.api.found(f"/api/v1/namespaces/{GONE}") is not None
    return not is_there and not world.pods(f"{WAY}+notin+({STAYS},job)", most=1)


@pytest.mark.parametrize(
    "world",
    [SMALL, pytest.param(LARGE, marks=pytest.mark.long)],
    indirect=True,
    ids=lambda x: x.name,
)
def test_however_pods_end_no_reservation_is_left_of_them(world: World) -> None:
    ways = world.size.ways
    others = [way for way in ways if way != "job"]
    world.fill("first", [STAYS, *others], gone="namespace")
    world.wait_full(STAYS, *others)
    for way in ways:
        ENDS[way](world)
    world.until("all have ended", lambda: _are_over(world))
    world.until("the ledger has what the API has", lambda: world.held() == world.given())
    world.wait_full(STAYS)
    there = [way for way in ways if way != "node"]
    world.fill("again", there)
    world.wait_full(STAYS, *there)


@pytest.mark.parametrize("world", [PUSHED_OUT], indirect=True, ids=lambda x: x.name)
def test_nobody_is_evicted_while_the_gpu_of_a_victim_is_given_back(world: World) -> None:
    """The scheduler sees room as soon as the victim is gone: it counts no GPUs there."""
    (way,), pods, classes = PUSHED_OUT.ways, Namespace(world.api, TEAM), _PRIORITIES
    world.api.post(classes, {"metadata": {"name": "ends-urgent"}, "value": 1000})
    try:
        for number in range(world.count(way)):
            pods.create(_large(pod_of(way, f"low-{number}")))
        world.wait_full(way)
        owner = {x.gpu: x.pod for x in world.held()}
        urgent = _large(pod_of("urgent", "urgent"))
        urgent["spec"] |= {
            "nodeSelector": pod_of(way, "")["spec"]["nodeSelector"],
            "priorityClassName": "ends-urgent",
        }
        pods.create(urgent)
        node = pods.node_of("urgent", timeout_s=world.size.patience_s)
        world.until("nothing else changes hands", lambda: world.held() == world.given())
        found = {x.gpu: x.pod for x in world.held()}
        (gpu,) = (x for x, uid in found.items() if owner[x] != uid)
        assert found[gpu] == pods.get("urgent")["metadata"]["uid"]
        assert gpu in {x.gpu for x in world.held() if x.node == node}
        assert found.keys() == owner.keys()
    finally:
        world.api.delete(f"{classes}/ends-urgent")


def _large(document: Document) -> Document:
    """Two fit on a node."""
    document["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "30"}}
    return document
