"""The shipped manifests as real pods: both images in containerd, run and probed by kubelet.

Workload API and NVML are the sandbox's, and so the level ends at L0; everything else is as
deploy/kustomize has it.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandbox.nvml.build import LIBRARY, build
from sandbox.nvml.models import h100_sxm
from sandbox.nvml.scenario import VARIABLE, Scenario, write
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.deploy.manifests import BASE, KUSTOMIZE, with_extender
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.machine import missing
from tests.e2e.lab.product_images import NEEDS, product_images
from tests.e2e.lab.waiting import until

pytestmark = [
    pytest.mark.usefixtures("real_node"),
    pytest.mark.timeout(1800),  # a first build, on a busy machine
]
TD = "example.org"
NAMESPACE = "gpuwarden-system"
SOCKETS = "/run/spire/agent-sockets"
DRIVER = "/var/lib/nvidia-driver"
"""Where this node keeps NVML's stand-in."""
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
DATA = "/var/lib/gpuwarden-volumes"
GROUP = 65532
FAST = {
    "GPUWARDEN_ATTESTATION_INTERVAL": "2s",
    "GPUWARDEN_ATTESTATION_CHALLENGE_TTL": "3s",
    "GPUWARDEN_ATTESTATION_LEASE": "30s",
    "GPUWARDEN_SPIRE_SERVER": "off",
}
Document = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    lab: Lab

    def kubectl(self, *arguments: str) -> str:
        command = (
            str(self.lab.site.programs["kubectl"]),
            f"--kubeconfig={self.lab.kubeconfig}",
            f"--cache-dir={self.lab.folder / 'kubectl'}",
            f"--namespace={NAMESPACE}",
        )
        done = subprocess.run(
            [*command, *arguments], capture_output=True, text=True, timeout=120, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def clear(self) -> None:
        """Take away what runs, and what was remembered about the node; other tests go on."""
        ours = ("--selector=app.kubernetes.io/name=gpuwarden", "--timeout=60s")
        self.kubectl("delete", "daemonsets,statefulsets,poddisruptionbudgets", *ours)
        self.kubectl("wait", "pods", "--for=delete", *ours)
        self.kubectl("delete", "persistentvolumeclaims", *ours)
        node = f"nodeenrollment/{self.lab.node.name}"
        if self.kubectl("get", node, "--ignore-not-found"):
            self.kubectl("delete", node, "--wait=false")
            self.kubectl("patch", node, "--type=merge", '--patch={"metadata":{"finalizers":null}}')

    def nodes(self, replica: int) -> list[Document]:
        pod = f"gpuwarden-controller-{replica}"
        found = self.kubectl("exec", pod, "--", "gpuwarden", "nodes", "--output", "json")
        nodes: list[Document] = json.loads(found)["nodes"]
        return nodes

    def eligible(self, replica: int) -> Document | None:
        try:
            nodes = self.nodes(replica)
        except RuntimeError:  # not started yet
            return None
        return next((x for x in nodes if x["state"] == "eligible"), None)

    def pods(self, component: str) -> list[Document]:
        label = f"app.kubernetes.io/component={component}"
        found: list[Document] = json.loads(self.kubectl("get", "pods", "-l", label, "-o", "json"))[
            "items"
        ]
        return found


def variables(extra: dict[str, str]) -> list[Document]:
    return [{"name": name, "value": value} for name, value in extra.items()]


def patch(kind: str, name: str, container: Document, **pod: Any) -> Document:
    spec = {"containers": [container], **pod}
    document = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"template": {"spec": spec}},
    }
    return {"patch": yaml.safe_dump(document)}


def overlay(folder: Path) -> Path:
    """The base for this node: other sockets, the stand-in for the driver, a policy for L0."""
    shutil.copytree(BASE, folder / "base")
    text = (BASE / "config/policy.yaml").read_text()
    mine = folder / "mine"
    mine.mkdir()
    (mine / "policy.yaml").write_text(text.replace("minLevel: L1", "minLevel: L0"))
    driver = {"name": "driver", "hostPath": {"path": DRIVER, "type": "Directory"}}
    agent = {
        "name": "agent",
        "env": variables(
            {
                "GPUWARDEN_WORKLOAD_API": f"unix://{SOCKETS}/agent.sock",
                VARIABLE: f"{DRIVER}/scenario",
            }
        ),
        "volumeMounts": [
            {"name": "driver", "mountPath": f"{LIBRARIES}/{LIBRARY}", "subPath": LIBRARY},
            {"name": "driver", "mountPath": DRIVER},
        ],
    }
    controller = {
        "name": "controller",
        "env": variables({"GPUWARDEN_WORKLOAD_API": f"unix://{SOCKETS}/controller.sock", **FAST}),
    }
    document = {
        "resources": ["../base"],
        "configMapGenerator": [
            {
                "name": "gpuwarden-policy",
                "namespace": NAMESPACE,
                "behavior": "replace",
                "files": ["policy.yaml"],
            }
        ],
        "patches": [
            patch("DaemonSet", "gpuwarden-agent", agent, volumes=[driver]),
            patch(
                "StatefulSet",
                "gpuwarden-controller",
                controller,
                nodeSelector={"nvidia.com/gpu.present": "true"},
            ),
        ],
    }
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return mine


def volume(lab: Lab, number: int) -> Document:
    """What a provisioner would make for a claim."""
    path = lab.node.capsule.path(f"{DATA}/{number}")
    path.mkdir(parents=True)
    os.chown(path, 0, GROUP)
    path.chmod(0o2770)
    claim = f"data-gpuwarden-controller-{number}"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"gpuwarden-{number}"},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": f"{DATA}/{number}"},
            "claimRef": {"namespace": NAMESPACE, "name": claim},
        },
    }


@pytest.fixture(scope="module")
def cluster(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reasons := missing(NEEDS):
        pytest.skip(f"no images: {'; '.join(reasons)}")
    folder = tmp_path_factory.mktemp("manifests")
    for image in product_images().values():
        lab.node.containerd.load_archive(image.archive)
    inside = lab.node.capsule.path
    inside(SOCKETS).mkdir(parents=True)
    inside(DRIVER).mkdir(parents=True)
    shutil.copy(build() / LIBRARY, inside(DRIVER) / LIBRARY)
    write(inside(DRIVER) / "scenario", Scenario(gpus=tuple(h100_sxm(n) for n in range(2))))
    cluster = Cluster(lab)
    with InsecureWorkloadApi(inside(SOCKETS), TD) as workload_api:
        workload_api.add("agent", f"spiffe://{TD}/gpuwarden/agent/{lab.node.name}")
        workload_api.add("controller", f"spiffe://{TD}/gpuwarden/controller")
        for socket in inside(SOCKETS).glob("*.sock"):
            socket.chmod(0o777)  # as SPIRE's is
        (folder / "volumes.yaml").write_text(
            yaml.safe_dump_all(volume(lab, number) for number in range(2))
        )
        cluster.kubectl("label", "node", lab.node.name, "nvidia.com/gpu.present=true")
        cluster.kubectl("apply", "-f", str(folder / "volumes.yaml"))
        cluster.kubectl("apply", "-k", str(overlay(folder)))
        yield cluster
        cluster.kubectl("label", "node", lab.node.name, "nvidia.com/gpu.present-")
        cluster.clear()
        cluster.kubectl("delete", "--timeout=60s", "-f", str(folder / "volumes.yaml"))


def test_kubectl_exec_shows_the_node_verified_by_both_replicas(cluster: Cluster) -> None:
    for replica in range(2):
        node = until(
            f"replica {replica} has verified the node",
            lambda number=replica: cluster.eligible(number),  # type: ignore[misc] # mypy cannot infer the default
            timeout_s=180,
        )
        assert (node["name"], node["level"]) == (cluster.lab.node.name, "L0")


def test_kubelet_finds_every_container_ready(cluster: Cluster) -> None:
    for component, count in (("agent", 1), ("controller", 2)):
        until(
            f"{component} is ready",
            lambda name=component, wanted=count: ready(cluster.pods(name)) == wanted,  # type: ignore[misc] # same
            timeout_s=180,
        )
        for pod in cluster.pods(component):
            assert [x["restartCount"] for x in pod["status"]["containerStatuses"]] == [0]


def ready(pods: list[Document]) -> int:
    return sum(x["ready"] for pod in pods for x in pod["status"].get("containerStatuses", ()))


def test_a_rolling_update_of_the_agents_keeps_the_node(cluster: Cluster) -> None:
    """Within the lease, as a new process: nothing is quarantined, the hardware is the same."""
    until("verified", lambda: cluster.eligible(0), timeout_s=180)
    (before,) = cluster.pods("agent")
    cluster.kubectl("rollout", "restart", "daemonset/gpuwarden-agent")
    cluster.kubectl("rollout", "status", "daemonset/gpuwarden-agent", "--timeout=100s")
    for replica in range(2):
        assert cluster.eligible(replica) is not None
    (after,) = cluster.pods("agent")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


def test_the_api_server_takes_the_overlay_and_the_component(
    cluster: Cluster, tmp_path: Path
) -> None:
    for folder in (KUSTOMIZE / "overlays" / "mig", with_extender(tmp_path)):
        cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-k", str(folder))
