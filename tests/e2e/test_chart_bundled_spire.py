"""From an empty cluster to a verified pod with one command, and back: `spire.mode: bundled`.

As docs/install.md says; the page has the times that this prints. The lab lacks a provisioner, a
registry and GPUs, so volumes, images, a device plugin and NVML's stand-in are there before.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from controller.certificates.leaves import AUTHORITY_SECRET, leaf_specs
from tests.contracts.pod_resources import DEVICES, RESOURCE
from tests.e2e.lab.api import Document
from tests.e2e.lab.device_plugin import VARIABLE, DevicePlugin
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.machine import missing
from tests.e2e.lab.pods import PROBE, Namespace, pod
from tests.e2e.lab.product_images import NEEDS
from tests.e2e.lab.selection import why_no_spire
from tests.e2e.lab.waiting import NeverError, until
from tests.e2e.product.deployed import REPLICAS, Deployed
from tests.e2e.product.helm_release import HelmRelease
from tests.e2e.product.installation import NAMESPACE
from tests.e2e.product.with_spire import scenario
from tests.e2e.product.workstation import Workstation
from tests.e2e.run_record import KEPT

pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("real_node"),
    pytest.mark.skipif(bool(why_no_spire()), reason=f"no SPIRE: {'; '.join(why_no_spire())}"),
    pytest.mark.timeout(1800),
]
START_S = 600
TEAM = "team-a"
SPIRE_CLAIM = "data-gpuwarden-spire-server-0"
STAYS = {
    f"Namespace/{NAMESPACE}",
    *(
        f"CustomResourceDefinition/{kind}.gpuwarden.dev"
        for kind in (
            "attestationclasses",
            "attestationpolicies",
            "gpureservations",
            "nodeenrollments",
        )
    ),
    "NodeEnrollment/real-0",
    "Secret/gpuwarden-reservation-keys",
    f"Secret/{AUTHORITY_SECRET}",
    *(f"Secret/{x.secret}" for x in leaf_specs("")),
    "ConfigMap/gpuwarden-ca",
    *(f"PersistentVolumeClaim/data-gpuwarden-controller-{n}" for n in range(REPLICAS)),
    f"PersistentVolumeClaim/{SPIRE_CLAIM}",
    *(f"Lease/gpuwarden-{x}" for x in ("controller", "scheduler")),
}
"""What docs/install.md says; and reservations."""
KUBERNETES_OWN = {
    "APIService/v1alpha1.gpuwarden.dev",
    "ConfigMap/kube-root-ca.crt",
    "ServiceAccount/default",
}
"""Comes with a namespace and with custom resources."""
UNTOLD = ("componentstatuses", "events")


@dataclass
class Steps:
    """What was done, and when."""

    began: float = field(default_factory=time.monotonic)
    done: list[str] = field(default_factory=list)

    def reached(self, what: str) -> None:
        self.done.append(f"{time.monotonic() - self.began:5.0f} s  {what}")


@contextmanager
def explained_failures(cluster: Deployed, name: str) -> Iterator[None]:
    """Keep what pods say where the body fails: nobody has them after the lab."""
    try:
        yield
    except BaseException:
        folder = KEPT / name
        cluster.lab.keep_logs(folder, {})
        (folder / "described.txt").write_text(
            cluster.kubectl("get", "pods,jobs", "--all-namespaces", "-o=wide")
            + cluster.kubectl("describe", "pods")
            + cluster.kubectl("get", "events", "--all-namespaces")
        )
        raise


def test_one_command_gives_level_l1_and_a_pod_and_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if reasons := missing(NEEDS):
        pytest.skip(f"no images: {'; '.join(reasons)}")
    with ExitStack() as stack:
        empty = stack.enter_context(Lab.whole())
        cluster = Deployed(empty, tmp_path)
        stack.enter_context(explained_failures(cluster, "bundled-spire"))
        cluster.import_images()
        cluster.furnish(scenario())
        plugins = empty.node.capsule.path("/var/lib/kubelet/device-plugins")
        stack.enter_context(DevicePlugin(plugins, DEVICES))
        release = HelmRelease(empty, None, tmp_path)
        release.load_images()
        release.load_spire()
        cluster.provide_volumes(SPIRE_CLAIM)
        cluster.mark_node()
        team(cluster)
        before = everything(cluster)

        steps = Steps()
        release.install(release.values())
        steps.reached("helm install has ended")
        verified(cluster)
        steps.reached("both controllers have verified the node: L1")
        pods = Namespace(empty.api, TEAM)
        run_a_managed_set(cluster, pods)
        steps.reached("a pod of a managed StatefulSet runs with its GPU")
        passed, failed = release.test()
        assert failed == 0
        steps.reached(f"helm test has passed: {passed} checks")
        examine(Workstation(empty.kubeconfig))
        steps.reached("gpuwarden status and doctor from a workstation")
        release.uninstall()
        steps.reached("helm uninstall has ended")
        found = settled(lambda: left(cluster, before))
        assert found == STAYS, (found - STAYS, STAYS - found)
        assert pods.get("train-0")["status"]["phase"] == "Running"
        pods.phase(pods.create(pod("after", "say", "here")), "Running")
        steps.reached("what is left is what the page says, and pods start")
    with capsys.disabled():
        print("\n" + "\n".join(steps.done))  # noqa: T201 - for people


def team(cluster: Deployed) -> None:
    metadata = {"name": TEAM, "labels": {"gpuwarden.dev/enforce": "true"}}
    cluster.lab.api.post("/api/v1/namespaces", {"metadata": metadata})


def verified(cluster: Deployed) -> None:
    for replica in range(REPLICAS):
        node = until(
            f"replica {replica} has verified the node",
            lambda number=replica: cluster.in_state(number, "eligible"),  # type: ignore[misc] # mypy cannot infer the default
            timeout_s=START_S,
        )
        assert node["level"] == "L1"
    for component in ("controller", "agent", "spire-server", "spire-agent"):
        for one in cluster.pods(component):
            counts = [x["restartCount"] for x in one["status"]["containerStatuses"]]
            assert counts == [0] * len(counts), (component, counts)


def run_a_managed_set(cluster: Deployed, pods: Namespace) -> None:
    """Its pod requires the class of this node, and has the GPU that kubelet says."""
    node = cluster.node(0)
    assert node is not None
    template = {
        "metadata": {
            "labels": {"app": "train"},
            "annotations": {"gpuwarden.dev/required-hash": node["attestationHash"]},
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": PROBE,
                    "imagePullPolicy": "Never",
                    "args": ["env", VARIABLE],
                    "resources": {"limits": {RESOURCE: "1"}},
                }
            ]
        },
    }
    spec = {
        "serviceName": "train",
        "selector": {"matchLabels": {"app": "train"}},
        "template": template,
    }
    path = f"/apis/apps/v1/namespaces/{TEAM}/statefulsets"
    cluster.lab.api.post(path, {"metadata": {"name": "train"}, "spec": spec})
    until("its pod runs", lambda: phase(pods, "train-0") == "Running", timeout_s=START_S)
    found = pods.get("train-0")
    assert found["spec"]["schedulerName"] == "gpuwarden"
    assert found["metadata"]["annotations"]["gpuwarden.dev/node"] == cluster.lab.node.name
    (card,) = (x for x in DEVICES if x in pods.says("train-0", f"{VARIABLE}="))
    until("kubelet's allocation is known", lambda: given(cluster) == [card])


def phase(pods: Namespace, name: str) -> str:
    found = pods.api.found(f"{pods.path}/pods/{name}")
    return "" if found is None else str(found["status"].get("phase", ""))


def given(cluster: Deployed) -> list[str]:
    """GPUs that verified evidence says the pod was given."""
    told: Document = json.loads(
        cluster.gpuwarden(0, "explain", "pod", f"{TEAM}/train-0", "-o", "json")
    )
    (station,) = (x for x in told["stations"] if x["name"] == "kubelet")
    return list(station.get("gpus", []))


def examine(person: Workstation) -> None:
    """An administrator with nothing but the kubeconfig."""
    status = person.run("status")
    assert status.returncode == 0, status
    doctor = person.run("doctor", "-o", "json")
    found = {x["id"]: x for group in json.loads(doctor.stdout)["groups"] for x in group["checks"]}
    bad = {x: y for x, y in found.items() if y["outcome"] == "failed"}
    assert (doctor.returncode, bad) == (0, {})
    for name in ("controller-answers", "pod-mutated", "pod-refused", "spire-policy", "evidence"):
        assert found[name]["outcome"] == "passed", found[name]


def everything(cluster: Deployed) -> set[str]:
    """`Kind/namespace/name` of every object but those that come and go."""
    listed = cluster.kubectl("api-resources", "--verbs=list", "-o=name").split()
    kinds = ",".join(x for x in listed if x.partition(".")[0] not in UNTOLD)
    columns = "-o=custom-columns=K:.kind,S:.metadata.namespace,N:.metadata.name"
    text = cluster.kubectl("get", kinds, "--all-namespaces", "--no-headers", columns)
    return {"/".join(line.split()) for line in text.splitlines()}


def settled(look: Callable[[], set[str]]) -> set[str]:
    """What is left, once it is what is expected, or after a while whatever it is."""
    with suppress(NeverError):
        until("it is as expected", lambda: look() == STAYS, timeout_s=60, poll_s=1)
    return look()


def left(cluster: Deployed, before: set[str]) -> set[str]:
    """`Kind/name` of what is there now; reservations have names of their own."""
    rest = [x.split("/") for x in everything(cluster) - before]
    names = {f"{kind}/{name}" for kind, namespace, name in rest if namespace != TEAM}
    return {x for x in names - KUBERNETES_OWN if not x.startswith("GPUReservation/")}
