"""From an empty cluster to a verified pod by docs/tutorial-cluster.md, and back.

Its commands run as they are, so `spire.mode: bundled`. The lab lacks a provisioner, a registry and
GPUs, so volumes, images, a device plugin and NVML's stand-in are there before. NVIDIA's container
toolkit mounts that one.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from controller.certificates.leaves import AUTHORITY_SECRET, leaf_specs
from tests.chart.tools import tools
from tests.contracts.pod_resources import DEVICES
from tests.e2e.lab.device_plugin import DevicePlugin
from tests.e2e.lab.images import Image
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.machine import missing
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.lab.product_images import NEEDS
from tests.e2e.lab.selection import why_no_spire
from tests.e2e.lab.shared_objects import shared_objects
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
from tests.e2e.product.helm_release import HelmRelease
from tests.e2e.product.installation import NAMESPACE
from tests.e2e.product.reader import ROOT, Reader
from tests.e2e.product.with_spire import scenario
from tests.e2e.product.workstation import Workstation, write_program

pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("real_node"),
    pytest.mark.skipif(bool(why_no_spire()), reason=f"no SPIRE: {'; '.join(why_no_spire())}"),
    pytest.mark.timeout(1800),
]
PAGE = "docs/tutorial-cluster.md"
EXAMPLE = ROOT / "examples/verified-pod.yaml"
REGISTRY = re.compile(r"--set imageRegistry=(\S+)")
FAILED = re.compile(r"^  failed +(.*)", re.MULTILINE)
"""What doctor says of a check."""
NO_PROVISIONER = "the controllers' volumes can be made"
"""A check that fails on a lab."""
PLUGINS = "/var/lib/kubelet/device-plugins"
NODE = "gpu-a1"
"""On the page."""
TEAM = "team-b"
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


def test_the_tutorial_gives_a_verified_pod_and_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if reasons := missing(NEEDS):
        pytest.skip(f"no images: {'; '.join(reasons)}")
    with ExitStack() as stack:
        cluster = Deployed(stack.enter_context(Lab.whole()), tmp_path)
        stack.enter_context(explained_failures(cluster, "bundled-spire"))
        program = write_program(tmp_path / "program")
        page = Reader(cluster.lab, tmp_path / "page", PAGE, tools().helm, program)
        release = HelmRelease(cluster.lab, None, tmp_path)
        stack.enter_context(before_there_is_gpuwarden(cluster, page, release))
        before = everything(cluster)
        steps = Steps()
        follow(page, cluster, steps)
        delete, uninstall = "".join(page.commands("Remove")).splitlines()
        page.do(delete)

        pods = enforced(cluster, TEAM)
        run_a_managed_set(cluster, pods)
        steps.reached("a pod of a managed StatefulSet runs with its GPU")
        passed, failed = release.test()
        assert failed == 0
        steps.reached(f"helm test has passed: {passed} checks")
        checks = examined(Workstation(cluster.lab.kubeconfig))
        assert checks["spire-policy"]["outcome"] == "passed"
        steps.reached("gpuwarden status and doctor from a workstation")
        page.do(uninstall)
        steps.reached("helm uninstall has ended")
        found = settled(lambda: left(cluster, before), STAYS)
        assert found == STAYS, (found - STAYS, STAYS - found)
        assert pods.get("train-0")["status"]["phase"] == "Running"
        pods.phase(pods.create(pod("after", "say", "here")), "Running")
        steps.reached("what is left is what the page says, and pods start")
    with capsys.disabled():
        print("\n" + "\n".join(steps.done))  # noqa: T201 - for people


@contextmanager
def before_there_is_gpuwarden(
    cluster: Deployed, page: Reader, release: HelmRelease
) -> Iterator[None]:
    """What the page asks for: GPUs that pods can have, a runtime for them, images, volumes."""
    install, *_ = page.commands("Three commands")
    cluster.import_images(*REGISTRY.findall(install))
    release.load_images()
    release.load_spire()
    cluster.lab.node.containerd.load(ubuntu(cluster.lab))
    cluster.provide_volumes(SPIRE_CLAIM)
    cluster.furnish(scenario())
    cluster.offer_driver()
    cluster.mark_node()
    with DevicePlugin(cluster.lab.node.capsule.path(PLUGINS), DEVICES):
        (pre,) = page.commands("Before")
        assert FAILED.findall(page.run(pre).stdout) == [NO_PROVISIONER]
        yield


def follow(page: Reader, cluster: Deployed, steps: Steps) -> None:
    """The page up to a pod on a verified GPU; each command says what the page shows."""
    here = {NODE: cluster.lab.node.name}
    install, wait, apply = page.commands("Three commands")
    page.do(install)
    steps.reached("helm install has ended")
    ((_, shown),) = page.answers("Three commands")
    assert page.lacks(shown, wait, **here) == set()
    steps.reached("gpuwarden doctor --wait has ended")
    verified(cluster, "L1")
    never_restarted(cluster, "controller", "agent", "spire-server", "spire-agent")
    steps.reached("both controllers have verified the node: L1")
    page.do(apply)
    Namespace(cluster.lab.api, "team-a").phase("train-0", "Running", timeout_s=START_S)
    steps.reached("the pod of the page runs")
    for command, shown in page.answers("What you see"):
        lacking = settled(partial(page.lacks, shown, command, **here), set())
        assert lacking == set(), command
    steps.reached("every command says what the page shows")


def ubuntu(lab: Lab) -> Image:
    """The image of the page's pod: a shell, `sleep`, and what stands for nvidia-smi."""
    (name,) = re.findall(r"image: (\S+)", EXAMPLE.read_text())
    files = {f"/usr/bin/{x}": Path(f"/bin/{x}").resolve() for x in ("sh", "sleep")}
    libraries = {k: v for x in files.values() for k, v in shared_objects(x).items()}
    probe = {"/usr/bin/nvidia-smi": lab.site.programs["probe"]}
    return Image(name, {**files, **libraries, **probe}, ["/usr/bin/sh"], ["PATH=/usr/bin"])


def everything(cluster: Deployed) -> set[str]:
    """`Kind/namespace/name` of every object but those that come and go."""
    listed = cluster.kubectl("api-resources", "--verbs=list", "-o=name").split()
    kinds = ",".join(x for x in listed if x.partition(".")[0] not in UNTOLD)
    columns = "-o=custom-columns=K:.kind,S:.metadata.namespace,N:.metadata.name"
    text = cluster.kubectl("get", kinds, "--all-namespaces", "--no-headers", columns)
    return {"/".join(line.split()) for line in text.splitlines()}


def left(cluster: Deployed, before: set[str]) -> set[str]:
    """`Kind/name` of what is there now; reservations have names of their own."""
    rest = [x.split("/") for x in everything(cluster) - before]
    names = {f"{kind}/{name}" for kind, namespace, name in rest if namespace != TEAM}
    names -= {*KUBERNETES_OWN, f"Namespace/{TEAM}"}
    return {x for x in names if not x.startswith("GPUReservation/")}
