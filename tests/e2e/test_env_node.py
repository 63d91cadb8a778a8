"""An `env` node with a real kubelet and NVIDIA's container toolkit: what containers see.

Nobody but the toolkit gives a container its devices here, by the variable that admission put into
the pod, out of the annotation that came with the binding.
"""

import os
from collections.abc import Iterator
from typing import Final

import pytest

from controller.kube.nodes.nodes import ENFORCE_LABEL
from sandbox.laptop import Pace
from tests.e2e.lab.api import Document
from tests.e2e.lab.containerd import GPU_KIND
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.lab.waiting import until
from tests.e2e.product.cards import PATIENCE_S, Cards, Seen, forget_cards, greedy, seen
from tests.e2e.product.installation import Installation
from tests.e2e.product.namespaces import create_namespace, remove_namespace
from tests.e2e.product.policies import binding
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission

pytestmark = pytest.mark.usefixtures("real_node")
ENFORCED, PLAIN = "env-team", "env-plain"
OBJECTS: Final = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
ASSIGNED, RESERVATION = "gpuwarden.dev/gpu-uuids-assigned", "gpuwarden.dev/reservation-id"
GPUS: Final = 8
PACE: Final = Pace(interval_s=5, challenge_ttl_s=3, lease_s=15)
"""Ordinary rounds come late enough to be told from those that a release asks for."""
RELAYS: Final = 3


class World:
    """The real node with eight cards, behind webhooks and binding webhook."""

    def __init__(self, lab: Lab, installation: Installation) -> None:
        self.lab = lab
        (self.controller,) = installation.controllers
        self.api = lab.api
        self.cards = Cards(lab, GPUS)
        self.enforced = Namespace(lab.api, ENFORCED)
        self.plain = Namespace(lab.api, PLAIN)

    def reserved(self, reservation: str) -> set[str]:
        """The GPUs that the ledger holds under a reservation, confirmed."""
        return {
            item["spec"]["gpu"]
            for item in self.api.get(OBJECTS)["items"]
            for holder in item["spec"]["holders"]
            if holder["reservation"] == reservation and holder["state"] == "Confirmed"
        }

    def records(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.api.get(OBJECTS)["items"]]

    def challenges(self, cause: str) -> float:
        """How many the controller has sent for this cause."""
        return self.controller.metric(f'gpuwarden_challenges_total{{cause="{cause}"}}') or 0

    def pods_of(self, label: str) -> list[str]:
        """Names of pods with the label `app`."""
        query = f"?labelSelector=app%3D{label}"
        items = self.api.get(f"{self.enforced.path}/pods{query}")["items"]
        return [item["metadata"]["name"] for item in items]


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[World]:
    served = admission(lab)
    served.id_keys = lab.folder / "env-id-keys"
    served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
    installation = Installation(
        lab, "env", pace=PACE, admission=served, policy={"defaultMode": "env"}
    )
    world = World(lab, installation)
    webhooks = Webhooks(lab, served, PODS, BINDINGS)
    try:
        create_namespace(lab, ENFORCED, {ENFORCE_LABEL: "true"})
        create_namespace(lab, PLAIN)
        world.cards.forget_cards()
        installation.start()
        installation.agents.start(world.cards.hardware)
        installation.agents.hash_of(lab.node.name)
        webhooks.register()
        with world.cards.given():
            until("pods are injected", lambda: _is_injected(world), timeout_s=PATIENCE_S)
            yield world
    finally:
        webhooks.remove()
        for name in (ENFORCED, PLAIN):
            remove_namespace(lab, name)
        installation.close()
        forget_cards(lab)


@pytest.fixture(autouse=True)
def _free(world: World) -> Iterator[None]:
    """Each test begins with a free node."""
    yield
    until("nothing is reserved", lambda: not world.records(), timeout_s=PATIENCE_S)


def _is_injected(world: World) -> bool:
    made = world.api.post(f"{world.enforced.path}/pods?dryRun=All", greedy("dry"))
    return "env" in made["spec"]["containers"][0]


def _check(world: World, name: str, count: int) -> str:
    """Container, annotation and ledger say the same; the cards."""
    found = seen(world.enforced, name)
    annotations = world.enforced.get(name)["metadata"]["annotations"]
    assigned = annotations[ASSIGNED]
    assert len(set(assigned.split(","))) == count
    assert found == world.cards.wanted(assigned)
    gpus = until(
        "the reservation is confirmed",
        lambda: world.reserved(annotations[RESERVATION]),
        timeout_s=PATIENCE_S,
    )
    assert gpus == set(assigned.split(","))
    return str(assigned)


@pytest.mark.parametrize("count", [1, 3])
def test_a_pod_sees_the_cards_that_are_reserved_for_it(world: World, count: int) -> None:
    name = world.enforced.create(greedy(f"bare-{count}", {"gpu-count": str(count)}))
    _check(world, name, count)
    world.enforced.delete(name)


def test_named_cards_come_in_their_order(world: World) -> None:
    uuids = list(world.cards.files)
    named = ",".join((uuids[5], uuids[2]))
    name = world.enforced.create(greedy("named", {"gpu-uuids": named}))
    assert _check(world, name, 2) == named
    world.enforced.delete(name)


def test_all_cards_go_from_pod_to_pod_without_waiting_for_ordinary_rounds(world: World) -> None:
    """Without early challenges each release takes two ordinary ones."""
    asked, ordinary = world.challenges("release"), 0.0
    for number in range(RELAYS):
        name = world.enforced.create(greedy(f"relay-{number}", {"gpu-count": str(GPUS)}))
        _check(world, name, GPUS)
        world.enforced.delete(name)
        before = world.challenges("interval")
        until("its cards are free", lambda: not world.records(), timeout_s=PATIENCE_S)
        ordinary += world.challenges("interval") - before
    assert world.challenges("release") - asked >= RELAYS
    assert ordinary < 2 * RELAYS


@pytest.mark.parametrize("kind", ["deployments", "statefulsets", "jobs"])
def test_pods_of_controllers_see_theirs_and_nobody_elses(world: World, kind: str) -> None:
    label = f"some-{kind}"
    group = "batch" if kind == "jobs" else "apps"
    path = f"/apis/{group}/v1/namespaces/{ENFORCED}/{kind}"
    world.api.post(path, _workload(label, kind))
    names = until("its pods are there", lambda: _all_of(world, label), timeout_s=PATIENCE_S)
    given = [_check(world, name, 2) for name in names]
    assert len({gpu for gpus in given for gpu in gpus.split(",")}) == 2 * len(names)
    world.api.delete(f"{path}/{label}?propagationPolicy=Background")
    until("its pods are gone", lambda: not world.pods_of(label), timeout_s=PATIENCE_S)


def _all_of(world: World, label: str) -> list[str]:
    names = world.pods_of(label)
    return names if len(names) == 2 else []


def _workload(label: str, kind: str) -> Document:
    """Two pods with two cards each."""
    labels = {"app": label}
    made = greedy(label, {"gpu-count": "2"})
    template = {"metadata": {**made["metadata"], "labels": labels}, "spec": made["spec"]}
    del template["metadata"]["name"]
    spec: Document = {"template": template}
    if kind == "jobs":
        spec |= {"parallelism": 2, "completions": 2}
    else:
        template["spec"]["restartPolicy"] = "Always"
        spec |= {"replicas": 2, "selector": {"matchLabels": labels}}
    if kind == "statefulsets":
        spec |= {"serviceName": label, "podManagementPolicy": "Parallel"}
    return {"metadata": {"name": label}, "spec": spec}


def test_who_asks_for_nothing_sees_nothing(world: World) -> None:
    name = world.enforced.create(greedy("no-requirement"))
    assert seen(world.enforced, name) == Seen(None, "void", ())
    world.enforced.delete(name)


def test_a_requirement_without_a_gpu_sees_nothing_and_is_told_how_to_ask(world: World) -> None:
    """In a plain namespace, too, where an image's default shows every card."""
    world.api.post(f"{world.plain.path}/pods", greedy("level-alone", {"min-level": "L0"}))
    assert any("annotate the pod with gpuwarden.dev/gpu-count" in x for x in world.api.warnings)
    assert seen(world.plain, "level-alone") == Seen(None, "void", ())
    world.plain.delete("level-alone")


def test_past_the_binding_webhook_the_variable_is_empty_and_there_is_no_device(
    world: World,
) -> None:
    """Bound by hand where no webhook sees it, with a requirement that no scheduler can meet."""
    requirement = {"gpu-uuids": "GPU-00000000-0000-4000-8000-000000000000"}
    name = world.plain.create(greedy("past-the-webhook", requirement))
    bound = binding(name, world.lab.node.name)
    world.api.post(f"{world.plain.path}/pods/{name}/binding", bound)
    assert seen(world.plain, name) == Seen("", "", ())
    assert ASSIGNED not in world.plain.get(name)["metadata"]["annotations"]
    assert world.records() == []
    _is_told(world, name)
    world.plain.delete(name)
    until("it is over", lambda: _unreserved(world) == 0, timeout_s=PATIENCE_S)


def _is_told(world: World, name: str) -> None:
    """As an Event on the pod, in the metric, and in the audit log."""
    path = f"/apis/events.k8s.io/v1/namespaces/{PLAIN}/events?fieldSelector=reason%3DGpuUnreserved"

    def notes() -> list[str]:
        found = world.api.get(path)["items"]
        return [x["note"] for x in found if x["regarding"]["name"] == name]

    (note,) = until("it is told", notes, timeout_s=PATIENCE_S)
    assert "bound without a reservation and sees no GPU" in note
    assert _unreserved(world) == 1
    found = until("it is recorded", lambda: _mismatches(world), timeout_s=PATIENCE_S)
    assert found == [(f"pod/{PLAIN}/{name}", "unreserved")]


def _mismatches(world: World) -> list[tuple[str, str]]:
    found = [x for x in world.controller.records() if x["kind"] == "reservation.mismatch"]
    return [(x["subject"], x["decision"]) for x in found]


def _unreserved(world: World) -> float | None:
    return world.controller.metric('gpuwarden_gpu_use_faults{kind="unreserved"}')


def test_outside_of_all_this_the_same_container_sees_every_card(world: World) -> None:
    """What the others are kept from: the toolkit does give what an image asks for."""
    name = world.plain.create(greedy("unmanaged"))
    assert seen(world.plain, name) == world.cards.every
    world.plain.delete(name)


def test_an_annotation_for_cdi_gives_a_container_nothing(world: World) -> None:
    """kubelet hands containerd annotations of device plugins alone: no way for the agent."""
    document = pod("annotated", "gpus")
    document["metadata"]["annotations"] = {"cdi.k8s.io/gpus": f"{GPU_KIND}=all"}
    name = world.plain.create(document)
    assert seen(world.plain, name).files == ()
    world.plain.delete(name)
