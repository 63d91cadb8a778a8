"""From an empty cluster to a verified pod with one command, and back: `spire.mode: bundled`.

As docs/install.md says; the page has the times that this prints. The lab lacks a provisioner, a
registry and GPUs, so volumes, images, a device plugin and NVML's stand-in are there before.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.certificates.leaves import AUTHORITY_SECRET, leaf_specs
from tests.contracts.pod_resources import DEVICES
from tests.e2e.lab.device_plugin import DevicePlugin
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.machine import missing
from tests.e2e.lab.pods import pod
from tests.e2e.lab.product_images import NEEDS
from tests.e2e.lab.selection import why_no_spire
from tests.e2e.product.acceptance import (
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
from tests.e2e.product.with_spire import scenario
from tests.e2e.product.workstation import Workstation

pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("real_node"),
    pytest.mark.skipif(bool(why_no_spire()), reason=f"no SPIRE: {'; '.join(why_no_spire())}"),
    pytest.mark.timeout(1800),
]
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
        pods = enforced(cluster, TEAM)
        before = everything(cluster)

        steps = Steps()
        release.install(release.values())
        steps.reached("helm install has ended")
        verified(cluster, "L1")
        never_restarted(cluster, "controller", "agent", "spire-server", "spire-agent")
        steps.reached("both controllers have verified the node: L1")
        run_a_managed_set(cluster, pods)
        steps.reached("a pod of a managed StatefulSet runs with its GPU")
        passed, failed = release.test()
        assert failed == 0
        steps.reached(f"helm test has passed: {passed} checks")
        checks = examined(Workstation(empty.kubeconfig))
        assert checks["spire-policy"]["outcome"] == "passed"
        steps.reached("gpuwarden status and doctor from a workstation")
        release.uninstall()
        steps.reached("helm uninstall has ended")
        found = settled(lambda: left(cluster, before), STAYS)
        assert found == STAYS, (found - STAYS, STAYS - found)
        assert pods.get("train-0")["status"]["phase"] == "Running"
        pods.phase(pods.create(pod("after", "say", "here")), "Running")
        steps.reached("what is left is what the page says, and pods start")
    with capsys.disabled():
        print("\n" + "\n".join(steps.done))  # noqa: T201 - for people


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
    return {x for x in names - KUBERNETES_OWN if not x.startswith("GPUReservation/")}
