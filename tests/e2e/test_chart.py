"""The chart on an empty cluster: installed, used, changed, refused a second time, removed.

With SPIRE, images, a device plugin and NVML's stand-in as they are there before; certificates,
webhooks and scheduler are the chart's own.
"""

import base64
import copy
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from controller.certificates.leaves import AUTHORITY_SECRET, leaf_specs
from tests.builders.web_certificates import WebCa
from tests.chart.rendering import NAMESPACE, annotations, one, rendered
from tests.chart.tools import tools
from tests.contracts.pod_resources import DEVICES, RESOURCE
from tests.e2e.lab.api import Api, ApiError, Document
from tests.e2e.lab.build import built
from tests.e2e.lab.cert_manager import Certificates, CertManager
from tests.e2e.lab.cluster_spire import ClusterSpire
from tests.e2e.lab.device_plugin import DevicePlugin
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.machine import missing
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.lab.product_images import NEEDS
from tests.e2e.lab.selection import why_no_spire
from tests.e2e.lab.upstreams import KUBERNETES, SPIRE, upstream
from tests.e2e.lab.waiting import until
from tests.e2e.product.acceptance import examined, never_restarted
from tests.e2e.product.deployed import REPLICAS, Deployed
from tests.e2e.product.helm_release import TRUST_DOMAIN, HelmError, HelmRelease
from tests.e2e.product.hinting import H100, decision
from tests.e2e.product.ledger import held
from tests.e2e.product.pod_processes import process_of
from tests.e2e.product.pods import refusals, told
from tests.e2e.product.reader import Reader
from tests.e2e.product.with_spire import scenario
from tests.e2e.product.workstation import Workstation

pytestmark = [
    pytest.mark.usefixtures("real_node"),
    pytest.mark.skipif(bool(why_no_spire()), reason=f"no SPIRE: {'; '.join(why_no_spire())}"),
    pytest.mark.timeout(1800),  # a first build, on a busy machine
]
START_S = 240
TEAM = "team-a"
KEYS = "gpuwarden-reservation-keys"
NOBODYS = f"v1:sha256:{'0' * 64}"
WEBHOOKS = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
OURS = "--selector=app.kubernetes.io/name=gpuwarden"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodeenrollments.gpuwarden.dev"
APPLY = "application/apply-patch+yaml"
FAILURES = ("webhook", "gpuwarden-extender")
"""Of what the scheduler says when a call has failed: parts of an address."""
MOST_FAULTS = 20
CHANGE_S = 600
"""A new scheduler waits for its Secret, and kubelet looks after up to two minutes."""
ADMITTED = 200
MANAGED = {"mode": "self-managed", "caBundle": ""}
"""As docs/certificates.md sets it: an upgrade keeps the values of before."""
ENFORCED = {"gpuwarden.dev/enforce": "true"}
KUBECTL_TAG = f"v{upstream(KUBERNETES).version}"
UNINSTALL_PAGE = "docs/uninstall.md"
SCORER_VOLUME = "data-gpuwarden-score-0"
WITH_SCORER = {"hints": {"scorer": {"enabled": True}}}
JOB_TYPE = "train"
KEPT = {
    f"customresourcedefinition.apiextensions.k8s.io/{kind}.gpuwarden.dev"
    for kind in ("attestationclasses", "attestationpolicies", "gpureservations", "nodeenrollments")
}
"""Of what has no namespace, after uninstallation."""
KEPT_INSIDE = {
    *(f"persistentvolumeclaim/data-gpuwarden-controller-{n}" for n in range(2)),
    f"persistentvolumeclaim/{SCORER_VOLUME}",
    f"secret/{KEYS}",
    f"secret/{AUTHORITY_SECRET}",
    *(f"secret/{x.secret}" for x in leaf_specs("")),
    *(f"lease.coordination.k8s.io/gpuwarden-{x}" for x in ("controller", "scheduler")),
    "serviceaccount/default",
    "configmap/gpuwarden-ca",
    "configmap/kube-root-ca.crt",
}


@dataclass
class World:
    release: HelmRelease
    cluster: Deployed
    folder: Path
    changed: dict[str, Any] = field(default_factory=lambda: dict(WITH_SCORER))
    """By upgrades."""

    @property
    def api(self) -> Api:
        return self.cluster.lab.api

    @property
    def pods(self) -> Namespace:
        return Namespace(self.api, TEAM)

    def verified(self) -> None:
        """Both replicas have verified the node, by SPIRE."""
        for replica in range(REPLICAS):
            node = until(
                f"replica {replica} has verified the node",
                lambda number=replica: self.cluster.in_state(number, "eligible"),  # type: ignore[misc] # mypy cannot infer the default
                timeout_s=START_S,
            )
            assert node["level"] == "L1"

    def listed(self, *options: str) -> list[str]:
        """Kinds that can be listed."""
        return self.cluster.kubectl("api-resources", "--verbs=list", "-o=name", *options).split()

    def upgrade(self, **more: Any) -> None:
        """What upgrades before have changed stays."""
        self.changed |= more
        self.release.upgrade(self.release.values(**self.changed))

    def team(self) -> None:
        """The enforced namespace, once a replica admits pods in it."""
        if not self.api.found(f"/api/v1/namespaces/{TEAM}"):
            metadata = {"name": TEAM, "labels": ENFORCED}
            self.api.post("/api/v1/namespaces", {"metadata": metadata})

    def started(self, name: str) -> None:
        """A pod with a GPU, running."""
        pods = self.pods
        if not self.api.found(f"{pods.path}/pods/{name}"):
            until("a replica admits it", lambda: created(pods, holder(name)), timeout_s=START_S)
        pods.phase(name, "Running", timeout_s=START_S)

    def uids(self, component: str) -> set[str]:
        return {x["metadata"]["uid"] for x in self.cluster.pods(component)}

    def reservation_keys(self) -> str:
        """As the Secret has them; empty where it has none."""
        return self.cluster.kubectl("get", "secret", KEYS, "-o=jsonpath={.data.keys}")

    def webhooks(self) -> list[str]:
        return self.cluster.kubectl("get", WEBHOOKS, OURS, "-o=name").split()

    def remembered(self) -> dict[str, str]:
        """UIDs of enrollments and reservations, by name."""
        root = "/apis/gpuwarden.dev/v1alpha1"
        found = (
            x["metadata"]
            for kind in ("nodeenrollments", "gpureservations")
            for x in self.api.get(f"{root}/{kind}")["items"]
        )
        return {x["name"]: x["uid"] for x in found}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    if reasons := missing(NEEDS):
        pytest.skip(f"no images: {'; '.join(reasons)}")
    folder = tmp_path_factory.mktemp("chart")
    with ExitStack() as stack:
        empty = stack.enter_context(Lab.whole())
        spire = ClusterSpire(empty, TRUST_DOMAIN)
        spire.start()
        cluster = Deployed(empty, folder)
        cluster.import_images()
        cluster.furnish(scenario())
        plugins = empty.node.capsule.path("/var/lib/kubelet/device-plugins")
        stack.enter_context(DevicePlugin(plugins, DEVICES))
        release = HelmRelease(empty, spire.server, folder)
        release.load_images()
        cluster.provide_volumes(SCORER_VOLUME)
        cluster.mark_node()
        told = release.install(release.values(**WITH_SCORER))
        release.register(told)
        yield World(release, cluster, folder)


def test_one_command_later_a_managed_pod_has_its_gpu(world: World) -> None:
    """Certificates, webhooks, extender and scheduler are the chart's; nothing was made by hand."""
    world.verified()
    world.team()
    world.started("holder")
    found = world.pods.get("holder")
    assert found["spec"]["schedulerName"] == "gpuwarden"
    assert found["metadata"]["annotations"]["gpuwarden.dev/node"] == found["spec"]["nodeName"]
    assert found["metadata"]["annotations"]["gpuwarden.dev/guarantee-given"] == "node"


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ("gpuwarden.dev/agent", "off"),
        ("nvidia.com/gpu.deploy.device-plugin", "paused-for-driver-upgrade"),
    ],
    ids=["ours", "gpu-operator"],
)
def test_a_label_takes_the_agent_off_its_node(world: World, label: str, value: str) -> None:
    """As docs/upgrades.md exchanges a driver, and as the GPU operator does."""
    node, kubectl = world.cluster.lab.node.name, world.cluster.kubectl
    kubectl("label", "node", node, f"{label}={value}")
    until("the agent has left", lambda: not world.cluster.pods("agent"), timeout_s=START_S)
    kubectl("label", "node", node, f"{label}-")
    until("the agent is back", lambda: world.cluster.pods("agent"), timeout_s=START_S)
    world.verified()


def asked(world: World, path: str, body: Document | None = None) -> Document:
    """What the scorer answers behind its Service."""
    port = "ops" if body is None else "http"
    url = f"/api/v1/namespaces/{NAMESPACE}/services/gpuwarden-score:{port}/proxy{path}"

    def answer() -> Document | None:
        try:
            return world.api.get(url) if body is None else world.api.post(url, body)
        except ApiError as error:
            if error.status != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            return None  # the Service does not know its pod yet

    return until(f"{path} is answered", answer)


def runs_known(world: World) -> float:
    """Of the job, on the type of the real node."""
    question = {"job_type": JOB_TYPE, "candidate_gpu_types": [H100], "dry_run": True}
    return float(asked(world, "/v1/score", question)["terms"]["runs"])


def hinted(world: World) -> str:
    """A pod of a job that got hints; the first ones may come before the fleet is known."""
    document = holder("scored")
    document["metadata"] = {
        "generateName": "scored-",
        "labels": {"gpuwarden.dev/job-type": JOB_TYPE},
    }

    def made() -> str | None:
        found = world.api.post(f"{world.pods.path}/pods", document)["metadata"]
        if decision(found).get("chosen-gpu") == H100:
            return str(found["name"])
        world.pods.delete(found["name"])
        return None

    return until("a pod has hints", made, timeout_s=START_S, poll_s=1)


def ends_well(world: World, name: str) -> None:
    """Its program ends by itself, after two seconds at least: kubelet counts in whole ones."""
    world.pods.phase(name, "Running", timeout_s=START_S)
    found = world.pods.get(name)
    (container,) = found["status"]["containerStatuses"]
    began = datetime.fromisoformat(container["state"]["running"]["startedAt"]).timestamp()
    until("it has run for two seconds", lambda: time.time() - began > 2)
    os.kill(process_of(found["metadata"]["uid"]), signal.SIGTERM)
    world.pods.phase(name, "Succeeded")


def test_the_scorer_gives_hints_and_what_it_learned_outlives_its_pod(world: World) -> None:
    """In its pod of the real image: the controllers ask it, and tell it of the run."""
    world.cluster.kubectl("rollout", "status", "statefulset/gpuwarden-score", "--timeout=100s")
    world.verified()
    world.team()
    world.started("holder")
    world.api.patch(
        f"/api/v1/namespaces/{TEAM}", {"metadata": {"labels": {"gpuwarden.dev/hints": "true"}}}
    )
    assert runs_known(world) == 0.0
    name = hinted(world)
    ends_well(world, name)
    until("its run is learned", lambda: runs_known(world) == 1.0, poll_s=1)
    assert asked(world, "/readyz") == {"ready": True, "reasons": [], "warnings": []}
    world.pods.delete(name)
    (before,) = world.uids("score")
    world.cluster.kubectl("delete", "pod", "gpuwarden-score-0")
    until("it has another pod", lambda: bool(world.uids("score") - {before}))
    world.cluster.kubectl("rollout", "status", "statefulset/gpuwarden-score", "--timeout=100s")
    assert runs_known(world) == 1.0


def test_what_the_scorer_learned_is_moved_as_its_page_says(world: World, tmp_path: Path) -> None:
    """Out while it runs, and into its volume while it does not."""
    page = Reader(world.cluster.lab, tmp_path / "reader", "docs/learned-scores.md")
    export, read_in = page.commands("Export and import in a cluster")
    before = runs_known(world)
    page.do(export)
    run = {"job_type": JOB_TYPE, "gpu_type": H100, "measured_runtime_s": 3.0}
    assert asked(world, "/v1/observe", run)["saved"] is True
    assert runs_known(world) == before + 1
    page.do(read_in)
    world.cluster.kubectl("rollout", "status", "statefulset/gpuwarden-score", "--timeout=100s")
    assert runs_known(world) == before


def created(pods: Namespace, document: Document) -> str | None:
    """Before a replica is ready the API server refuses such a pod; its name afterwards."""
    try:
        return pods.create(document)
    except ApiError as error:
        if "failed calling webhook" in str(error) or "CONTROLLER_NOT_READY" in str(error):
            return None
        raise


def holder(name: str) -> Document:
    document = pod(name, "say", "here")
    document["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: "1"}}
    return document


def test_a_second_release_is_refused(world: World) -> None:
    with pytest.raises(HelmError, match="there is one gpuwarden for a cluster"):
        world.release.install(world.release.values(), release="two", namespace="elsewhere")
    assert "elsewhere" not in world.cluster.kubectl("get", "namespaces", "-o=name")


def test_an_enforced_namespace_is_not_left_alone(world: World) -> None:
    """An upgrade that would open it says so, and changes nothing."""
    world.team()
    with pytest.raises(HelmError, match=f'"{TEAM}", expected no enforced namespace'):
        world.release.upgrade({"infrastructureNamespaces": [TEAM]})


def of_an_older_chart(world: World) -> Document:
    """Take a column and a property out of a custom resource, by Helm's own name; how it was."""
    found = world.api.get(DEFINITION)
    (helm,) = {
        x["manager"]
        for x in found["metadata"]["managedFields"]
        if x["operation"] == "Apply" and "f:spec" in x["fieldsV1"]
    }
    older = {x: copy.deepcopy(found[x]) for x in ("apiVersion", "kind", "spec")}
    older["metadata"] = {x: found["metadata"][x] for x in ("name", "labels", "annotations")}
    (version,) = older["spec"]["versions"]
    version["additionalPrinterColumns"] = [
        x for x in version["additionalPrinterColumns"] if x["name"] != "Since"
    ]
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["faults"]
    applied = world.api.patch(f"{DEFINITION}?fieldManager={helm}", older, APPLY)
    assert applied["spec"] == older["spec"]
    return dict(found["spec"])


def test_an_upgrade_brings_custom_resources_rolls_what_changed_and_pods_keep_their_gpus(
    world: World,
) -> None:
    world.verified()
    controllers, agents = world.uids("controller"), world.uids("agent")
    uid = world.pods.get("holder")["metadata"]["uid"]
    until("the ledger has nobody else", lambda: {x.pod for x in held(world.api)} == {uid})
    keys, remembered = world.reservation_keys(), world.remembered()
    definition = of_an_older_chart(world)
    world.upgrade(agent={"config": {"log": {"level": "debug"}}})
    until("the agent is another", lambda: len(world.uids("agent") - agents) == 1, timeout_s=START_S)
    world.verified()
    assert world.uids("controller") == controllers
    assert world.reservation_keys() == keys
    assert world.api.get(DEFINITION)["spec"] == definition
    assert world.remembered() == remembered
    assert world.pods.get("holder")["status"]["phase"] == "Running"


def test_the_api_server_takes_the_chart_without_webhooks(world: World) -> None:
    """Hooks left out: their jobs do not change."""
    made = [x for x in rendered("no-webhooks") if "helm.sh/hook" not in annotations(x)]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": made})
    (world.folder / "no-webhooks.json").write_text(text)
    world.cluster.kubectl(
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--validate=strict",
        "--namespace=",  # some are in kube-system
        f"--filename={world.folder / 'no-webhooks.json'}",
    )


class Load:
    """Managed pods one after the other; each runs with its GPU before the next comes."""

    def __init__(self, pods: Namespace) -> None:
        self._pods = pods
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self.placed = 0
        self.faults: list[str] = []
        self._thread.start()

    def goes_on(self, count: int) -> None:
        """So many more were placed, or there was a fault."""
        wanted = self.placed + count
        until(
            "pods are placed",
            lambda: self.placed >= wanted or bool(self.faults),
            timeout_s=START_S,
        )

    def end(self) -> None:
        self._over.set()
        self._thread.join(START_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._over.is_set():
            name = f"load-{self.placed}"
            try:
                self._pods.create(holder(name))
                self._pods.phase(name, "Running", timeout_s=START_S)
                found = [x for x in refusals(self._pods, name) if any(y in x for y in FAILURES)]
                assert found == []
                self._pods.delete(name)
            except Exception as error:  # noqa: BLE001 - told by the test, not by the thread
                self.faults.append(f"{name}: {error!r}")
                return
            self.placed += 1


@pytest.mark.long
def test_an_upgrade_under_load_refuses_nobody_and_rolls_what_changed(world: World) -> None:
    """Every pod of a loop is admitted and bound while all controllers are replaced."""
    world.verified()
    world.team()
    world.started("holder")
    uid = world.pods.get("holder")["metadata"]["uid"]
    before = until("it is in the ledger", lambda: [x for x in held(world.api) if x.pod == uid])
    controllers = world.uids("controller")
    others = [world.uids(x) for x in ("agent", "scheduler")]
    load = Load(world.pods)
    load.goes_on(2)
    world.upgrade(controller={"config": {"log": {"level": "debug"}}})
    until(
        "all controllers are others",
        lambda: not controllers & world.uids("controller") or bool(load.faults),
        timeout_s=START_S,
    )
    world.cluster.kubectl("rollout", "status", "statefulset/gpuwarden-controller", "--timeout=100s")
    load.goes_on(2)
    load.end()
    assert load.faults == []
    assert [world.uids(x) for x in ("agent", "scheduler")] == others
    assert [x for x in held(world.api) if x.pod == uid] == before
    until("the ledger has nobody else", lambda: {x.pod for x in held(world.api)} == {uid})
    assert world.pods.get("holder")["status"]["phase"] == "Running"


def only_what_is_remembered_is_left(world: World) -> None:
    """And pods start, those with a GPU run on."""
    until("its pods are gone", lambda: not world.cluster.kubectl("get", "pods", "-o=name"))
    kinds = ",".join(x for x in world.listed("--namespaced=false") if not x.startswith("nodes"))
    found = set(world.cluster.kubectl("get", kinds, OURS, "-o=name").split())
    assert found == {*KEPT, "namespace/gpuwarden-system"}
    inside = (
        "secrets,persistentvolumeclaims,services,serviceaccounts,roles,rolebindings,"
        "networkpolicies,jobs,configmaps,leases"
    )
    left = set(world.cluster.kubectl("get", inside, "-o=name").split())
    assert left == KEPT_INSIDE
    assert world.pods.get("holder")["status"]["phase"] == "Running"
    after = world.pods.create(pod("after", "say", "here"))
    world.pods.phase(after, "Running")
    world.pods.delete(after)


def test_uninstallation_while_no_controller_runs_leaves_a_cluster_that_starts_pods(
    world: World,
) -> None:
    """Elsewhere releases are uninstalled whose controllers run."""
    keys = world.reservation_keys()
    world.cluster.kubectl("scale", "statefulset/gpuwarden-controller", "--replicas=0")
    until("no controller runs", lambda: not world.cluster.pods("controller"), timeout_s=START_S)
    with pytest.raises(ApiError, match="failed calling webhook"):
        world.pods.create(pod("before", "say", "here"))
    world.release.uninstall()
    only_what_is_remembered_is_left(world)
    world.release.install(world.release.values(**world.changed))
    assert world.reservation_keys() == keys


def test_where_helm_cannot_uninstall_the_page_says_what_to_do(world: World, tmp_path: Path) -> None:
    """The node has lost the image of the job that removes webhooks first, and cannot pull it."""
    world.verified()
    containerd, image = world.cluster.lab.node.containerd, f"kubectl:{KUBECTL_TAG}"
    containerd.ctr("images", "rm", f"registry.k8s.io/{image}")
    webhooks = world.webhooks()
    with pytest.raises(HelmError, match=r"gpuwarden-clean-up|timed out"):
        world.release.uninstall("--timeout=20s")
    assert world.webhooks() == webhooks
    world.verified()
    page = Reader(world.cluster.lab, tmp_path / "reader", UNINSTALL_PAGE, tools().helm)
    page.walk("Helm cannot uninstall")
    only_what_is_remembered_is_left(world)
    world.release.load_images()


@pytest.mark.long
def test_without_webhooks_the_extender_places_pods(world: World) -> None:
    """Installed again, beside what an installation with webhooks has left."""
    world.release.uninstall("--ignore-not-found")
    world.pods.delete("holder")  # both GPUs are for the pods below
    world.changed = {"webhooks": {"enabled": False}}
    world.release.install(world.release.values(**world.changed))
    world.verified()
    assert not world.webhooks()
    node = world.cluster.node(0)
    assert node is not None
    pods = Namespace(world.api)
    for name, required in (("placed", node["attestationHash"]), ("waits", NOBODYS)):
        document = holder(name)
        document["metadata"]["annotations"] = {"gpuwarden.dev/required-hash": required}
        document["spec"]["schedulerName"] = "gpuwarden"
        pods.create(document)
    pods.phase("placed", "Running", timeout_s=START_S)
    assert "gpuwarden.dev/node" not in pods.get("placed")["metadata"]["annotations"]
    told(pods, "waits", "HASH_MISMATCH", timeout_s=START_S)
    assert "nodeName" not in pods.get("waits")["spec"]
    world.release.uninstall()
    for name in ("placed", "waits"):
        pods.delete(name)  # the next test needs both GPUs


GIVEN = {
    "admission": ("gpuwarden-admission-server", "gpuwarden-admission"),
    "extender": ("gpuwarden-extender-server", "gpuwarden-extender"),
    "access": ("gpuwarden-access-server", "gpuwarden-access"),
    "scheduler": ("gpuwarden-extender-client", ""),
}
"""Whose it is -> its Secret, and its Service where it is a server."""
CLIENT = "gpuwarden-scheduler-client-tls"


def give_certificates(world: World) -> str:
    """The Secrets that somebody has made; PEM of the webhooks' authority."""
    folder = world.folder / "given"
    folder.mkdir()
    webhooks, extender = WebCa(folder, "webhooks"), WebCa(folder, "extender")
    for name, (secret, service) in GIVEN.items():
        ca = webhooks if name == "admission" else extender
        names = (f"{service}.{NAMESPACE}.svc",) if service else ("gpuwarden-scheduler",)
        pair = ca.issue(f"{name}-pair", server=bool(service), names=names)
        files = zip((*pair, ca.file), ("tls.crt", "tls.key", "ca.crt"), strict=True)
        data = {entry: base64.b64encode(x.read_bytes()).decode() for x, entry in files}
        body = {"metadata": {"name": secret}, "type": "kubernetes.io/tls", "data": data}
        world.api.post(f"/api/v1/namespaces/{NAMESPACE}/secrets", body)
    return webhooks.file.read_text()


class Admissions:
    """Pods of the enforced namespace, many in a second, that are admitted and not kept."""

    def __init__(self, pods: Namespace) -> None:
        self._pods = pods
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="admissions", daemon=True)
        self.admitted = 0
        self.faults: list[str] = []
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(START_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            try:
                path = f"{self._pods.path}/pods?dryRun=All"
                self._pods.api.post(path, holder(f"dry-{self.admitted}"))
            except Exception as error:  # noqa: BLE001 - told by the test, not by the thread
                self.faults.append(f"{self.admitted}: {error!r}")
                if len(self.faults) > MOST_FAULTS:
                    return
            self.admitted += 1


def bundles(world: World) -> set[str]:
    """What API servers trust for our webhooks."""
    names = ("gpuwarden-pods", "gpuwarden-bindings")
    kinds = [("mutating", x) for x in names] + [("validating", names[0])]
    root = "/apis/admissionregistration.k8s.io/v1"
    found = [world.api.get(f"{root}/{kind}webhookconfigurations/{name}") for kind, name in kinds]
    texts = {x["clientConfig"].get("caBundle", "") for one in found for x in one["webhooks"]}
    return {base64.b64decode(x).decode() for x in texts}


@pytest.mark.long
def test_a_change_to_managed_certificates_under_load_refuses_nobody(world: World) -> None:
    """Admission, binding and the extender's answers, from the first upgrade to after the second."""
    world.release.uninstall("--ignore-not-found")
    given = give_certificates(world)
    world.changed = {"certificates": {"mode": "given", "caBundle": given}}
    world.release.install(world.release.values(**world.changed))
    world.verified()
    assert bundles(world) == {given}
    world.team()
    world.started("holder")
    with pytest.raises(HelmError, match=r"certificates\.servePrevious: false, expected true"):
        world.upgrade(certificates=MANAGED)
    changing = {**MANAGED, "servePrevious": True}
    with pytest.raises(HelmError, match=f"Secret {CLIENT}: there is one of an earlier time"):
        world.upgrade(certificates=changing)
    world.cluster.kubectl("delete", "secret", CLIENT)
    load, admissions = Load(world.pods), Admissions(world.pods)
    load.goes_on(1)
    schedulers = world.uids("scheduler")
    for certificates in (changing, {**MANAGED, "servePrevious": False}):
        controllers = world.uids("controller")
        world.upgrade(certificates=certificates)
        until(
            "controllers and schedulers are others",
            lambda before=controllers | schedulers: (
                not (  # type: ignore[misc] # mypy cannot infer the default
                    before & (world.uids("controller") | world.uids("scheduler"))
                )
            ),
            timeout_s=CHANGE_S,
        )
        for workload in ("statefulset/gpuwarden-controller", "deployment/gpuwarden-scheduler"):
            world.cluster.kubectl("rollout", "status", workload, "--timeout=110s")
        load.goes_on(2)
    load.end()
    admissions.end()
    assert (load.faults, admissions.faults) == ([], [])
    assert admissions.admitted > ADMITTED
    trusted = world.cluster.kubectl(
        "get", "configmap", "gpuwarden-ca", r"-o=jsonpath={.data.ca\.crt}"
    )
    assert bundles(world) == {trusted}
    assert given not in trusted
    assert world.pods.get("holder")["status"]["phase"] == "Running"


MADE = {"admission": "gpuwarden-admission-server", "extender": "gpuwarden-extender-server"}
"""By cert-manager: listener -> its Secret."""
REPLACED = (*MADE.values(), "gpuwarden-extender-client")
SECRETS = "/var/lib/kubelet/pods/{}/volumes/kubernetes.io~secret/extender/tls.crt"


def files(world: World, secret: str) -> dict[str, str]:
    data = world.api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{secret}")["data"]
    return {name: base64.b64decode(x).decode() for name, x in data.items()}


def taken(world: World) -> bool:
    """Whether listeners and schedulers have what the Secrets have."""
    wanted = {name: files(world, x)["tls.crt"].strip() for name, x in MADE.items()}
    for replica in range(REPLICAS):
        told = json.loads(world.cluster.gpuwarden(replica, "status", "-o", "json"))
        served = {x["name"]: x["certificates"].strip() for x in told["listeners"]}
        if not wanted.items() <= served.items():
            return False
    client = files(world, "gpuwarden-extender-client")["tls.crt"]
    inside = world.cluster.lab.node.capsule.path
    mounted = [inside(SECRETS.format(uid)) for uid in world.uids("scheduler")]
    return all(x.exists() and x.read_text() == client for x in mounted)


def renewed(world: World, certificates: Certificates, suffix: str) -> None:
    """Those whose names end so; every pod has them afterwards."""
    before = certificates.revisions(suffix)
    for name in before:
        certificates.renew(name)
    wanted = {name: x + 1 for name, x in before.items()}
    until(f"all {suffix} are renewed", lambda: certificates.revisions(suffix) == wanted)
    until("everybody has them", lambda: taken(world), timeout_s=CHANGE_S, poll_s=1)


@pytest.mark.long
def test_cert_manager_makes_and_renews_certificates_and_refuses_nobody(
    world: World, tmp_path: Path
) -> None:
    """Authorities too; a scheduler that has read the former one trusts what the next one signs."""
    world.release.uninstall("--ignore-not-found")
    world.changed = {"certificates": {"mode": "cert-manager"}}
    with pytest.raises(HelmError, match=r"a cluster without the API cert-manager\.io/v1"):
        world.release.install(world.release.values(**world.changed))
    cert_manager = CertManager(world.cluster.lab)
    cert_manager.install()
    certificates = Certificates(world.api, NAMESPACE)
    world.release.install(world.release.values(**world.changed))
    world.verified()
    world.team()
    world.started("holder")
    pods = [world.uids(x) for x in ("controller", "scheduler")]
    authority = files(world, MADE["admission"])["ca.crt"]
    assert bundles(world) == {authority}
    load, admissions = Load(world.pods), Admissions(world.pods)
    load.goes_on(1)
    for suffix in ("-ca", "-server", "-client"):
        renewed(world, certificates, suffix)
        load.goes_on(1)
    assert [world.uids(x) for x in ("controller", "scheduler")] == pods
    never_restarted(world.cluster, "controller", "scheduler")
    former, present = authority, files(world, MADE["admission"])["ca.crt"]
    assert bundles(world) == {former + present}
    examined(Workstation(world.cluster.lab.kubeconfig))
    world.upgrade(controller={"config": {"log": {"level": "debug"}}})
    until(
        "controllers are others", lambda: not pods[0] & world.uids("controller"), timeout_s=START_S
    )
    world.cluster.kubectl("rollout", "status", "statefulset/gpuwarden-controller", "--timeout=110s")
    load.goes_on(2)
    load.end()
    admissions.end()
    assert (load.faults, admissions.faults) == ([], [])
    assert world.uids("scheduler") == pods[1]
    assert world.pods.get("holder")["status"]["phase"] == "Running"
    page = Reader(world.cluster.lab, tmp_path / "reader", "docs/certificates.md")
    (replace,) = page.commands("Made by cert-manager")
    page.do(replace)
    secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    until("all are made again", lambda: all(world.api.found(f"{secrets}/{x}") for x in REPLACED))
    until("everybody has them", lambda: taken(world), timeout_s=CHANGE_S, poll_s=1)
    world.cluster.kubectl("rollout", "status", "deployment/gpuwarden-scheduler", "--timeout=110s")
    replaced = files(world, MADE["admission"])["ca.crt"]
    assert replaced not in (former, present)
    assert bundles(world) == {replaced}
    world.started("after")


@pytest.mark.parametrize(("program", "file"), [("server", "server.conf"), ("agent", "agent.conf")])
def test_a_bundled_spire_takes_its_configuration(program: str, file: str, tmp_path: Path) -> None:
    name = f"gpuwarden-spire-{program}"
    files = one(rendered("bundled-spire"), "ConfigMap", name)["data"]
    (tmp_path / file).write_text(files[file])
    binary = built([SPIRE])[f"spire-{program}"]
    command = (str(binary), "validate", "-config", str(tmp_path / file))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "is valid" in done.stdout) == (0, True), done.stderr
