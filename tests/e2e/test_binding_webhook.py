"""The binding webhook of two replicas on a real API server, with a real scheduler."""

import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pytest

from controller.kube.api.cache import Cache
from controller.kube.api.resources import Kind
from controller.kube.api.transport import Kubeconfig
from controller.kube.nodes.nodes import ENFORCE_LABEL
from controller.kube.pods.pods import REQUEUED, ClusterPods, KnownPod, pod_kind
from controller.ledger.record import PodGone, PodRef, PodSeen
from controller.placement.keys import RequirementRules
from gpuwarden.clock import SystemClock
from tests.builders.kube_access import api_client
from tests.e2e.lab.api import ApiError, Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.lab.waiting import until
from tests.e2e.product.controller import Admission
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import NAMESPACE as OURS
from tests.e2e.product.installation import Installation
from tests.e2e.product.pods import GPU, managed, told
from tests.e2e.product.stage import Stage
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission

NAMESPACE: Final = "binding-team"
NODES: Final = ("binding-0", "binding-1")
"""The second one has no agent."""
OTHER_KIND: Final = "binding-plugin"
"""A node whose GPUs kubelet gives."""
REQUIREMENT: Final = {"gpu-selector": "memory>=1Gi"}
HERE: Final = {"gate": "env"}
NOWHERE: Final = {"gate": "nowhere"}
ASSIGNED, RESERVATION = "gpuwarden.dev/gpu-uuids-assigned", "gpuwarden.dev/reservation-id"
OBJECTS: Final = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
POLICY: Final = {
    "pools": [{"pattern": "binding-plugin", "mode": "plugin"}],
    "defaultMode": "env",
}
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
PATIENCE_S: Final = 60
NO_VICTIM: Final = "Preemption is not helpful for scheduling"
CHANGES: Final = 10
"""Of a node, while a pod waits."""


class World:
    """An enforced namespace behind the binding webhook of two replicas."""

    def __init__(self, lab: Lab, installation: Installation, served: Admission) -> None:
        self.lab = lab
        self.api = lab.api
        self.gpuwarden = installation
        self.stage = Stage(lab, installation)
        self.webhooks = Webhooks(lab, served, PODS, BINDINGS)
        self.pods = Namespace(lab.api, NAMESPACE)

    def create(self, *names: str, where: dict[str, str] | None = None, gpus: int = 0) -> None:
        for name in names:
            requirements = {"min-level": "L0"} if gpus else REQUIREMENT
            self.pods.create(managed(name, requirements, gpus=gpus, where=where or HERE))

    def remove(self, *names: str) -> None:
        for name in names:
            self.api.delete(f"{self.pods.path}/pods/{name}", grace_s=0)

    def bind(
        self, pod: str, node: str = NODES[0], *, old: bool = False, how: str = "", **metadata: Any
    ) -> None:
        """Post a Binding by hand, as an administrator; raises ApiError."""
        document = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod, **metadata},
            "target": {"kind": "Node", "name": node},
        }
        path = "bindings" if old else f"pods/{pod}/binding"
        self.api.post(f"{self.pods.path}/{path}{how}", document)

    def refused(self, pod: str, node: str = NODES[0], **binding: Any) -> str:
        with pytest.raises(ApiError) as caught:
            self.bind(pod, node, **binding)
        return caught.value.message

    def assigned(self) -> dict[str, str]:
        """The GPUs of bound pods by name."""
        found = self.api.get(f"{self.pods.path}/pods")["items"]
        return {
            x["metadata"]["name"]: x["metadata"].get("annotations", {}).get(ASSIGNED, "")
            for x in found
            if x["spec"].get("nodeName") == NODES[0]
        }

    def reservations(self) -> dict[str, list[str]]:
        """States of the holders by GPU."""
        return {
            x["spec"]["gpu"]: [holder["state"] for holder in x["spec"]["holders"]]
            for x in self.api.get(OBJECTS)["items"]
        }

    def records(self) -> list[str]:
        """Names of the ledger's objects."""
        return [x["metadata"]["name"] for x in self.api.get(OBJECTS)["items"]]

    def wait_bound(self, count: int) -> dict[str, str]:
        def enough() -> dict[str, str]:
            found = self.assigned()
            return found if len(found) >= count else {}

        return until(f"{count} pods are bound", enough, timeout_s=PATIENCE_S)

    def wait_states(self, *states: str) -> None:
        """The ledger holds just so many, in these states."""
        until(
            f"the ledger holds {states}",
            lambda: sorted(x for y in self.reservations().values() for x in y) == sorted(states),
            timeout_s=PATIENCE_S,
        )


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[World]:
    served = admission(lab)
    served.id_keys = lab.folder / "id-keys"
    served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
    lab.fake_nodes.add_all(NODES, gpus=0, labels=HERE)
    lab.fake_nodes.add(OTHER_KIND, gpus=8, labels={"gate": "plugin"})
    installation = Installation(lab, "gate", replicas=2, admission=served, policy=POLICY)
    made = World(lab, installation, served)
    try:
        labels = {"metadata": {"name": NAMESPACE, "labels": {ENFORCE_LABEL: "true"}}}
        lab.api.post("/api/v1/namespaces", labels)
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        until("the namespace has its service account", lambda: lab.api.found(account))
        installation.start()
        for name in (NODES[0], OTHER_KIND):
            installation.agents.start(h100_node(name))
            installation.agents.hash_of(name)
        made.webhooks.register()
        _in_force(made)
        yield made
    finally:
        made.webhooks.remove()
        _empty(made)
        lab.api.delete(f"/api/v1/namespaces/{NAMESPACE}")
        installation.close()
        for name in made.records():
            _forget(made, name)
        for name in (*NODES, OTHER_KIND):
            lab.fake_nodes.delete(name)


@pytest.fixture(autouse=True)
def _clean(world: World) -> Iterator[None]:
    """Each test begins with a free node."""
    yield
    _empty(world)
    world.wait_states()


def _in_force(world: World) -> None:
    """Pods are injected, and the binding webhook is asked."""

    def both() -> bool:
        world.create("probe", where=NOWHERE)
        try:
            return "is not for a Binding to say" in world.refused(
                "probe", how="?dryRun=All", annotations={ASSIGNED: "x"}
            )
        finally:
            world.remove("probe")

    until("the binding webhook is in force", lambda: _quietly(both), timeout_s=PATIENCE_S)


def _quietly(probe: Any) -> bool:
    try:
        return bool(probe())
    except (ApiError, AssertionError, pytest.fail.Exception):
        return False


def _empty(world: World) -> None:
    for each in world.api.get(f"{world.pods.path}/pods")["items"]:
        world.remove(each["metadata"]["name"])


def _forget(world: World, name: str) -> None:
    """Delete a record by force, as an administrator in a hurry would."""
    world.api.patch(f"{OBJECTS}/{name}", {"metadata": {"finalizers": None}})
    world.api.delete(f"{OBJECTS}/{name}")


def test_the_gpu_comes_in_one_write_with_the_node(world: World) -> None:
    start = world.api.get(f"{world.pods.path}/pods")["metadata"]["resourceVersion"]
    world.create("train-0")
    world.wait_bound(1)
    world.wait_states("Confirmed")
    query = f"watch=true&resourceVersion={start}&timeoutSeconds=1"
    lines = world.api.text(f"{world.pods.path}/pods?{query}").splitlines()
    seen = [json.loads(line)["object"] for line in lines]
    told_of = [ASSIGNED in x["metadata"]["annotations"] for x in seen]
    bound = [bool(x["spec"].get("nodeName")) for x in seen]
    assert told_of == bound
    assert True in bound
    pod = seen[-1]
    annotations = pod["metadata"]["annotations"]
    (gpu,) = world.reservations()
    assert annotations[ASSIGNED] == gpu
    assert annotations["gpuwarden.dev/node"] == NODES[0]
    assert annotations["gpuwarden.dev/guarantee-given"] == "node"
    assert annotations["gpuwarden.dev/attestation-hash"] == world.gpuwarden.agents.hash_of(NODES[0])
    reference = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{ASSIGNED}']"}
    values = {x["name"]: x.get("valueFrom") for x in pod["spec"]["containers"][0]["env"]}
    assert values["CUDA_VISIBLE_DEVICES"] == {"fieldRef": reference}


@pytest.mark.parametrize("old", [False, True], ids=["pods/binding", "bindings"])
def test_bindings_made_by_hand(world: World, old: bool) -> None:
    world.create("by-hand", where=NOWHERE)
    for place in ("annotations", "labels"):
        for key in (ASSIGNED, "gpu-scheduling-map", "apps.kubernetes.io/pod-index"):
            given: dict[str, Any] = {place: {key: "x"}}
            message = world.refused("by-hand", old=old, **given)
            assert f"gpuwarden: BINDING_FORGED {key} " in message
    assert "NODE_NO_EVIDENCE" in world.refused("by-hand", NODES[1], old=old)
    assert "NODE_MODE" in world.refused("by-hand", OTHER_KIND, old=old)
    if not old:  # of the old resource the API server itself drops the caller's UID
        assert "BINDING_STALE" in world.refused("by-hand", uid="another")
    assert "POD_UNKNOWN" in world.refused("nobody", old=old)
    world.bind("by-hand", old=old, how="?dryRun=All")
    assert world.reservations() == {}
    world.bind("by-hand", old=old)
    annotations = world.pods.get("by-hand")["metadata"]["annotations"]
    world.wait_states("Confirmed")
    assert list(world.reservations()) == [annotations[ASSIGNED]]
    assert annotations[RESERVATION].startswith("v1.k1.")


def test_where_kubelet_chooses_nothing_is_reserved(world: World) -> None:
    world.create("kubelets", where={"gate": "plugin"}, gpus=1)
    world.pods.node_of("kubelets")
    annotations = world.pods.get("kubelets")["metadata"]["annotations"]
    assert annotations["gpuwarden.dev/node"] == OTHER_KIND
    assert ASSIGNED not in annotations
    assert world.reservations() == {}


def test_twenty_pods_and_eight_gpus_with_a_replica_killed_on_the_way(world: World) -> None:
    names = [f"many-{number}" for number in range(20)]
    first, _ = world.gpuwarden.controllers
    killer = threading.Timer(0.5, first.kill)
    killer.start()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda name: _create_sometime(world, name), names))
    killer.join()
    try:
        world.wait_bound(8)
        world.wait_states(*["Confirmed"] * 8)
    finally:
        first.resume_service()
    until("both are ready", lambda: world.gpuwarden.service.ready == 2)
    assert _one_each(world.assigned(), 8)
    waiting = next(name for name in names if name not in world.assigned())
    assert told(world.pods, waiting, "gpuwarden: GPU_BUSY")
    for gone in list(world.assigned())[:3]:
        world.remove(gone)
    later = world.wait_bound(8)
    world.wait_states(*["Confirmed"] * 8)
    assert _one_each(later, 8)
    assert set(later.values()) == set(world.reservations())


def test_a_busy_fleet_makes_no_loop_of_a_pod_with_high_priority(
    world: World, record_property: Callable[[str, object], None]
) -> None:
    """One call to /filter per attempt of the scheduler, one attempt per change of the cluster."""
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    world.api.post(classes, {"metadata": {"name": "binding-urgent"}, "value": 1000})
    urgent = managed("urgent", REQUIREMENT, gpus=0, where=HERE, priorityClassName="binding-urgent")
    try:
        world.create(*(f"busy-{number}" for number in range(8)))
        bound = world.wait_bound(8)
        world.wait_states(*["Confirmed"] * 8)
        before = Tried.now(world)
        world.pods.create(urgent)
        told(world.pods, "urgent", "gpuwarden: GPU_BUSY", NO_VICTIM, timeout_s=PATIENCE_S)
        for number in range(CHANGES):
            attempts = Tried.now(world).attempts
            _change(world, number)
            until(
                "it is tried again",
                lambda known=attempts: Tried.now(world).attempts > known,  # type: ignore[misc] # mypy cannot infer the default
                timeout_s=PATIENCE_S,
            )
        tried = until("each attempt was one call", lambda: _settled(world, before))
        record_property("calls to /filter", tried.calls)
        assert CHANGES < tried.attempts <= 2 * (CHANGES + 1)
        assert world.assigned() == bound
        assert "nominatedNodeName" not in world.pods.get("urgent")["status"]
    finally:
        world.api.delete(f"{classes}/binding_webhook-urgent")


@dataclass(frozen=True, slots=True)
class Tried:
    """What was counted since the start of scheduler and controllers."""

    attempts: float
    calls: float
    """To /filter, of both replicas."""

    @staticmethod
    def now(world: World) -> "Tried":
        series = 'scheduler_schedule_attempts_total{profile="gpuwarden",result="unschedulable"}'
        administrator = world.lab.control_plane.identities.admin
        calls = sum(
            one.metric('gpuwarden_extender_requests_total{result="rejected",verb="filter"}') or 0
            for one in world.gpuwarden.controllers
        )
        return Tried(world.gpuwarden.scheduler.metric(series, administrator), calls)

    def since(self, before: "Tried") -> "Tried":
        return Tried(self.attempts - before.attempts, self.calls - before.calls)


def _settled(world: World, before: Tried) -> Tried | None:
    """What was counted since then, while no attempt is under way."""
    tried = Tried.now(world).since(before)
    return tried if tried.calls == tried.attempts else None


def _change(world: World, number: int) -> None:
    """Something about the node is new: the scheduler looks at who waits again."""
    annotations = {"test.gpuwarden.dev/change": str(number)}
    world.api.patch(f"/api/v1/nodes/{NODES[0]}", {"metadata": {"annotations": annotations}})


def _create_sometime(world: World, name: str) -> None:
    """A connection to the replica that is killed refuses the pod: as anybody would, try again."""

    def created() -> bool:
        try:
            world.create(name)
        except ApiError as error:
            if "failed calling webhook" not in error.message:
                raise
            return False
        return True

    until(f"{name} is created", created)


def _one_each(assigned: dict[str, str], count: int) -> bool:
    gpus = list(assigned.values())
    return len(gpus) == len(set(gpus)) == count and all(gpus)


@contextmanager
def denied_afterwards(world: World, pod: str) -> Iterator[None]:
    """A policy that refuses the pod's Binding after the binding webhook has let it through."""
    name = "binding-probe"
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods/binding"],
    }
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": f"object.metadata.name != '{pod}'", "message": "not yet"}],
    }
    bound = {"policyName": name, "validationActions": ["Deny"]}
    kinds = {"validatingadmissionpolicies": spec, "validatingadmissionpolicybindings": bound}
    for kind, made in kinds.items():
        world.api.post(f"{_ADMISSION}/{kind}", {"metadata": {"name": name}, "spec": made})
    try:
        until(
            "the policy is in force",
            lambda: _quietly(lambda: "not yet" in world.refused(pod, how="?dryRun=All")),
            timeout_s=PATIENCE_S,
        )
        yield
    finally:
        for kind in kinds:
            world.api.delete(f"{_ADMISSION}/{kind}/{name}")


async def test_a_requeue_is_of_one_pod_and_no_other_of_its_name(world: World) -> None:
    world.create("touched", where=NOWHERE)
    metadata = world.pods.get("touched")["metadata"]
    client, transport = api_client(Kubeconfig(world.lab.kubeconfig), SystemClock())
    kind: Kind[KnownPod] = pod_kind(RequirementRules())
    pods = ClusterPods(client, kind, Cache(), replica="e2e", clock=SystemClock())
    try:
        other = PodRef(NAMESPACE, "touched", "00000000-0000-4000-8000-000000000000")
        assert await pods.requeue(other) == PodGone()
        assert REQUEUED not in world.pods.get("touched")["metadata"]["annotations"]
        seen = await pods.requeue(PodRef(NAMESPACE, "touched", metadata["uid"]))
        assert seen == PodSeen(metadata["uid"], "", None, has_ended=False)
        assert REQUEUED in world.pods.get("touched")["metadata"]["annotations"]
        assert "BINDING_STALE" in world.refused(
            "touched", resourceVersion=metadata["resourceVersion"]
        )
    finally:
        await transport.close()


def test_an_answer_that_was_no_binding_is_given_up_after_a_touch(world: World) -> None:
    world.create("unlucky", where=NOWHERE)
    world.create("waits", where=NOWHERE)
    with denied_afterwards(world, "unlucky"):
        assert "not yet" in world.refused("unlucky")
        world.wait_states("Proposed")
        until(
            "the attempt is given up, however often it is asked for again",
            lambda: world.refused("unlucky") and world.reservations() == {},
            timeout_s=150,
        )
    annotations = world.pods.get("unlucky")["metadata"]["annotations"]
    assert REQUEUED in annotations
    assert ASSIGNED not in annotations
    assert "RESERVATION_EXPIRED" in world.refused("unlucky")
    world.bind("waits")
    world.wait_states("Confirmed")


def test_a_record_that_was_removed_while_nobody_looked_is_written_again(world: World) -> None:
    world.create("keeps")
    world.wait_bound(1)
    world.wait_states("Confirmed")
    with world.stage.without_controllers():
        for name in world.records():
            _forget(world, name)
        assert world.reservations() == {}
    world.wait_states("Confirmed")
    assert list(world.reservations()) == list(world.assigned().values())


def _binds(world: World, pod: str) -> bool:
    world.bind(pod)
    return True


def _free_pods() -> dict[str, Document]:
    """Pods that are none of our business, one for each kind of namespace that is not enforced."""
    plain = pod("binding-plain", kind="fake")
    plain["spec"]["containers"][0]["resources"] = {"limits": {GPU: "1"}}
    system = pod("binding-system", kind="fake", priorityClassName="system-cluster-critical")
    own = pod("binding-own", kind="fake", serviceAccountName="gpuwarden-controller")
    own["metadata"]["labels"] = {
        "app.kubernetes.io/name": "gpuwarden",
        "app.kubernetes.io/component": "controller",
    }
    return {"default": plain, "kube-system": system, OURS: own}


def test_while_the_binding_webhook_is_away_nothing_is_bound_there_and_everything_elsewhere(
    world: World,
) -> None:
    world.create("patient", where=NOWHERE)
    with world.stage.without_controllers():
        assert "failed calling webhook" in world.refused("patient")
        with pytest.raises(ApiError, match="failed calling webhook"):
            world.create("late")
        for name, document in _free_pods().items():
            namespace = Namespace(world.api, name)
            free = namespace.create(document)
            try:
                namespace.node_of(free, timeout_s=PATIENCE_S)
            finally:
                world.api.delete(f"{namespace.path}/pods/{free}", grace_s=0)
    until(
        "the replica that is asked has evidence again",
        lambda: _quietly(lambda: _binds(world, "patient")),
        timeout_s=PATIENCE_S,
    )
    world.wait_states("Confirmed")
