"""The shipped manifests with identities from a real SPIRE: the real node is verified at L1.

SPIRE server with `k8s_psat`, SPIRE agent as a DaemonSet with the `k8s` workload attestor, entries
as deploy/spire has them, images by digest, a device plugin, the dedicated scheduler. Only the GPUs
are made up.
"""

import json
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path

import pytest
from cryptography.x509 import DNSName, SubjectAlternativeName, load_pem_x509_certificate

from sandbox.fleet.tally import metrics_of
from tests.builders.console_commands import typed, words
from tests.contracts.pod_resources import DEVICES, RESOURCE
from tests.e2e.lab.build import built
from tests.e2e.lab.cluster_spire import ClusterSpire
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.machine import missing
from tests.e2e.lab.place import free_port
from tests.e2e.lab.product_images import NEEDS
from tests.e2e.lab.selection import why_no_spire
from tests.e2e.lab.upstreams import GRPCURL
from tests.e2e.lab.waiting import until
from tests.e2e.product.deployed import REPLICAS, Document
from tests.e2e.product.entries import AGENT, CONTROLLER, shipped_entries
from tests.e2e.product.pod_processes import pid_in_node, process_of
from tests.e2e.product.pods import refusals
from tests.e2e.product.rounds import Rounds, Told, settled_rounds
from tests.e2e.product.with_spire import IMAGE, TLS, World, installed, scenario

pytestmark = [
    pytest.mark.usefixtures("real_node"),
    pytest.mark.skipif(bool(why_no_spire()), reason=f"no SPIRE: {'; '.join(why_no_spire())}"),
    pytest.mark.timeout(1800),  # a first build, on a busy machine
]
BAN_S = 15.0
"""A ban must be effective by then, at the default interval."""
NOT_PLACED = ("NODE_REFUSED", "CONTROLLER_NOT_READY", "/filter")
"""What a pod is told meanwhile: before a controller knows that its own SPIRE agent is banned,
before its Service knows, and after that.
"""


@pytest.fixture(scope="module")
def world(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if reasons := missing(NEEDS):
        pytest.skip(f"no images: {'; '.join(reasons)}")
    spire = ClusterSpire(lab)
    spire.start()
    with installed(lab, spire, tmp_path_factory.mktemp("with-spire")) as world:
        yield world
    world.cluster.clear()
    world.cluster.kubectl("delete", "secret", TLS)
    spire.close()


def test_kubectl_exec_shows_the_node_at_l1_in_both_replicas(world: World) -> None:
    world.verified()
    for replica in range(REPLICAS):
        table = world.cluster.gpuwarden(replica, "nodes").splitlines()
        (line,) = (x.split() for x in table if x.startswith(world.lab.node.name))
        assert line[1:4] == ["eligible", "L1", str(len(DEVICES))]


def test_the_shipped_entry_gives_the_controllers_their_dns_names(world: World) -> None:
    """So that `grpcurl -cacert` verifies them, as docs/inspect-grpc.md says."""
    world.verified()
    wanted = shipped_entries(world.lab.node.name)[CONTROLLER].dns
    for pod in world.cluster.pods("controller"):
        pem = ssl.get_server_certificate((pod["status"]["podIP"], 9443), timeout=60)
        names = load_pem_x509_certificate(pem.encode()).extensions.get_extension_for_class(
            SubjectAlternativeName
        )
        assert names.value.get_values_for_type(DNSName) == list(wanted)


PAGE = "docs/inspect-grpc.md"
ADDRESS, FORWARDED = "localhost:9443", "9443:9443"
"""On the page; here the port is another, which nobody else has."""


@contextmanager
def forwarded(world: World, home: Path) -> Iterator[str]:
    """The page's `kubectl port-forward`; the address at which the controller is then."""
    (command,) = typed(PAGE, "kubectl")
    port = free_port("127.0.0.1")
    arguments = [x.replace(FORWARDED, f"{port}:9443") for x in words(command)]
    process = subprocess.Popen(
        [world.lab.site.programs["kubectl"], *arguments],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KUBECONFIG": str(world.lab.kubeconfig),
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        try:
            assert f":{port} -> 9443" in process.stdout.readline()
            yield f"localhost:{port}"
        finally:
            process.terminate()


def test_the_page_leads_people_to_a_controller_of_a_cluster(world: World, tmp_path: Path) -> None:
    """docs/inspect-grpc.md over the network, as it is written there: an operator's SVID, minted."""
    node = world.verified()["name"]
    (mint,) = (x for x in typed(PAGE, "spire-server") if x.startswith("x509 mint"))
    folder = tmp_path / "alice"
    folder.mkdir(mode=0o700)
    as_operator = [x.replace("/inspector/", "/operator/") for x in words(mint)]
    world.spire.server.cli(*(str(folder) if x == "alice" else x for x in as_operator))
    program = built([GRPCURL])[GRPCURL]
    with forwarded(world, tmp_path) as address:

        def says(command: str) -> str:
            here = [x.replace("gpu-1", node).replace(ADDRESS, address) for x in words(command)]
            done = subprocess.run(
                [program, *here],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, ""), command
            return done.stdout

        said = {x.split()[-1]: says(x) for x in typed(PAGE, GRPCURL) if "-cacert" in x}
    service = "gpuwarden.wire.v1.FleetService"
    assert {service, "gpuwarden.wire.v1.AttestationService"} <= set(said["list"].split())
    assert "rpc ListNodes" in said[service]
    (listed,) = json.loads(said[f"{service}/ListNodes"])["nodes"]
    assert (listed["name"], listed["level"]) == (node, "L1")
    assert json.loads(said[f"{service}/GetNode"])["node"]["name"] == node
    assert {x["uuid"] for x in json.loads(said[f"{service}/ListGpus"])["gpus"]} == set(DEVICES)
    assert json.loads(said["grpc.health.v1.Health/Check"]) == {"status": "SERVING"}
    assert "RMA 4711" in said["gpuwarden.wire.v1.OperatorService/QuarantineNode"]
    world.cluster.gpuwarden(0, "node", "release", node, "--reason", "page", "--yes")
    world.verified()


def test_what_a_managed_pod_holds_is_in_verified_evidence(world: World) -> None:
    required = world.verified()["attestationHash"]
    name = world.lab.pods.create(world.wanting("holder", required))
    try:
        world.lab.pods.phase(name, "Running", timeout_s=60)
        uid = world.lab.pods.get(name)["metadata"]["uid"]
        process = pid_in_node(process_of(uid))
        world.cluster.show(scenario(process))
        used = until("its process is seen", lambda: world.shown(0)["use"].get("processes"))
        assert [(x["pid"], x["podUid"]) for x in used] == [(process, uid)]
        (held,) = until("it is seen", lambda: world.shown(0)["use"].get("allocations"))
        assert (held["namespace"], held["pod"], held["container"]) == ("default", name, "main")
        assert (held["resource"], held["uuid"]) == (RESOURCE, held["device"])
        assert held["device"] in DEVICES
    finally:
        world.cluster.show(scenario())
        world.lab.pods.delete(name)
    until("it is free again", lambda: not world.shown(0)["use"].get("allocations"))


def test_an_entry_for_another_image_or_any_account_is_refused(world: World) -> None:
    world.verified()
    other = f"{IMAGE}{world.images[AGENT].partition('@')[0]}@sha256:{'0' * 64}"
    selectors = shipped_entries(world.lab.node.name)[AGENT].selectors
    added = []
    for wrong, code in (
        ([*selectors, other], "AGENT_IMAGE_DENIED"),
        ([selectors[0], f"{IMAGE}{world.images[AGENT]}"], "SPIRE_ENTRY_WEAK"),
    ):
        added.append(world.add(AGENT, wrong))
        world.refused(code)
    for entry in added:
        world.spire.server.unregister(entry)
    world.verified()


class Load:
    """Managed pods one after the other; each has its GPU before the next comes."""

    def __init__(self, world: World, required: str) -> None:
        self._world = world
        self._required = required
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.placed = 0
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(90)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        pods = self._world.lab.pods
        while not self._over.is_set():
            name = pods.create(self._world.wanting(f"load-{self.placed}", self._required))
            pods.node_of(name, 60)
            pods.delete(name)
            self.placed += 1


def test_a_rolling_update_under_load_loses_at_most_one_round(world: World, tmp_path: Path) -> None:
    """Each replica tells all the time of the same verified node, on which pods are placed.

    Rounds are counted by their challenges: at most the one that the old agent did not answer any
    more is lost, and none is refused.
    """
    required = world.verified()["attestationHash"]
    (old,) = world.cluster.pods("agent")
    replicas = world.operations()
    before = [settled_rounds(x) for x in replicas]
    load = Load(world, required)
    with ExitStack() as watches:
        told = [Told(world.cluster, n, tmp_path / f"{n}") for n in range(REPLICAS)]
        for one in told:
            watches.callback(one.close)
        until("pods are placed", lambda: load.placed >= 2, timeout_s=60)
        world.cluster.kubectl("rollout", "restart", "daemonset/gpuwarden-agent")

        def replaced() -> bool:
            found = world.cluster.pods("agent")
            is_there = old["metadata"]["uid"] in [x["metadata"]["uid"] for x in found]
            return not is_there and ready(found) == 1

        until("the agent is another", replaced, timeout_s=100)
        during = load.placed
        until("pods are placed", lambda: load.placed >= during + 2, timeout_s=60)
        load.end()
        after = [settled_rounds(x) for x in replicas]
        seen = [one.end() for one in told]
    assert offers(after) >= offers(before) + load.placed
    for first, last, tale in zip(before, after, seen, strict=True):
        assert last.unanswered - first.unanswered <= 1
        assert refusals_among(last.judged) == refusals_among(first.judged)
        assert refusals_among(last.offered) == refusals_among(first.offered)
        facts = {(x["state"], x["level"], x["attestationHash"], x["gpuCount"]) for x in tale}
        assert facts == {("eligible", "L1", required, len(DEVICES))}
        assert len([*groupby(tale, lambda x: x["instanceId"])]) == 2, "one agent, then the other"


def offers(replicas: Sequence[Rounds]) -> int:
    return sum(x.offered.get("ACCEPTED", 0) for x in replicas)


def refusals_among(codes: Mapping[str, int]) -> dict[str, int]:
    return {code: count for code, count in codes.items() if code != "ACCEPTED"}


def ready(pods: list[Document]) -> int:
    return sum(x["ready"] for pod in pods for x in pod["status"].get("containerStatuses", ()))


@contextmanager
def banned(world: World) -> Iterator[None]:
    """The node's SPIRE agent is banned; afterwards it has attested again."""
    agent_id = world.spire.agent_id
    world.spire.server.ban(agent_id)
    try:
        yield
    finally:
        world.spire.server.evict(agent_id)
        world.spire.replace_agent()


def test_a_ban_keeps_pods_away_while_the_svid_is_valid(world: World) -> None:
    """The controllers are on the banned node as well: they are not ready, and say why."""
    wanting = world.wanting("late", world.verified()["attestationHash"])
    with banned(world):
        until(
            "both replicas have revoked it",
            lambda: all(x.get("revoked") == 1 for x in world.states()),
            timeout_s=BAN_S,
        )
        world.refused("SPIRE_AGENT_BANNED")
        assert svid_expires_s(world) > 60
        name = world.lab.pods.create(wanting)
        notes = until("it is told why", lambda: refusals(world.lab.pods, name))
        assert all(any(why in note for why in NOT_PLACED) for note in notes), notes
        assert "nodeName" not in world.lab.pods.get(name)["spec"]
    world.verified()
    assert world.lab.pods.node_of(name, 60) == world.lab.node.name
    world.lab.pods.delete(name)


def svid_expires_s(world: World) -> float:
    """Seconds that the agent's SVID is still good for."""
    (pod,) = world.cluster.pods("agent")
    lines = metrics_of(f"{pod['status']['podIP']}:9090").splitlines()
    (value,) = (x.split()[1] for x in lines if x.startswith("gpuwarden_svid_expires_seconds"))
    return float(value)


def test_another_node_object_of_the_same_name_is_another_node(world: World) -> None:
    """Until its SPIRE agent has attested again; then the same hardware is pinned to it."""
    world.verified()
    path = f"/api/v1/nodes/{world.lab.node.name}"
    old, agent_before = world.lab.api.get(path)["metadata"]["uid"], world.spire.agent_id
    world.lab.node.kubelet.stop()
    world.lab.api.delete(path)
    world.lab.node.kubelet.resume_service()
    world.plugin.register()
    world.cluster.mark_node()
    new = world.lab.api.get(path)["metadata"]["uid"]
    assert new != old
    world.refused("SPIRE_NODE_MISMATCH")
    world.unregister()
    world.register()
    world.spire.replace_agent()
    world.spire.server.evict(agent_before)
    world.verified()
    enrolled = world.lab.api.get(
        f"/apis/gpuwarden.dev/v1alpha1/nodeenrollments/{world.lab.node.name}"
    )["spec"]
    assert (enrolled["nodeUid"], enrolled["spireAgent"]) == (new, world.spire.agent_id)
    assert "denial" not in enrolled
