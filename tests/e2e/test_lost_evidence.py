"""A node that loses its evidence between filter and bind gets no pod, whatever was decided before.

Real scheduler, real API server, and real SPIRE, so that two nodes are verified at level L1. What
stands between API server and controller holds the call to the binding webhook until it has
happened.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pytest
import yaml

from controller.kube.nodes.nodes import ENFORCE_LABEL
from sandbox.laptop import Pace
from sandbox.nodes import CLUSTER
from sandbox.nvml.models import h100_sxm
from sandbox.nvml.scenario import Scenario
from tests.e2e.lab.api import Document
from tests.e2e.lab.build import built
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace
from tests.e2e.lab.selection import why_no_spire
from tests.e2e.lab.spire_domain import SpireDomain
from tests.e2e.lab.spire_server import TRUST_DOMAIN
from tests.e2e.lab.waiting import until
from tests.e2e.product.between import Between, Call, Moment, passes
from tests.e2e.product.command_line import decide
from tests.e2e.product.controller import Controller
from tests.e2e.product.installation import Installation
from tests.e2e.product.ledger import Held, forget_records, held
from tests.e2e.product.namespaces import create_namespace, remove_namespace
from tests.e2e.product.pods import managed, told
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission
from tests.e2e.spire_world import CONTROLLER, HOME, SELECTOR, OurAgent, agent_id

pytestmark = pytest.mark.skipif(
    bool(why_no_spire()), reason=f"no SPIRE: {'; '.join(why_no_spire())}"
)
NAMESPACE: Final = "unsure"
NODES: Final = ("unsure-0", "unsure-1")
HERE: Final = {"unsure": "yes"}
BINDING_WEBHOOK: Final = "/mutate/bindings"
DENIED: Final = 'admission webhook "enforced.bindings.gpuwarden.dev" denied the request'
CARDS: Final = 4
"""Of each node: what a test has held is not waited for by the next one."""
REQUIREMENTS: Final = {"gpu-count": "1", "min-level": "L1"}
POLICY: Final = {"defaultMode": "env", "attestors": {"x509pop": {"selectors": [SELECTOR]}}}
BINDING_S: Final = 30
"""How long the API server waits for the binding webhook here: the most that there is."""
PACE: Final = Pace(interval_s=1, challenge_ttl_s=2, lease_s=6)
PATIENCE_S: Final = 90


class Hold:
    """Holds the binding webhook's first call about a pod until it is let go."""

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self._asked = threading.Event()
        self._over = threading.Event()
        self._node = ""

    def __call__(self, moment: Moment, call: Call) -> float | None:
        if (
            moment is Moment.ASKED
            and call.path.startswith(BINDING_WEBHOOK)
            and not self._asked.is_set()
        ):
            request = call.document()["request"]
            if request["name"] == self._pod:
                self._node = request["object"]["target"]["name"]
                self._asked.set()
                self._over.wait(BINDING_S)
        return 0.0

    def node(self) -> str:
        """The node that the scheduler has chosen."""
        assert self._asked.wait(PATIENCE_S), "the binding webhook was not called"
        return self._node

    def let_go(self) -> None:
        self._over.set()


class World:
    """An enforced namespace, one controller, and two nodes with SPIRE agents of their own."""

    def __init__(
        self, lab: Lab, installation: Installation, between: Between, domain: SpireDomain
    ) -> None:
        self.api = lab.api
        self.between = between
        self.domain = domain
        self.pods = Namespace(lab.api, NAMESPACE)
        self.gpuwarden = installation
        self.agents: dict[str, OurAgent] = {}

    @property
    def controller(self) -> Controller:
        (one,) = self.gpuwarden.controllers
        return one

    def add_agent(self, node: str) -> None:
        """Ours, with the identity that the node's SPIRE agent gives it."""
        agent = OurAgent(
            self.gpuwarden.site,
            node,
            self.domain.agents[node].workload_api,
            str(self.controller.agents),
            cluster=CLUSTER,
        )
        agent.show(Scenario(cuda=12080, gpus=tuple(h100_sxm(n, node) for n in range(CARDS))))
        agent.start()
        self.agents[node] = agent

    def wait_state(self, state: str, count: int) -> None:
        until(
            f"{count} nodes are {state}",
            lambda: self.controller.nodes(state) == count,
            timeout_s=PATIENCE_S,
        )

    def deny_card_of(self, *nodes: str) -> None:
        """Let the policy deny a card of these nodes, and of no others."""
        denied = [h100_sxm(0, node).uuid for node in nodes]
        path = self.gpuwarden.site.folder / "policy.yaml"
        made: Document = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({**made, "deniedKeys": denied}))

    def held_by(self, uid: str) -> list[Held]:
        return [x for x in held(self.api) if x.pod == uid]

    def decisions(self, uid: str) -> list[tuple[str, str, list[str]]]:
        """What the audit log has of the binding webhook about the pod: node, decision and codes."""
        found = [x for x in self.controller.records() if x["kind"] == "bind.decision"]
        return [
            (x["refs"]["node"], x["decision"], x["codes"]) for x in found if x["refs"]["uid"] == uid
        ]

    def allowed(self, uid: str) -> list[str]:
        """The nodes to which the binding webhook let the pod go."""
        return [node for node, decision, _ in self.decisions(uid) if decision == "allowed"]


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[World]:
    domain = SpireDomain(lab.beside("unsure-spire", built(["spire"])))
    domain.server.start()
    home = domain.attest(HOME, "of-no-node-here")
    domain.server.register(CONTROLLER, domain.parents[HOME], SELECTOR)
    served = admission(lab)
    served.id_keys = lab.folder / "unsure-id-keys"
    served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
    served.settings = {
        "trustDomain": TRUST_DOMAIN,
        "workloadApi": home.workload_api,
        "spire": {"server": domain.server.address, "poll": "500ms"},
    }
    between = Between(lab, lab.folder)
    installation = Installation(
        lab, "unsure", pace=PACE, admission=served, policy=POLICY, between=between
    )
    webhooks = Webhooks(lab, served, PODS, BINDINGS)
    made = World(lab, installation, between, domain)
    try:
        create_namespace(lab, NAMESPACE, {ENFORCE_LABEL: "true"})
        installation.start()
        for name in NODES:
            node = lab.fake_nodes.add(name, gpus=0, labels=HERE)
            domain.attest(name, node["metadata"]["uid"])
            domain.server.register(agent_id(name), domain.parents[name], SELECTOR)
            made.add_agent(name)
        webhooks.register(timeout_s=BINDING_S)
        until("pods are injected", lambda: _is_injected(made), timeout_s=PATIENCE_S)
        yield made
    finally:
        between.watcher = passes
        webhooks.remove()
        remove_namespace(lab, NAMESPACE)
        installation.close()
        between.close()
        for agent in (*domain.agents.values(), domain.server):
            agent.kill()
        forget_records(lab.api)
        for name in lab.fake_nodes.names.intersection(NODES):
            lab.fake_nodes.delete(name)


def _is_injected(world: World) -> bool:
    made = world.api.post(f"{world.pods.path}/pods?dryRun=All", managed("dry", {}, gpus=0))
    return "env" in made["spec"]["containers"][0]


@dataclass(frozen=True, slots=True)
class Loss:
    """One way in which a node loses its evidence, and the way back."""

    name: str
    code: str
    text: str
    """In the event, behind the code."""
    state: str
    """The node's, from then on."""
    cause: Callable[[World, str], None]
    repair: Callable[[World, str], None]


LOSSES: Final = (
    Loss(
        "an operator quarantines it",
        "NODE_QUARANTINED",
        "node is quarantined until an operator acts",
        "quarantined",
        lambda world, node: decide(world.controller, "quarantine", node),
        lambda world, node: decide(world.controller, "release", node),
    ),
    Loss(
        "its evidence is refused",
        "NODE_REFUSED",
        "evidence refused (GPU_DENIED)",
        "revoked",
        lambda world, node: world.deny_card_of(node),
        lambda world, _node: world.deny_card_of(),
    ),
    Loss(
        "its agent is gone",
        "NODE_STALE",
        "attestation is stale",
        "stale",
        lambda world, node: world.agents[node].kill(),
        lambda world, node: world.agents[node].resume_service(),
    ),
    Loss(
        "its SPIRE agent is banned",
        "NODE_REFUSED",
        "evidence refused (SPIRE_AGENT_BANNED)",
        "revoked",
        lambda world, node: world.domain.server.ban(world.domain.parents[node]),
        lambda world, node: world.domain.readmit(node),
    ),
)


@contextmanager
def holding(world: World, pod: str) -> Iterator[Hold]:
    """The binding webhook's first call about the pod is held, at most until the end."""
    hold = Hold(pod)
    world.between.watcher = hold
    try:
        yield hold
    finally:
        hold.let_go()
        world.between.watcher = passes


@contextmanager
def lost(world: World, loss: Loss, node: str) -> Iterator[None]:
    """The node has no evidence that counts, and the controller knows it; until the end."""
    loss.cause(world, node)
    try:
        world.wait_state(loss.state, 1)
        yield
    finally:
        loss.repair(world, node)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_it_is_refused_at_bind_and_the_pod_goes_elsewhere(world: World, loss: Loss) -> None:
    name = f"train-{LOSSES.index(loss)}"
    world.wait_state("eligible", len(NODES))
    with holding(world, name) as hold:
        world.pods.create(managed(name, REQUIREMENTS, gpus=0, where=HERE))
        uid = world.pods.get(name)["metadata"]["uid"]
        node = hold.node()
        (other,) = set(NODES) - {node}
        with lost(world, loss, node):
            assert world.held_by(uid) == []
            hold.let_go()
            reason = f"{DENIED}: gpuwarden: {loss.code} {loss.text}"
            told(world.pods, name, reason, timeout_s=PATIENCE_S)
            assert world.pods.node_of(name, timeout_s=PATIENCE_S) == other
            until(
                "its GPU is confirmed, on the other node alone",
                lambda: [(x.node, x.state) for x in world.held_by(uid)] == [(other, "Confirmed")],
                timeout_s=PATIENCE_S,
            )
            until("the last answer is on record", lambda: world.allowed(uid))
            assert world.decisions(uid)[0] == (node, "refused", [loss.code])
            assert set(world.allowed(uid)) == {other}  # a slow answer is asked for again
