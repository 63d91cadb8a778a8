"""Containers that outlive their pods on a real node: nobody gets their GPU while they run.

Kubelet, containerd and cgroups are real, the agent is the product's own process; the card is
the fake NVML library's, which is told which processes use it.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from controller.kube.nodes.nodes import ENFORCE_LABEL
from sandbox.nodes import CLUSTER, TRUST_DOMAIN
from sandbox.nvml.models import h100_sxm
from sandbox.nvml.scenario import Scenario
from tests.e2e.lab.api import ApiError
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.lab.waiting import until
from tests.e2e.product.cards import forget_cards
from tests.e2e.product.installation import Installation
from tests.e2e.product.namespaces import create_namespace, remove_namespace
from tests.e2e.product.pod_processes import process_of
from tests.e2e.product.rounds import rounds_of
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission
from tests.e2e.spire_world import OurAgent

pytestmark = [pytest.mark.usefixtures("real_node"), pytest.mark.timeout(300)]
NAMESPACE: Final = "outliving"
OBJECTS: Final = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
PATIENCE_S: Final = 90
GRACE_S: Final = 15
"""How long kubelet leaves a container that ignores SIGTERM alone."""
ROUNDS: Final = 6
"""Verified reports in which nothing changes: two are enough for a release."""


class World:
    """The real node with one card, behind the webhooks, and the node's own agent."""

    def __init__(self, lab: Lab, installation: Installation, webhooks: Webhooks) -> None:
        self.lab = lab
        self.api = lab.api
        self.node = lab.node.name
        self.kubelet = lab.node.kubelet
        self.gpuwarden = installation
        self.webhooks = webhooks
        self.pods = Namespace(lab.api, NAMESPACE)
        self.agent = self._agent()

    def show(self, *processes: int) -> None:
        """The card is used by these processes."""
        card = replace(h100_sxm(0, self.node), compute_pids=processes)
        self.agent.show(Scenario(cuda=12080, gpus=(card,)))

    def states(self) -> list[str]:
        """Of all holders of the card."""
        items = self.api.get(OBJECTS)["items"]
        return [holder["state"] for item in items for holder in item["spec"]["holders"]]

    def stubborn(self, name: str) -> int:
        """A pod that has the card and ends by force only; its process."""
        document = pod(name, "stay", terminationGracePeriodSeconds=GRACE_S)
        document["metadata"]["annotations"] = {"gpuwarden.dev/gpu-count": "1"}
        self.pods.create(document)
        self.pods.says(name, "staying", timeout_s=PATIENCE_S)
        self.wait_states("Confirmed")
        return process_of(self.pods.get(name)["metadata"]["uid"])

    def wait_states(self, *states: str) -> None:
        until(f"the card is {states}", lambda: self.states() == list(states), timeout_s=PATIENCE_S)

    def answer(self, name: str, how: str = "?dryRun=All") -> str:
        """What the binding webhook says about the pod on this node; empty where it lets it."""
        document: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"kind": "Node", "name": self.node},
        }
        try:
            self.api.post(f"{self.pods.path}/pods/{name}/binding{how}", document)
        except ApiError as error:
            return error.message
        return ""

    def force_delete(self, name: str) -> None:
        """Its object is gone at the end."""
        path = f"{self.pods.path}/pods/{name}"
        self.api.delete(path, grace_s=0)
        until(f"{name} is gone", lambda: self.api.found(path) is None, timeout_s=PATIENCE_S)

    def reports(self) -> int:
        """How many of the agent's reports were accepted so far."""
        (one,) = self.gpuwarden.controllers
        return rounds_of(one.endpoint.ops).judged["ACCEPTED"]

    def _agent(self) -> OurAgent:
        workloads = self.gpuwarden.workload_api
        (controller,) = self.gpuwarden.controllers
        workload_api = workloads.add(
            "agent", f"spiffe://{TRUST_DOMAIN}/gpuwarden/agent/{self.node}"
        )
        socket = self.lab.node.capsule.path("/var/lib/kubelet/pod-resources/kubelet.sock")
        return OurAgent(
            self.gpuwarden.site,
            self.node,
            workload_api,
            str(controller.agents),
            trust_domain=TRUST_DOMAIN,
            cluster=CLUSTER,
            kubeletSocket=str(socket),
        )


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[World]:
    served = admission(lab)
    served.id_keys = lab.folder / "outliving-id-keys"
    served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
    installation = Installation(lab, "outliving", admission=served, policy={"defaultMode": "env"})
    made = World(lab, installation, Webhooks(lab, served, PODS, BINDINGS))
    try:
        create_namespace(lab, NAMESPACE, {ENFORCE_LABEL: "true"})
        forget_cards(lab)
        installation.start()
        made.agent.start()
        (one,) = installation.controllers
        until("the node is eligible", lambda: one.nodes("eligible"), timeout_s=PATIENCE_S)
        made.webhooks.register()
        until("pods are injected", lambda: _is_injected(made), timeout_s=PATIENCE_S)
        yield made
    finally:
        made.webhooks.remove()
        remove_namespace(lab, NAMESPACE)
        installation.close()
        forget_cards(lab)


@pytest.fixture
def candidate(world: World) -> Iterator[str]:
    """A pod that no scheduler places: it would take the card."""
    document = pod("candidate", "say", "here", kind="nowhere")
    document["metadata"]["annotations"] = {"gpuwarden.dev/gpu-count": "1"}
    yield world.pods.create(document)
    world.force_delete("candidate")
    world.wait_states()


def _is_injected(world: World) -> bool:
    made = world.api.post(f"{world.pods.path}/pods?dryRun=All", pod("dry", "pause"))
    return "env" in made["spec"]["containers"][0]


def _is_alive(process: int) -> bool:
    """A zombie is none."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _kept(world: World, candidate: str, is_enough: Callable[[], bool], process: int) -> int:
    """Until it is enough, each answer before which the process lived is no; how many."""
    refused = 0
    while not is_enough():
        answer = world.answer(candidate)
        if not _is_alive(process):
            break
        assert "GPU_BUSY" in answer
        refused += 1
    return refused


@pytest.mark.parametrize("uses", [True, False], ids=["uses its card", "has it only"])
def test_a_pod_deleted_by_force_that_ignores_sigterm(
    world: World, candidate: str, uses: bool
) -> None:
    """A container that has not opened its card yet may do so at any moment."""
    process = world.stubborn("stubborn")
    world.show(*([process] if uses else []))
    world.force_delete("stubborn")
    refused = _kept(world, candidate, lambda: not _is_alive(process), process)
    assert refused
    world.show()
    until("the card is free", lambda: world.answer(candidate) == "", timeout_s=PATIENCE_S)
    assert world.states() == []
    assert world.answer(candidate, how="") == ""


def test_pods_deleted_while_kubelet_is_stopped(world: World, candidate: str) -> None:
    process = world.stubborn("cut-off")
    world.show(process)
    world.kubelet.stop()
    try:
        world.api.delete(f"{world.pods.path}/pods/cut-off")
        _stays_so(world, candidate, process)
        assert world.states() == ["Confirmed"]
        world.force_delete("cut-off")
        world.wait_states("Releasing")
        _stays_so(world, candidate, process)
        assert world.states() == ["Releasing"]
        os.kill(process, signal.SIGKILL)
        world.show()
    finally:
        world.kubelet.resume_service()
    until("the card is free", lambda: world.answer(candidate) == "", timeout_s=PATIENCE_S)


def test_a_container_without_a_gpu_context_while_kubelet_is_stopped(
    world: World, candidate: str
) -> None:
    """Neither the driver nor kubelet tells of it, only the cgroups of the node's processes do."""
    process = world.stubborn("idle")
    world.kubelet.stop()
    try:
        world.force_delete("idle")
        world.wait_states("Releasing")
        _stays_so(world, candidate, process)
        assert world.states() == ["Releasing"]
    finally:
        world.kubelet.resume_service()
    until("the card is free", lambda: world.answer(candidate) == "", timeout_s=PATIENCE_S)
    assert not _is_alive(process)


def _stays_so(world: World, candidate: str, process: int) -> None:
    """For some reports of the node."""
    until_round = world.reports() + ROUNDS
    assert _kept(world, candidate, lambda: world.reports() >= until_round, process)
    assert _is_alive(process)
