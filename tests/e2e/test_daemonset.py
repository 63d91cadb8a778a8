"""The shipped manifests as real pods: both images in containerd, run and probed by kubelet.

Workload API and NVML are the sandbox's, and so the level ends at L0; everything else is as
deploy/kustomize has it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.nvml.models import h100_sxm
from sandbox.nvml.scenario import Scenario
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.deploy.manifests import KUSTOMIZE, with_components
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.machine import missing
from tests.e2e.lab.product_images import NEEDS
from tests.e2e.lab.waiting import until
from tests.e2e.product.deployed import (
    REPLICAS,
    SOCKETS,
    Changes,
    Deployed,
    Document,
    shipped_policy,
)
from tests.e2e.product.workstation import (
    SECRET,
    account_subject,
    bind,
    furnish_access,
    subject,
    with_certificate,
    with_token,
)

pytestmark = [
    pytest.mark.usefixtures("real_node"),
    pytest.mark.timeout(1800),  # a first build, on a busy machine
]
TD = "example.org"


@pytest.fixture(scope="module")
def cluster(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    if reasons := missing(NEEDS):
        pytest.skip(f"no images: {'; '.join(reasons)}")
    cluster = Deployed(lab, tmp_path_factory.mktemp("manifests"))
    cluster.import_images()
    cluster.furnish(Scenario(gpus=tuple(h100_sxm(n) for n in range(2))))
    sockets = lab.node.capsule.path(SOCKETS)
    with InsecureWorkloadApi(sockets, TD) as workload_api:
        workload_api.add("agent", f"spiffe://{TD}/gpuwarden/agent/{lab.node.name}")
        workload_api.add("controller", f"spiffe://{TD}/gpuwarden/controller")
        for socket in sockets.glob("*.sock"):
            socket.chmod(0o777)  # as SPIRE's is
        furnish_access(cluster)
        cluster.apply(
            Changes(
                workstation=True,
                policy={**shipped_policy(), "minLevel": "L0"},
                agent={"GPUWARDEN_WORKLOAD_API": f"unix://{SOCKETS}/agent.sock"},
                controller={
                    "GPUWARDEN_WORKLOAD_API": f"unix://{SOCKETS}/controller.sock",
                    "GPUWARDEN_SPIRE_SERVER": "off",
                },
            )
        )
        yield cluster
        cluster.clear()
        cluster.kubectl("delete", "secret", SECRET)


def test_kubectl_exec_shows_the_node_verified_by_both_replicas(cluster: Deployed) -> None:
    for replica in range(REPLICAS):
        node = until(
            f"replica {replica} has verified the node",
            lambda number=replica: cluster.in_state(number, "eligible"),  # type: ignore[misc] # mypy cannot infer the default
            timeout_s=180,
        )
        assert (node["name"], node["level"]) == (cluster.lab.node.name, "L0")


def test_kubelet_finds_every_container_ready(cluster: Deployed) -> None:
    for component, count in (("agent", 1), ("controller", REPLICAS)):
        until(
            f"{component} is ready",
            lambda name=component, wanted=count: ready(cluster.pods(name)) == wanted,  # type: ignore[misc] # same
            timeout_s=180,
        )
        for pod in cluster.pods(component):
            assert [x["restartCount"] for x in pod["status"]["containerStatuses"]] == [0]


def ready(pods: list[Document]) -> int:
    return sum(x["ready"] for pod in pods for x in pod["status"].get("containerStatuses", ()))


def test_a_rolling_update_of_the_agents_keeps_the_node(cluster: Deployed) -> None:
    """Within the lease, as a new process: nothing is quarantined, the hardware is the same."""
    until("verified", lambda: cluster.in_state(0, "eligible"), timeout_s=180)
    (before,) = cluster.pods("agent")
    cluster.kubectl("rollout", "restart", "daemonset/gpuwarden-agent")
    cluster.kubectl("rollout", "status", "daemonset/gpuwarden-agent", "--timeout=100s")
    for replica in range(REPLICAS):
        assert cluster.in_state(replica, "eligible") is not None
    (after,) = cluster.pods("agent")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


def test_the_api_server_takes_the_overlay_and_components(cluster: Deployed, tmp_path: Path) -> None:
    own = with_components(tmp_path, "extender", "mig", "on-control-plane")
    for folder in (KUSTOMIZE / "overlays" / "dev", own):
        command = ("apply", "--dry-run=server", "--validate=strict", f"--kustomize={folder}")
        cluster.kubectl(*command, "--namespace=")  # some are in kube-system


def test_people_come_with_their_kubeconfig_and_the_log_names_them(
    cluster: Deployed, tmp_path: Path
) -> None:
    """Through the API server, kubelet and containerd: by a certificate, and by a token."""
    lab, node = cluster.lab, cluster.lab.node.name
    until("verified", lambda: cluster.in_state(0, "eligible"), timeout_s=180)
    until("authority published", lambda: "ca.crt" in published(cluster), timeout_s=90)
    jane = with_certificate(lab, "jane")
    reader, nobody = (with_token(lab, name, tmp_path) for name in ("gpu-reader", "gpu-nobody"))
    accounts = [account_subject(x) for x in ("gpu-reader", "gpu-nobody")]
    bind(lab, "gpu-people", "gpuwarden-access", subject("jane"), *accounts, kind="Role")
    bind(lab, "gpu-operators", "gpuwarden-operator", subject("jane"))
    bind(lab, "gpu-readers", "gpuwarden-inspector", accounts[0])

    for one in (jane, reader):
        assert one.run_until_allowed("nodes", "-o", "name").split() == [node]
    manifest = '{"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "m"}]}}'
    assert "does not manage it" in jane.run("fit", "-f", "-", text=manifest).stdout
    refused = nobody.run("nodes")
    assert refused.returncode == 4
    assert "system:serviceaccount:default:gpu-nobody may not call" in refused.stderr
    quarantine = ("node", "quarantine", node, "--reason", "INC 1", "--yes")
    refused = reader.run(*quarantine)
    assert (refused.returncode, "gpuwarden-operator" in refused.stderr) == (4, True)
    jane.run_until_allowed(*quarantine)
    jane.run_until_allowed("node", "release", node, "--reason", "INC 1 over", "--yes")
    until(
        "the log names her",
        lambda: any('"actor":"user jane"' in cluster.audit_log(x) for x in range(REPLICAS)),
    )
    until("verified again", lambda: cluster.in_state(0, "eligible"), timeout_s=60)


def published(cluster: Deployed) -> str:
    return cluster.kubectl("get", "configmap", "gpuwarden-access", "-o", "json")
