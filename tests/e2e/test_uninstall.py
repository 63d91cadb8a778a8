"""docs/uninstall.md is walked on an API server of its own: its commands, in its order."""

import base64
import os
from collections.abc import Iterator
from contextlib import closing

import pytest

from controller.kube.nodes.nodes import ENFORCE_LABEL
from controller.kube.objects.enrollments import enrollment_object
from controller.kube.objects.reservations import reservation_object
from controller.ledger.record import HolderState
from tests.builders.console_commands import typed
from tests.builders.ledger import in_state
from tests.contracts.enrollment_store import FULL
from tests.e2e.lab.api import ApiError, Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.waiting import until
from tests.e2e.product.command_line import asked
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import NAMESPACE, Installation
from tests.e2e.product.pods import managed
from tests.e2e.product.policies import binding
from tests.e2e.product.reader import Reader
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission

PAGE = "docs/uninstall.md"
BASE = "deploy/kustomize/base"
OBJECTS = "/apis/gpuwarden.dev/v1alpha1/nodeenrollments"
RESERVATIONS = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodeenrollments.gpuwarden.dev"
NODES, VOLUMES = "/api/v1/nodes", "/api/v1/persistentvolumes"
NAMESPACES = f"/api/v1/namespaces/{NAMESPACE}"
CLAIM = f"{NAMESPACES}/persistentvolumeclaims/data-gpuwarden-controller-0"
KEYS = "gpuwarden-reservation-keys"
NOTED = ("gpuwarden-ca", "gpuwarden-export-http-0")
"""ConfigMaps that controllers write."""
INSTALLED = (f"-k {BASE}", "-k deploy/scheduler", "-k deploy/policy")
NODE = "leaving-0"
DENIED = FULL.node
RUNS, THIEF = "runs", "thief"
REQUIREMENT = {"gpu-selector": "memory>=1Gi"}
POLICY = {"defaultMode": "env"}
ALARMS = 'gpuwarden_audit_witness_alarms{code="LOG_RESET"}'
PATIENCE_S = 90
HELD = reservation_object(in_state(HolderState.CONFIRMED))
KEPT = {
    f"NodeEnrollment {NODE}",
    f"NodeEnrollment {DENIED}",
    "APIService v1alpha1.gpuwarden.dev",
    *(
        f"CustomResourceDefinition {kind}.gpuwarden.dev"
        for kind in (
            "attestationclasses",
            "attestationpolicies",
            "gpureservations",
            "nodeenrollments",
        )
    ),
    "PersistentVolume logs-0",
    *(f"PersistentVolumeClaim data-gpuwarden-controller-{n}" for n in range(2)),
    f"Namespace {NAMESPACE}",
    f"Secret {KEYS}",
    *(f"ConfigMap {name}" for name in NOTED),
    "ConfigMap kube-root-ca.crt",
    "ServiceAccount default",
    f"Pod {RUNS}",
    f"Pod {THIEF}",
}
"""After the first part; and the reservation, which is named by its GPU."""


class Cluster(Reader):
    """An empty cluster, and a person with kubectl in front of it."""

    def volume(self, reclaim_policy: str = "Delete") -> None:
        """As a provisioner makes it: deleted together with its claim."""
        spec = {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": reclaim_policy,
            "hostPath": {"path": "/nowhere"},
            "claimRef": {"namespace": NAMESPACE, "name": "data-gpuwarden-controller-0"},
        }
        self.lab.api.post(VOLUMES, {"metadata": {"name": "logs-0"}, "spec": spec})

    def bound_claim(self) -> str:
        """The claim of the first controller's volume, once it has that volume; its UID."""

        def has_it() -> bool:
            volume, claim = self.lab.api.found(f"{VOLUMES}/logs-0"), self.lab.api.found(CLAIM)
            if volume is None or claim is None:
                return False
            whose = volume["spec"]["claimRef"].get("uid")
            return bool(claim["status"]["phase"] == "Bound" and whose == claim["metadata"]["uid"])

        until("the claim has the volume", has_it, timeout_s=PATIENCE_S)
        return str(self.lab.api.get(CLAIM)["metadata"]["uid"])

    def remember_a_denial(self) -> None:
        self.lab.api.post(OBJECTS, enrollment_object(FULL))

    def enrolled(self) -> Document:
        """What is stored about the node with the agent."""
        spec: Document = self.lab.api.get(f"{OBJECTS}/{NODE}")["spec"]
        return spec

    def remove_labels(self) -> None:
        """As the page's list says, for nodes that have some."""
        label = "gpuwarden.node-restriction.kubernetes.io/requirement-0a"
        self.do(f"kubectl label node {NODE} {label}= other.example/kept=")
        (command,) = typed(PAGE, "kubectl get nodes")
        self.do(f"kubectl get nodes {command}")
        labels = self.lab.api.get(f"{NODES}/{NODE}")["metadata"]["labels"]
        assert label not in labels
        assert "other.example/kept" in labels

    def is_enforced(self) -> bool:
        labels = self.lab.api.get("/api/v1/namespaces/default")["metadata"]["labels"]
        return bool(labels.get(ENFORCE_LABEL) == "true")

    def is_denied(self) -> bool:
        return "denial" in self.lab.api.get(f"{OBJECTS}/{DENIED}")["spec"]


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Lab.control_plane_only() as lab:
        yield Cluster(lab, tmp_path_factory.mktemp("person") / "repository", PAGE)


class Installed:
    """What the commands cannot start here: controllers, agents, the webhooks' registration."""

    def __init__(self, cluster: Cluster) -> None:
        lab = cluster.lab
        self.cluster = cluster
        self.pods = lab.pods
        self.served = admission(lab, has_node=False)
        self.served.id_keys = lab.folder / "id-keys"
        self.served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
        self.gpuwarden = Installation(lab, "leaving", admission=self.served, policy=POLICY)
        (self.controller,) = self.gpuwarden.controllers
        self.webhooks = Webhooks(lab, self.served, PODS, BINDINGS)

    def begin(self) -> None:
        """One managed pod has the only GPU, another one wants it, and a node is quarantined."""
        lab, agents = self.cluster.lab, self.gpuwarden.agents
        lab.fake_nodes.add(NODE, gpus=0)
        lab.api.patch(
            f"{NODES}/{NODE}", {"spec": {"unschedulable": True}}
        )  # nobody ends pods there
        self.cluster.volume()
        self.apply()
        key = f"--from-file=keys={self.served.id_keys}"
        self.cluster.do(f"kubectl -n {NAMESPACE} create secret generic {KEYS} {key}")
        for name in NOTED:
            self.cluster.do(f"kubectl -n {NAMESPACE} create configmap {name}")
        self.cluster.do(f"kubectl label namespace default {ENFORCE_LABEL}=true")
        self.gpuwarden.start()
        agents.start(h100_node(NODE, 1))
        agents.hash_of(NODE)
        until("its enrolled GPUs are stored", lambda: lab.api.answers(f"{OBJECTS}/{NODE}"))
        self.cluster.remember_a_denial()
        self.webhooks.register()
        for name in (RUNS, THIEF):
            document = managed(name, REQUIREMENT, gpus=0, where={"leaving": "nowhere"})
            self.pods.create(document)
        until("it is bound", lambda: not self.try_to_bind(RUNS), timeout_s=PATIENCE_S)
        until("its GPU is its own", self._is_confirmed, timeout_s=PATIENCE_S)

    def apply(self) -> None:
        """As at the first time."""
        self.cluster.do("\n".join(f"kubectl apply {what}" for what in INSTALLED))

    def stop(self) -> None:
        """As the commands end those that run in pods. What the agents have on disk stays."""
        for one in (*self.gpuwarden.controllers, self.gpuwarden.scheduler):
            one.stop()

    def resume(self) -> None:
        """With the key that the cluster has; audit log and agents' memory are there still."""
        secret = self.cluster.lab.api.get(f"{NAMESPACES}/secrets/{KEYS}")
        assert self.served.id_keys is not None
        self.served.id_keys.write_bytes(base64.b64decode(secret["data"]["keys"]))
        for one in (*self.gpuwarden.controllers, self.gpuwarden.scheduler):
            one.resume_service()
        self.webhooks.register()

    def remove_pods(self) -> None:
        """Nobody runs them."""
        for name in (RUNS, THIEF):
            self.cluster.lab.api.delete(f"{self.pods.path}/pods/{name}", grace_s=0)

    def try_to_bind(self, name: str) -> str:
        """Why it was refused; nothing where it was not."""
        path = f"{self.pods.path}/pods/{name}/binding"
        try:
            self.cluster.lab.api.post(path, binding(name, NODE))
        except ApiError as error:
            return error.message
        return ""

    def refused(self, name: str, code: str) -> None:
        """Until it is refused for that; it is never bound meanwhile."""

        def for_that() -> bool:
            message = self.try_to_bind(name)
            assert message, f"{name} was bound"
            return code in message

        until(f"{name} is refused with {code}", for_that, timeout_s=PATIENCE_S)

    def reservations(self) -> list[Document]:
        """What the ledger holds."""
        return [x["spec"] for x in self.cluster.lab.api.get(RESERVATIONS)["items"]]

    def is_authentic(self, name: str) -> bool:
        """Whether the controller knows the reservation id on the pod as its own."""
        _, explained = asked(self.controller, "explain", "pod", f"default/{name}")
        (bound,) = (x for x in explained["stages"] if x["name"] == "bound")
        text = "gpuwarden issued its reservation id for this pod, node and GPUs"
        return text in bound["findings"]

    def _is_confirmed(self) -> bool:
        states = [x["state"] for spec in self.reservations() for x in spec["holders"]]
        return states == ["Confirmed"]


def test_the_page_s_way_leads_out_back_and_out_without_a_trace(cluster: Cluster) -> None:
    before = cluster.traces()
    installed = Installed(cluster)
    with closing(installed.gpuwarden):
        installed.begin()
        claim = cluster.bound_claim()
        held, enrolled = installed.reservations(), cluster.enrolled()
        records = installed.controller.records()

        installed.stop()
        cluster.walk("Before", "Part 1")
        cluster.remove_labels()
        kept = KEPT | {f"GPUReservation {spec['gpu'].lower()}" for spec in held}
        until("only that is left", lambda: cluster.traces() - before == kept, timeout_s=PATIENCE_S)

        installed.apply()
        installed.resume()
        cluster.walk("Installing again\n")
        assert cluster.is_enforced()
        installed.refused(THIEF, "GPU_BUSY")
        assert installed.reservations() == held
        assert installed.is_authentic(RUNS)
        assert cluster.enrolled() == enrolled
        assert cluster.is_denied()
        assert cluster.bound_claim() == claim
        assert installed.controller.records()[: len(records)] == records
        assert installed.controller.metric(ALARMS) == 0

        installed.stop()
        cluster.walk("Before", "Part 1")
        installed.remove_pods()
        cluster.walk("Part 2", "Part 3")
        until("nothing says gpuwarden", lambda: cluster.traces() == before, timeout_s=PATIENCE_S)


def test_a_delete_of_everything_is_held_and_everything_comes_back_from_copies(
    cluster: Cluster,
) -> None:
    lab = cluster.lab
    before = cluster.traces()
    cluster.volume("Retain")
    cluster.do(f"kubectl apply -k {BASE}")
    until("the custom resources are served", lambda: lab.api.answers(RESERVATIONS))
    cluster.remember_a_denial()
    reserved = lab.api.post(RESERVATIONS, HELD)
    claim = cluster.bound_claim()
    secret = {"metadata": {"name": KEYS}, "stringData": {"keys": "k1 00"}}
    lab.api.post(f"{NAMESPACES}/secrets", secret)
    (copy,) = [x for x in cluster.commands("Part 1") if "umask" in x]
    cluster.do(copy)
    held = cluster.run(f"kubectl delete -k {BASE} --timeout=15s")
    assert held.returncode != 0
    assert "timed out" in held.stderr
    assert "deletionTimestamp" in lab.api.get(DEFINITION)["metadata"]
    assert cluster.is_denied()
    cluster.walk("A delete that hangs", "Part 2")
    left = before | {"PersistentVolume logs-0"}
    until("the volume is left", lambda: cluster.traces() == left, timeout_s=PATIENCE_S)

    cluster.walk("Installing again without the namespace")
    cluster.do(f"kubectl apply -k {BASE}")
    assert cluster.is_denied()
    (reservation,) = lab.api.get(RESERVATIONS)["items"]
    assert reservation["spec"] == reserved["spec"]
    assert reservation["metadata"]["finalizers"] == reserved["metadata"]["finalizers"]
    found = lab.api.get(f"{NAMESPACES}/secrets/{KEYS}")
    assert base64.b64decode(found["data"]["keys"]) == b"k1 00"
    assert cluster.bound_claim() != claim
