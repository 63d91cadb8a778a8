"""The other ways in, on one cluster: an evaluation, then `kubectl apply -k …` of the dev overlay.

As deploy/README.md, docs/uninstall.md and docs/kind.md say. The lab lacks a provisioner and a
registry, so volumes and images are there before. The overlay also finds a device plugin and a
stand-in for NVML; an evaluation brings its own.
"""

import json
import re
import shutil
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from controller.certificates.leaves import AUTHORITY_SECRET, TRUST_BUNDLE, leaf_specs
from sandbox.evaluation import scenario as made_up
from tests.chart.tools import tools
from tests.contracts.pod_resources import DEVICES
from tests.e2e.lab.api import Document
from tests.e2e.lab.cluster_spire import ClusterSpire
from tests.e2e.lab.device_plugin import DevicePlugin
from tests.e2e.lab.images import Image
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.machine import missing
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.lab.product_images import NEEDS, evaluation_image
from tests.e2e.lab.selection import why_no_spire
from tests.e2e.lab.upstreams import KUBERNETES, upstream
from tests.e2e.product.acceptance import (
    START_S,
    Steps,
    enforced,
    examined,
    explained_failures,
    never_restarted,
    run_a_managed_set,
    settled,
    verified,
)
from tests.e2e.product.deployed import REPLICAS, Deployed
from tests.e2e.product.entries import shipped_entries
from tests.e2e.product.helm_release import HelmRelease
from tests.e2e.product.installation import NAMESPACE
from tests.e2e.product.pods import told
from tests.e2e.product.reader import Reader
from tests.e2e.product.with_spire import scenario
from tests.e2e.product.workstation import Workstation, account_subject, bind

pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("real_node"),
    pytest.mark.skipif(bool(why_no_spire()), reason=f"no SPIRE: {'; '.join(why_no_spire())}"),
    pytest.mark.timeout(1800),
]
APPLY = "kubectl apply -k deploy/kustomize/overlays/dev"
"""In deploy/README.md."""
CUSTOM = ("attestationclasses", "attestationpolicies", "gpureservations", "nodeenrollments")
KEPT = {
    "NodeEnrollment real-0",
    "APIService v1alpha1.gpuwarden.dev",
    *(f"CustomResourceDefinition {kind}.gpuwarden.dev" for kind in CUSTOM),
    f"Namespace {NAMESPACE}",
    "Secret gpuwarden-reservation-keys",
    f"Secret {AUTHORITY_SECRET}",
    *(f"Secret {x.secret}" for x in leaf_specs("")),
    f"ConfigMap {TRUST_BUNDLE}",
    *(f"PersistentVolumeClaim data-gpuwarden-controller-{n}" for n in range(REPLICAS)),
    "ConfigMap kube-root-ca.crt",
    "ServiceAccount default",
    "StatefulSet train",
    "Pod train-0",
}
"""After part 1 of docs/uninstall.md; and reservations, which are named by their GPUs."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """Nothing of gpuwarden but images."""
    if reasons := missing(NEEDS):
        pytest.skip(f"no images: {'; '.join(reasons)}")
    with Lab.whole() as lab:
        cluster = Deployed(lab, tmp_path_factory.mktemp("cluster"))
        cluster.import_images()
        yield cluster


def test_an_evaluation_says_so_everywhere_and_mixes_with_nothing(
    cluster: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/kind.md from `helm install` on, on a node without GPUs and without a device plugin."""
    lab = cluster.lab
    page = Reader(lab, tmp_path / "kind", "docs/kind.md", tools().helm)
    removal = Reader(lab, tmp_path / "uninstall", "docs/uninstall.md")
    with explained_failures(cluster, "evaluation"):
        load_for_evaluation(lab, tmp_path)
        cluster.provide_volumes("data-gpuwarden-spire-server-0")
        before = removal.traces()

        steps = Steps()
        _, install = page.commands("Install")
        notes = page.do(install)
        assert "*** EVALUATION: agents show made-up GPUs." in notes
        steps.reached("helm install has ended, and both controllers are ready")
        node = verified(cluster, "none")
        assert node["driver"].endswith("+evaluation")
        steps.reached("the node is eligible at level none")
        (look,) = page.commands("Look")
        alias, *asked = look.splitlines()
        assert page.do(look).count("*** EVALUATION") == len(asked)
        (place,) = page.commands("Place a pod")
        page.do(f"{alias}\n{place}")
        pods = Namespace(lab.api, "team-a")
        pods.phase("first", "Running", timeout_s=START_S)
        given = pods.get("first")["metadata"]["annotations"]["gpuwarden.dev/gpu-uuids-assigned"]
        assert given in {x.uuid for x in made_up(lab.node.name).gpus}
        steps.reached("the pod of the page runs with a made-up GPU")
        pods.create(demanding("L0"))
        told(pods, "l0", "LEVEL_TOO_LOW", timeout_s=START_S)
        assert "nodeName" not in pods.get("l0")["spec"]
        warns(cluster)
        checks = examined(Workstation(lab.kubeconfig))
        assert checks["evaluation"]["outcome"] == "warning"
        steps.reached("readiness, audit log and doctor say that it is an evaluation")
        upgrade = "helm upgrade gpuwarden deploy/helm/gpuwarden --reset-then-reuse-values"
        upgrade += f" --namespace {NAMESPACE} --set"
        refused = page.run(f"{upgrade} evaluation.enabled=false,trustDomain=acme.io")
        assert refused.returncode != 0
        assert "evaluation.enabled: false, expected true as it was installed" in refused.stderr
        page.do(f"{upgrade} httpApi.enabled=true,console.enabled=true --wait --timeout=5m")
        assert '<p class="banner" role="note"><strong>Evaluation:</strong>' in shown(cluster)
        steps.reached("the page in a browser has the banner")
        page.do(f"helm uninstall gpuwarden --namespace {NAMESPACE}")
        page.do("kubectl delete namespace team-a")
        page.do("kubectl --namespace default delete clusterrolebinding,serviceaccount viewer")
        removal.walk("Part 2", "Part 3")
        assert settled(lambda: removal.traces() - before, set()) == set()
        steps.reached("helm uninstall, and parts 2 and 3 of its page, leave nothing")
    forget(lab)
    with capsys.disabled():
        print("\n" + "\n".join(steps.done))  # noqa: T201 - for people


def load_for_evaluation(lab: Lab, folder: Path) -> None:
    containerd = lab.node.containerd
    containerd.load_archive(evaluation_image().archive)
    release = HelmRelease(lab, None, folder)
    release.load_images()
    release.load_spire()
    pause = "registry.k8s.io/pause:3.10"
    containerd.load(Image(pause, {"/pause": lab.site.programs["probe"]}, ["/pause"]))


def demanding(level: str) -> Document:
    """A pod that wants a GPU of a node with this level."""
    document = pod(level.lower(), "say", "here")
    document["metadata"]["annotations"] = {
        "gpuwarden.dev/gpu-count": "1",
        "gpuwarden.dev/min-level": level,
    }
    return document


def warns(cluster: Deployed) -> None:
    """Where programs and auditors look."""
    warning = "EVALUATION (evaluation.enabled): GPUs may be made up and nothing is proven"
    for replica in range(REPLICAS):
        name = f"gpuwarden-controller-{replica}"
        proxy = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:9090/proxy"
        ready = json.loads(cluster.lab.api.text(f"{proxy}/readyz"))
        assert [x for x in ready["warnings"] if x.startswith(warning)]
        assert "gpuwarden_evaluation 1.0" in cluster.lab.api.text(f"{proxy}/metrics")
        records = [json.loads(x) for x in cluster.audit_log(replica).splitlines()]
        started = next(x for x in records if x["subject"] == "settings")
        assert [x for x in started["refs"]["insecure"] if x.startswith(warning)]


def shown(cluster: Deployed) -> str:
    """The first page of the console, for somebody with the role and a token."""
    account = "viewer"
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    cluster.lab.api.post(accounts, {"metadata": {"name": account}})
    bind(cluster.lab, account, "gpuwarden-inspector", account_subject(account))
    token = cluster.kubectl("create", "token", account, "--namespace=default").strip()
    verified(cluster, "none")
    bundle = cluster.kubectl("get", "configmap", TRUST_BUNDLE, "-o=jsonpath={.data.ca\\.crt}")
    context = ssl.create_default_context(cadata=bundle)
    context.check_hostname = False  # it is asked by its address
    address = cluster.pods("controller")[0]["status"]["podIP"]
    connection = HTTPSConnection(address, 8080, timeout=60, context=context)
    try:
        connection.request("GET", "/", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        text = answer.read().decode()
        assert (answer.status, answer.headers["Gpuwarden-Insecure"]) == (200, "evaluation"), text
        return re.sub(r"\s+", " ", text)
    finally:
        connection.close()


def test_the_dev_overlay_works_as_it_is_and_goes_as_the_page_says(
    cluster: Deployed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = cluster.lab
    page = Reader(lab, tmp_path / "uninstall", "docs/uninstall.md")
    with ExitStack() as stack:
        stack.enter_context(explained_failures(cluster, "dev-overlay"))
        spire = stack.enter_context(spire_with_entries(lab))
        cluster.furnish(scenario())
        plugins = lab.node.capsule.path("/var/lib/kubelet/device-plugins")
        stack.enter_context(DevicePlugin(plugins, DEVICES))
        load_scheduler(lab)
        cluster.provide_volumes()
        cluster.mark_node()
        pods = enforced(cluster, "team-b")
        before = page.traces()

        steps = Steps()
        page.do(APPLY)
        steps.reached("kubectl apply has ended")
        cluster.mount_driver()
        register(spire, lab)
        verified(cluster, "L1")
        never_restarted(cluster, "controller")
        steps.reached("both controllers have verified the node: L1")
        run_a_managed_set(cluster, pods)
        steps.reached("a pod of a managed StatefulSet runs with its GPU")
        place_the_example(page, lab)
        steps.reached("examples/pod.yaml is placed as it is")
        examined(Workstation(lab.kubeconfig))
        steps.reached("gpuwarden status and doctor from a workstation")

        page.walk("Before", "Part 1")
        found = settled(lambda: left(page, before), KEPT)
        assert found == KEPT, (found - KEPT, KEPT - found)
        assert pods.get("train-0")["status"]["phase"] == "Running"
        steps.reached("part 1 of the page leaves what it says")
        page.do("kubectl delete namespace team-b")
        page.walk("Part 2", "Part 3")
        assert settled(lambda: page.traces() - before, set()) == set()
        steps.reached("parts 2 and 3 leave nothing")
    forget(lab)
    with capsys.disabled():
        print("\n" + "\n".join(steps.done))  # noqa: T201 - for people


def left(page: Reader, before: set[str]) -> set[str]:
    return {
        x
        for x in page.traces() - before
        if not x.startswith(("GPUReservation ", "ControllerRevision train-"))
    }


@contextmanager
def spire_with_entries(lab: Lab) -> Iterator[ClusterSpire]:
    """Where the overlay looks for SPIRE: a server behind its Service, an agent on the node."""
    spire = ClusterSpire(lab)
    spire.start()
    metadata = {"name": "spire-server", "namespace": "spire-server"}
    services = f"/api/v1/namespaces/{metadata['namespace']}/services"
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{metadata['namespace']}/endpointslices"
    ports = [{"port": 443, "targetPort": spire.server.port, "name": "grpc"}]
    lab.api.post("/api/v1/namespaces", {"metadata": {"name": metadata["namespace"]}})
    lab.api.post(services, {"metadata": metadata, "spec": {"ports": ports}})
    labels = {"kubernetes.io/service-name": metadata["name"]}
    endpoints = {
        "metadata": {**metadata, "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "grpc", "port": spire.server.port}],
        "endpoints": [{"addresses": [str(lab.plan.inside)]}],
    }
    lab.api.post(slices, endpoints)
    yield spire
    lab.api.delete(f"/api/v1/namespaces/{metadata['namespace']}")
    spire.close()


def register(spire: ClusterSpire, lab: Lab) -> None:
    """What SPIRE's controller manager makes of deploy/spire/clusterspiffeids.yaml."""
    for entry in shipped_entries(lab.node.name).values():
        spire.server.register(entry.spiffe_id, spire.agent_id, *entry.selectors, dns=entry.dns)


def load_scheduler(lab: Lab) -> None:
    """The image as deploy/scheduler names it, without a registry."""
    program, place = lab.site.programs["kube-scheduler"], "/usr/local/bin/kube-scheduler"
    name = f"docker.io/library/kube-scheduler:v{upstream(KUBERNETES).version}"
    lab.node.containerd.load(Image(name, {place: program}, [place], ["PATH=/usr/local/bin"]))


def place_the_example(page: Reader, lab: Lab) -> None:
    """The file says how; its image is nobody's, so the pod does not run."""
    page.do("kubectl label namespace default gpuwarden.dev/enforce=true")
    page.do("kubectl apply -f examples/pod.yaml")
    assert lab.pods.node_of("train-0", START_S) == lab.node.name
    noted = lab.pods.get("train-0")["metadata"]["annotations"]
    assert noted["gpuwarden.dev/node"] == lab.node.name
    page.do("kubectl delete -f examples/pod.yaml")


def forget(lab: Lab) -> None:
    """What the page says is left on the nodes."""
    shutil.rmtree(lab.node.capsule.path("/var/lib/gpuwarden"))
    path = f"/api/v1/nodes/{lab.node.name}"
    lab.api.patch(path, {"metadata": {"labels": {"nvidia.com/gpu.present": None}}})
