"""A protected node, on a real kubelet with NVIDIA's container toolkit: who cannot run there.

Everything that a pod of an unlabelled namespace may try to get at the cards is tried, then the
same once more where protection is off; and what is promised of the cards in both cases.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from controller.kube.nodes.nodes import ENFORCE_LABEL
from controller.placement.keys import MANAGED_TAINT
from tests.e2e.lab.api import ApiError, Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace
from tests.e2e.lab.waiting import until
from tests.e2e.product.cards import PATIENCE_S, Cards, forget_cards, greedy, seen
from tests.e2e.product.command_line import asked
from tests.e2e.product.controller import Admission
from tests.e2e.product.installation import Installation, apply
from tests.e2e.product.namespaces import create_namespace, remove_namespace
from tests.e2e.product.pods import told
from tests.e2e.product.policies import POLICIES, POLICY_BINDINGS, binding
from tests.e2e.product.stage import Stage
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission

pytestmark = pytest.mark.usefixtures("real_node")
ENFORCED, PLAIN = "protected-team", "protected-plain"
GPU: Final = "nvidia.com/gpu.shared"
"""As NVIDIA's device plugin calls shared cards. Not `nvidia.com/gpu`: what a plugin that is gone
had under a name, kubelet takes off the node for minutes, whoever advertises it again."""
ASSIGNED: Final = "gpuwarden.dev/gpu-uuids-assigned"
GIVEN, LIMIT = "gpuwarden.dev/guarantee-given", "gpuwarden.dev/guarantee-limit"
TAINT: Final = {"key": MANAGED_TAINT, "effect": "NoExecute"}
TOLERATION: Final = {"key": MANAGED_TAINT, "operator": "Exists", "effect": "NoExecute"}
WILDCARD: Final = {"operator": "Exists"}
OBJECTS: Final = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
MANAGED: Final = {"managedResources": ["nvidia.com/gpu", GPU]}
POLICY: Final = {"defaultMode": "env", "pools": [{"pattern": "*", "honoursVariable": True}]}


class World:
    """The real node with its cards, and a controller that believes it is protected."""

    def __init__(self, lab: Lab, installation: Installation, served: Admission) -> None:
        self.lab = lab
        self.api = lab.api
        self.gpuwarden = installation
        self.served = served
        self.cards = Cards(lab, 8)
        self.enforced = Namespace(lab.api, ENFORCED)
        self.plain = Namespace(lab.api, PLAIN)
        self.node = f"/api/v1/nodes/{lab.node.name}"

    def taint(self, *taints: Document) -> None:
        self.api.patch(self.node, {"spec": {"taints": list(taints)}})

    def offer(self, gpus: str | None) -> None:
        """An extended resource, advertised as the administrator of any cluster can."""
        amounts = {"capacity": {GPU: gpus}, "allocatable": {GPU: gpus}}
        self.api.patch(f"{self.node}/status", {"status": amounts})

    def set_protection(self, value: str) -> None:
        """Have the controller start again with this setting."""
        self.served.settings = {**MANAGED, "protection": value}
        with Stage(self.lab, self.gpuwarden).without_controllers():
            pass

    def says_node(self) -> str:
        """`gpuwarden node show`, without the ends of its lines."""
        (controller,) = self.gpuwarden.controllers
        server = f"unix:{controller.local}"
        command = [sys.executable, "-m", "gpuwarden.cli", "node", "show", self.lab.node.name]
        done = subprocess.run(
            [*command, "--server", server], capture_output=True, text=True, check=True
        )
        return " ".join(done.stdout.split())

    def wait_promise(self, text: str) -> None:
        until(f"the node promises {text}", lambda: text in self.says_node(), timeout_s=PATIENCE_S)

    def promised(self, name: str) -> tuple[str, str | None]:
        """What a pod of the enforced namespace with one card is told; it sees that card only."""
        self.enforced.create(greedy(name, {"gpu-count": "1"}))
        found = seen(self.enforced, name)
        annotations = self.enforced.get(name)["metadata"]["annotations"]
        assert found == self.cards.wanted(annotations[ASSIGNED])
        self.enforced.delete(name)
        until("the card is free", lambda: not self.api.get(OBJECTS)["items"], timeout_s=PATIENCE_S)
        return annotations[GIVEN], annotations.get(LIMIT)

    def checked(self, name: str) -> set[str]:
        """`gpuwarden protection check`, once it knows the pod; none before."""
        (controller,) = self.gpuwarden.controllers
        _, found = asked(controller, "protection", "check", self.lab.node.name)
        listed = {f"{x['namespace']}/{x['name']}" for x in found["pods"]}
        return listed if f"{PLAIN}/{name}" in listed else set()

    def on_node(self) -> set[str]:
        """Pods on the node that nobody ends."""
        query = f"fieldSelector=spec.nodeName%3D{self.lab.node.name}"
        found = [x["metadata"] for x in self.api.get(f"/api/v1/pods?{query}")["items"]]
        return {f"{x['namespace']}/{x['name']}" for x in found if "deletionTimestamp" not in x}

    def bind(self, name: str) -> None:
        """By hand."""
        document = binding(name, self.lab.node.name)
        self.api.post(f"{self.plain.path}/pods/{name}/binding", document)

    def tolerate(self, name: str, toleration: Document) -> None:
        """Add a toleration to a pod that waits."""
        path = f"{self.plain.path}/pods/{name}"
        there = self.api.get(path)["spec"].get("tolerations", [])
        self.api.patch(path, {"spec": {"tolerations": [*there, toleration]}})


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[World]:
    served = admission(lab)
    served.id_keys = lab.folder / "protection-id-keys"
    served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
    served.settings = {**MANAGED, "protection": "cluster"}
    installation = Installation(lab, "protection", admission=served, policy=POLICY)
    webhooks = Webhooks(lab, served, PODS, BINDINGS)
    world = World(lab, installation, served)
    try:
        create_namespace(lab, ENFORCED, {ENFORCE_LABEL: "true"})
        create_namespace(lab, PLAIN)
        world.cards.forget_cards()
        installation.start()
        installation.agents.start(world.cards.hardware)
        installation.agents.hash_of(lab.node.name)
        webhooks.register()
        world.offer("2")
        with world.cards.given():
            until("pods are injected", lambda: _is_injected(world), timeout_s=PATIENCE_S)
            yield world
    finally:
        webhooks.remove()
        for name in (ENFORCED, PLAIN):
            remove_namespace(lab, name)
        world.offer(None)
        installation.close()
        forget_cards(lab)


def _is_injected(world: World) -> bool:
    made = world.api.post(f"{world.enforced.path}/pods?dryRun=All", greedy("dry"))
    return "env" in made["spec"]["containers"][0]


@pytest.fixture(scope="class")
def protected(world: World) -> Iterator[None]:
    """The node has the taint, and nobody else tolerates it."""
    apply(world.lab, "policy/protection")
    until("the policy is in force", lambda: not _may_tolerate(world), timeout_s=PATIENCE_S)
    world.taint(TAINT)
    world.wait_promise("exact")
    yield
    world.taint()
    for kind in (POLICY_BINDINGS, POLICIES):
        world.api.delete(f"{kind}/gpuwarden-protection")
    until("the policy is gone", lambda: _may_tolerate(world), timeout_s=PATIENCE_S)


def _may_tolerate(world: World) -> bool:
    probe = greedy("probe", tolerations=[TOLERATION])
    try:
        world.api.post(f"{world.plain.path}/pods?dryRun=All", probe)
    except ApiError as error:
        assert "BYPASS_TOLERATION" in error.message  # noqa: PT017 -- another error is a failure
        return False
    return True


def _requesting(name: str) -> Document:
    document = greedy(name)
    document["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    return document


def _requiring(name: str) -> Document:
    return greedy(name, {"gpu-count": "1"})


def _unscheduled(name: str) -> Document:
    return greedy(name, schedulerName="nobody")


@contextmanager
def _waiting(world: World, document: Document) -> Iterator[str]:
    name = world.plain.create(document)
    try:
        yield name
    finally:
        world.api.delete(f"{world.plain.path}/pods/{name}", grace_s=0)


BY_SCHEDULER: Final = {"request": _requesting, "image": greedy, "requirement": _requiring}


@pytest.mark.usefixtures("protected")
class TestProtected:
    @pytest.mark.parametrize("how", BY_SCHEDULER)
    def test_no_scheduler_sends_a_pod_there(self, world: World, how: str) -> None:
        with _waiting(world, BY_SCHEDULER[how](f"by-{how}")) as name:
            told(world.plain, name, "untolerated taint", timeout_s=PATIENCE_S)
            assert "nodeName" not in world.plain.get(name)["spec"]

    def test_nor_is_it_chosen_by_name(self, world: World) -> None:
        with pytest.raises(ApiError, match="gpuwarden: BYPASS_NODE_NAME"):
            world.plain.create(greedy("by-name", nodeName=world.lab.node.name))

    def test_a_binding_made_by_hand_starts_nothing(self, world: World) -> None:
        start = world.api.get(f"{world.plain.path}/pods")["metadata"]["resourceVersion"]
        with _waiting(world, _unscheduled("by-hand")) as name:
            world.bind(name)
            until("the pod is rejected", lambda: _is_over(world, name), timeout_s=PATIENCE_S)
            history = _history(world, name, start)
        assert any(each["spec"].get("nodeName") for each in history)
        assert [state for each in history for state in _started(each)] == []

    @pytest.mark.parametrize("toleration", [TOLERATION, WILDCARD], ids=["named", "wildcard"])
    def test_a_toleration_comes_neither_later_nor_at_once(
        self, world: World, toleration: Document
    ) -> None:
        with pytest.raises(ApiError, match="gpuwarden: BYPASS_TOLERATION"):
            world.plain.create(greedy("tolerant", tolerations=[toleration]))
        with _waiting(world, greedy("later")) as name:
            with pytest.raises(ApiError, match="gpuwarden: BYPASS_TOLERATION"):
                world.tolerate(name, toleration)
            assert "nodeName" not in world.plain.get(name)["spec"]

    def test_who_is_admitted_gets_exactly_what_was_reserved(self, world: World) -> None:
        assert world.promised("exact") == ("exact", None)

    def test_a_node_without_the_taint_promises_no_more_than_itself(self, world: World) -> None:
        world.taint()
        try:
            limit = "the node lacks the taint gpuwarden.dev/managed:NoExecute"
            world.wait_promise(f"node, no more: {limit}")
            assert world.promised("untainted") == ("node", limit)
        finally:
            world.taint(TAINT)


def _is_over(world: World, name: str) -> bool:
    """Rejected by kubelet, or taken away by the taint's eviction before."""
    found = world.api.found(f"{world.plain.path}/pods/{name}")
    return found is None or found["status"].get("phase") == "Failed"


def _history(world: World, name: str, start: str) -> list[Document]:
    """Every state that the pod was stored in."""
    query = f"watch=true&resourceVersion={start}&timeoutSeconds=1"
    lines = world.api.text(f"{world.plain.path}/pods?{query}").splitlines()
    found = [json.loads(line)["object"] for line in lines]
    return [each for each in found if each["metadata"]["name"] == name]


def _started(pod: Document) -> list[Any]:
    """States of containers that ran; of one that never did kubelet says that it has ended, too."""
    states = [x.get("state", {}) for x in pod["status"].get("containerStatuses", [])]
    return [x for x in states if "running" in x or x.get("terminated", {}).get("startedAt")]


@pytest.fixture(scope="class")
def unprotected(world: World) -> None:
    """A controller with the setting of a fresh installation."""
    world.set_protection("namespaces")
    world.wait_promise("node, no more: protection is off")


@pytest.mark.usefixtures("unprotected")
class TestUnprotected:
    """The same pods, where protection is off."""

    @pytest.mark.parametrize("how", BY_SCHEDULER)
    def test_the_scheduler_sends_them_there(self, world: World, how: str) -> None:
        self._runs(world, BY_SCHEDULER[how](f"free-by-{how}"))

    def test_a_node_is_chosen_by_name(self, world: World) -> None:
        self._runs(world, greedy("free-by-name", nodeName=world.lab.node.name))

    def test_a_binding_made_by_hand_starts_the_pod(self, world: World) -> None:
        self._runs(world, _unscheduled("free-by-hand"), world.bind)

    def test_a_toleration_may_come_later(self, world: World) -> None:
        def tolerate_and_bind(name: str) -> None:
            world.tolerate(name, TOLERATION)
            world.bind(name)

        self._runs(world, _unscheduled("free-tolerant"), tolerate_and_bind)

    def test_the_check_lists_those_whom_the_taint_then_evicts(self, world: World) -> None:
        goes = world.plain.create(greedy("goes", nodeName=world.lab.node.name))
        stays = world.plain.create(
            greedy("stays", nodeName=world.lab.node.name, tolerations=[TOLERATION])
        )
        for name in (goes, stays):
            world.plain.phase(name, "Running", timeout_s=PATIENCE_S)
        listed = until("the check knows it", lambda: world.checked(goes), timeout_s=PATIENCE_S)
        others = world.on_node() - listed
        assert f"{PLAIN}/{stays}" in others
        world.taint(TAINT)
        try:
            until(
                "all of them are evicted",
                lambda: not listed & world.on_node(),
                timeout_s=PATIENCE_S,
            )
            assert others <= world.on_node()
        finally:
            world.taint()
        world.plain.delete(stays)

    def test_who_is_admitted_is_promised_the_node_and_no_more(self, world: World) -> None:
        assert world.promised("plain-node") == ("node", "protection is off")

    def _runs(
        self,
        world: World,
        document: Document,
        then: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """The pod runs, and sees every card where no requirement of its own has it see one."""
        name = world.plain.create(document)
        then(name)
        found = seen(world.plain, name)
        assigned = world.plain.get(name)["metadata"].get("annotations", {}).get(ASSIGNED)
        assert found == (world.cards.wanted(assigned) if assigned else world.cards.every)
        world.plain.delete(name)
