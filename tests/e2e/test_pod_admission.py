"""Pod admission on a real API server that calls the webhooks of a real controller over mTLS."""

import copy
import json
import shlex
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from controller.admission.gpu_supply import ASSIGNED_PATH
from controller.kube.nodes.nodes import ENFORCE_LABEL
from tests.builders.admission_reviews import review_json
from tests.builders.admitted_pods import LEVEL, UUIDS, container, new_pod
from tests.builders.examples import example
from tests.builders.hostile_pods import HOSTILE, HOSTILE_IDS
from tests.e2e.lab.api import STRATEGIC, ApiError, Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.lab.waiting import until
from tests.e2e.product.command_line import asked
from tests.e2e.product.controller import Admission
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import Installation, kubectl
from tests.e2e.product.namespaces import create_namespace, remove_namespace
from tests.e2e.product.stage import Stage
from tests.e2e.product.webhooks import MUTATING, Webhooks, admission

ENFORCED, PLAIN = "admission-enforced", "admission-plain"
DRY: Final = "?dryRun=All"
NODE = "admission-0"
RUNTIME_CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
KATA = "kata-qemu-nvidia-gpu"
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
GIVEN = {"fieldRef": {"apiVersion": "v1", "fieldPath": ASSIGNED_PATH}}
REFERENCES = [
    {"name": name, "valueFrom": GIVEN}
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
]
HARMLESS = new_pod()
FALLEN = new_pod(hostPID=True)


class World:
    """An installation with webhooks, and two namespaces."""

    def __init__(self, lab: Lab, installation: Installation, served: Admission) -> None:
        self.lab = lab
        self.api = lab.api
        self.stage = Stage(lab, installation)
        self.served = served
        self.webhooks = Webhooks(lab, served)
        self.enforced = Namespace(lab.api, ENFORCED)
        self.plain = Namespace(lab.api, PLAIN)

    def create(self, document: Document, where: Namespace, how: str = "") -> Document:
        """The pod as it is stored."""
        made = copy.deepcopy(document)
        made["metadata"].pop("namespace", None)
        return self.api.post(f"{where.path}/pods{how}", made)

    def refused(self, document: Document, where: Namespace, how: str = "") -> str:
        """Why the pod is not created."""
        with pytest.raises(ApiError) as caught:
            self.create(document, where, how)
        return caught.value.message

    def denies(self, document: Document) -> bool:
        """Whether one of our webhooks refuses the pod in the enforced namespace."""
        try:
            self.create(document, self.enforced, DRY)
        except ApiError as error:
            return "gpuwarden: " in error.message
        return False

    def patches(self) -> bool:
        """Whether a pod of the enforced namespace is patched."""
        try:
            made = self.create(HARMLESS, self.enforced, DRY)
        except ApiError:
            return False
        return VOID in made["spec"]["containers"][0].get("env", [])

    def in_force(self) -> None:
        """Registered, and known to the API server."""
        self.webhooks.register()
        until("both webhooks are in force", lambda: self.patches() and self.denies(FALLEN))

    def removed(self) -> None:
        """Not registered, and forgotten by the API server."""
        self.webhooks.remove()
        until("no webhook is in force", lambda: not (self.patches() or self.denies(FALLEN)))

    def decisions(self) -> list[Document]:
        """The audit records of our decisions about pods."""
        (controller,) = self.stage.gpuwarden.controllers
        found = controller.records()
        return [x for x in found if x["kind"] == "admission.decision"]


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[World]:
    served = admission(lab)
    lab.fake_nodes.add(NODE, gpus=8)
    lab.api.post(RUNTIME_CLASSES, {"metadata": {"name": KATA}, "handler": "kata"})
    policy = {"pools": [{"pattern": "none-of-these", "mode": "env"}]}
    installation = Installation(lab, "admission", admission=served, policy=policy)
    made = World(lab, installation, served)
    try:
        for name, labels in ((ENFORCED, {ENFORCE_LABEL: "true"}), (PLAIN, {})):
            create_namespace(lab, name, labels)
        installation.start()
        installation.agents.start(h100_node(NODE))
        installation.agents.hash_of(NODE)
        made.in_force()
        yield made
    finally:
        made.webhooks.remove()
        installation.close()
        for name in (ENFORCED, PLAIN):
            remove_namespace(lab, name)
        lab.api.delete(f"{RUNTIME_CLASSES}/{KATA}")
        lab.fake_nodes.delete(NODE)


@pytest.mark.parametrize(("code", "hostile"), HOSTILE, ids=HOSTILE_IDS)
def test_every_bypass_is_shut(world: World, code: str, hostile: Document) -> None:
    assert f"gpuwarden: {code} " in world.refused(hostile, world.enforced)
    if "annotations" not in hostile["metadata"]:
        assert world.create(hostile, world.plain, DRY)


def test_keys_that_only_we_write_are_refused_everywhere(world: World) -> None:
    for place in ("annotations", "labels"):
        forged = new_pod()
        forged["metadata"][place] = {"gpuwarden.dev/reservation-id": "x"}
        for where in (world.enforced, world.plain):
            assert "BYPASS_ANNOTATION gpuwarden.dev/reservation-id" in world.refused(forged, where)


def test_malformed_requirements_are_refused_with_key_text_and_expectation(world: World) -> None:
    bad = {"gpu-scheduling-map": "0=a:0\nx=b:1\n", "gpuwarden.dev/min-level": "L9"}
    for where in (world.enforced, world.plain):
        message = world.refused(new_pod(annotations=bad), where)
        assert "gpuwarden: REQ_INVALID" in message
        assert "gpu-scheduling-map line 2" in message
        assert "gpuwarden.dev/min-level: got L9; expected L0 or L1" in message


def test_a_pod_that_the_mutating_webhook_missed_is_refused(world: World) -> None:
    world.webhooks.remove(MUTATING)
    try:
        until("nothing is patched", lambda: world.denies(HARMLESS))
        assert "BYPASS_UNINJECTED" in world.refused(HARMLESS, world.enforced)
    finally:
        world.webhooks.register(MUTATING)
        until("pods are patched again", world.patches)


@pytest.mark.parametrize(
    ("name", "kinds", "count"),
    [
        ("pod", "api/v1/namespaces/{}/pods", 1),
        ("statefulset", "apis/apps/v1/namespaces/{}/statefulsets", 1),
        ("deployment", "apis/apps/v1/namespaces/{}/deployments", 2),
        ("job", "apis/batch/v1/namespaces/{}/jobs", 2),
    ],
)
def test_an_example_is_applied_and_its_pods_are_admitted(
    world: World, name: str, kinds: str, count: int
) -> None:
    """A StatefulSet's second pod waits for its first."""
    path = f"/{kinds.format(ENFORCED)}"
    document = example(name, NODE)
    own = document["metadata"]["name"]

    def pods() -> list[Document]:
        items = world.api.get(f"{world.enforced.path}/pods")["items"]
        return [x for x in items if x["metadata"]["name"].startswith(own)]

    def gone() -> bool:
        for one in pods():
            world.api.delete(f"{world.enforced.path}/pods/{one['metadata']['name']}", grace_s=0)
        return not pods()

    world.api.post(path, document)
    try:
        until(f"{count} pods of {own} are there", lambda: len(pods()) >= count)
        assert {x["spec"]["schedulerName"] for x in pods()} == {"gpuwarden"}
    finally:
        world.api.delete(f"{path}/{own}?propagationPolicy=Background")
        until(f"the pods of {own} are gone", gone)


def test_an_ephemeral_container_opens_no_bypass(world: World) -> None:
    made = world.create(new_pod(container(gpus=1)), world.enforced)
    path = f"{world.enforced.path}/pods/{made['metadata']['name']}/ephemeralcontainers"

    def add(name: str, **fields: Any) -> Document:
        own = {**container(name, **fields), "targetContainerName": "main"}
        body = {"spec": {"ephemeralContainers": [own]}}
        return world.api.patch(path, body, STRATEGIC)

    for fields in (
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
        {"securityContext": {"privileged": True}},
    ):
        with pytest.raises(ApiError, match="gpuwarden: BYPASS_EPHEMERAL"):
            add("hostile", **fields)
    added = add("debug")["spec"]["ephemeralContainers"]
    assert [x["env"] for x in added] == [[VOID]]
    again = add("second")["spec"]["ephemeralContainers"]
    assert {x["name"]: x["env"] for x in again} == {"debug": [VOID], "second": [VOID]}


def test_what_is_stored_is_as_designed_for_every_container(world: World) -> None:
    several = new_pod(
        container(gpus=1, env=[{"name": "MODE", "value": "a"}]),
        container("side"),
        initContainers=[container("step"), container("sidecar", restartPolicy="Always")],
    )
    spec = world.create(several, world.enforced)["spec"]
    assert [x.get("env") for x in spec["containers"]] == [[{"name": "MODE", "value": "a"}], [VOID]]
    assert [x["env"] for x in spec["initContainers"]] == [[VOID], [VOID]]
    assert spec["schedulerName"] == "gpuwarden"
    assert {"key": "gpuwarden.dev/managed", "operator": "Exists", "effect": "NoExecute"} in spec[
        "tolerations"
    ]
    own = new_pod(
        container(env=[{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]), annotations=UUIDS
    )
    spec = world.create(own, world.enforced)["spec"]
    assert spec["containers"][0]["env"] == REFERENCES
    outside = world.create(own, world.plain)["spec"]
    assert outside["containers"][0]["env"] == REFERENCES
    assert outside["schedulerName"] == "gpuwarden"
    assert world.create(new_pod(container(gpus=1)), world.plain)["spec"]["schedulerName"] == (
        "default-scheduler"
    )


def _workload(name: str, template: Document, **spec: Any) -> Document:
    labels = {"app": name}
    metadata = {"labels": labels, "annotations": template["metadata"]["annotations"]}
    return {
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": metadata, "spec": copy.deepcopy(template["spec"])},
            **spec,
        },
    }


@pytest.mark.parametrize("kind", ["deployments", "statefulsets", "jobs"])
def test_pods_of_controllers_get_the_reference(world: World, kind: str) -> None:
    document = _workload(f"some-{kind}", new_pod(annotations=UUIDS))
    group = "batch" if kind == "jobs" else "apps"
    if kind == "jobs":
        del document["spec"]["selector"]
        document["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    world.api.post(f"/apis/{group}/v1/namespaces/{ENFORCED}/{kind}", document)
    selector = f"?labelSelector=app%3Dsome-{kind}"
    (made,) = until(
        "its pod is there",
        lambda: world.api.get(f"{world.enforced.path}/pods{selector}")["items"],
    )
    assert made["spec"]["containers"][0]["env"] == REFERENCES


def test_a_managed_pod_is_placed_by_our_scheduler_without_naming_it(world: World) -> None:
    document = pod("placed", kind="fake")
    document["metadata"]["annotations"] = LEVEL
    document["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    world.create(document, world.enforced)
    assert world.enforced.node_of("placed") == NODE


def test_a_dry_run_is_answered_and_leaves_nothing(world: World) -> None:
    world.create(pod("marker", kind="fake"), world.enforced)

    def subjects() -> list[str]:
        return [x["subject"] for x in world.decisions()]

    until("a real one is noted", lambda: f"pod/{ENFORCED}/marker" in subjects())
    made = world.create(pod("rehearsed", kind="fake"), world.enforced, DRY)
    assert made["spec"]["containers"][0]["env"] == [VOID]
    assert "BYPASS_HOST_PID" in world.refused(pod("rehearsed", hostPID=True), world.enforced, DRY)
    world.create(pod("marker-2", kind="fake"), world.enforced)
    until("the next real one is noted", lambda: f"pod/{ENFORCED}/marker-2" in subjects())
    assert not [x for x in subjects() if x.endswith("rehearsed")]


def test_only_the_api_server_may_call(world: World) -> None:
    context = ssl.create_default_context(cafile=str(world.served.client_ca))
    body = json.dumps(review_json(new_pod())).encode()
    url = f"https://{world.served.address}/mutate/pods"
    headers = {"Content-Type": "application/json"}
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        urllib.request.urlopen(
            urllib.request.Request(url, body, headers), context=context, timeout=10
        )


def test_without_a_controller_enforced_namespaces_and_requirements_wait_and_nobody_else(
    world: World,
) -> None:
    asking = new_pod(annotations=LEVEL)
    with world.stage.without_controllers():
        message = world.refused(HARMLESS, world.enforced)
        assert 'failed calling webhook "enforced.pods.gpuwarden.dev"' in message
        message = world.refused(asking, world.plain)
        assert 'failed calling webhook "asking.pods.gpuwarden.dev"' in message
        for where in (world.plain, Namespace(world.lab.api, "kube-system")):
            assert world.create(new_pod(container(gpus=1)), where, DRY)
        hint = new_pod(annotations={"gpuwarden.dev/job-type": "train"})
        assert world.create(hint, world.plain, DRY)
        assert world.create(_full(1000), world.plain, DRY)
        message = world.refused(_full(1001), world.plain)
        assert 'failed calling webhook "asking.pods.gpuwarden.dev"' in message
    assert world.create(asking, world.plain, DRY)


def _full(count: int, **more: str) -> Document:
    """A pod with so many annotations that are nobody's, and some more."""
    return new_pod(annotations={**{f"a{number}": "" for number in range(count)}, **more})


def test_among_very_many_keys_ours_are_found(world: World) -> None:
    forged = {"gpuwarden.dev/reservation-id": "x"}
    for count, code in ((900, "BYPASS_ANNOTATION"), (40_000, "REQ_INVALID")):
        assert world.create(_full(count), world.plain, DRY)
        assert code in world.refused(_full(count, **forged), world.plain, DRY)


def test_in_a_real_container_no_image_default_is_left(world: World, real_node: None) -> None:
    del real_node
    world.create(pod("shown", "env", "NVIDIA_VISIBLE"), world.enforced)
    assert world.enforced.says("shown", "NVIDIA_VISIBLE_DEVICES=void")


@pytest.fixture
def report_only(world: World) -> Iterator[Callable[[Document], list[str]]]:
    """The controller restarted with `enforcement: report`; creates a pod, gives the warnings."""
    world.removed()
    (controller,) = world.stage.gpuwarden.controllers

    def create(document: Document) -> list[str]:
        world.create(document, world.enforced)
        return list(world.api.warnings)

    world.served.enforcement = "report"
    with world.stage.without_controllers():
        pass
    world.webhooks.register(failure_policy="Ignore")
    try:
        yield create
    finally:
        world.webhooks.remove()
        world.served.enforcement = "namespaces"
        with world.stage.without_controllers():
            pass
        world.in_force()
    assert controller.is_running


def test_report_only_blocks_nothing_and_says_everything(
    world: World, report_only: Callable[[Document], list[str]]
) -> None:
    until(
        "the webhooks are asked",
        lambda: any("would be denied" in x for x in report_only(FALLEN)),
    )
    for code, hostile in HOSTILE:
        warned = report_only(hostile)
        assert any(f"would be denied: gpuwarden: {code} " in x for x in warned), (code, warned)
    made = world.create(HARMLESS, world.enforced)
    assert "env" not in made["spec"]["containers"][0]
    group = f"/apis/events.k8s.io/v1/namespaces/{ENFORCED}"
    events = f"{group}/events?fieldSelector=reason%3DPodWouldBeDenied"
    found = until("it is told as an Event", lambda: world.api.get(events)["items"])
    assert all(" would be denied: " in x["note"] for x in found)
    document = _workload("told", FALLEN | {"metadata": {"annotations": {}}})
    world.api.post(f"/apis/apps/v1/namespaces/{ENFORCED}/deployments", document)
    until(
        "the ReplicaSet is told about its pod",
        lambda: [
            x
            for x in world.api.get(events)["items"]
            if x["regarding"]["kind"] == "ReplicaSet" and "BYPASS_HOST_PID" in x["note"]
        ],
    )


OTHERWISE: Final = {
    "agents": "failed",
    "api-server-certificate": "warning",
    "controller-warnings": "warning",
    "controllers-run": "failed",
    "device-variables": "not checked",
    "gpu-nodes": "failed",
    "policies-bound": "failed",
    "protection": "warning",
    "protection-bound": "not checked",
    "runtime-class": "failed",
    "scheduler-configuration": "not checked",
    "scheduler-runs": "not checked",
    "scorer": "not checked",
    "spire-entries": "not checked",
    "spire-policy": "not checked",
    "spire-server": "warning",
    "versions": "warning",
    "webhooks-registered": "failed",
}
"""Of an installation without SPIRE, policies and binding webhook, whose programs are no pods."""
BY_CHANCE: Final = {"scheduler-certificate", "scheduler-extender"}
"""Whether a scheduler has asked yet depends on the tests before."""


def doctor(world: World) -> dict[str, Document]:
    """The checks of `gpuwarden doctor`, by id."""
    (controller,) = world.stage.gpuwarden.controllers
    kubeconfig, log = str(world.lab.kubeconfig), str(controller.data / "audit")
    code, found = asked(controller, "doctor", "--kubeconfig", kubeconfig, "--audit-log", log)
    checks = {one["id"]: one for group in found["groups"] for one in group["checks"]}
    assert code == (3 if any(x["outcome"] == "failed" for x in checks.values()) else 0)
    return {name: x for name, x in checks.items() if name not in BY_CHANCE}


def outcomes(world: World) -> dict[str, str]:
    """What is not as it ought to be."""
    return {name: x["outcome"] for name, x in doctor(world).items() if x["outcome"] != "passed"}


def test_doctor_finds_a_fault_that_its_command_repairs(world: World) -> None:
    until("a new controller leads and nodes are back", lambda: outcomes(world) == OTHERWISE)
    path = f"/api/v1/namespaces/{ENFORCED}"
    world.api.patch(path, {"metadata": {"labels": {ENFORCE_LABEL: "yes"}}})
    found = doctor(world)["namespaces-enforced"]
    assert outcomes(world) == OTHERWISE | {"namespaces-enforced": found["outcome"]}
    kubectl(world.lab, *shlex.split(found["command"])[1:])
    until("all is as before", lambda: outcomes(world) == OTHERWISE)
