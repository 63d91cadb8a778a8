"""deploy/kustomize as real pods on the real node: both images, the node's stand-ins, an overlay.

What differs from production is said in the overlay: where the node keeps its driver, a faster
pace, and what a test asks for. kubelet runs and probes the pods.
"""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sandbox.nvml.build import LIBRARY, build
from sandbox.nvml.scenario import VARIABLE, Scenario, write
from tests.deploy.manifests import BASE, KUSTOMIZE
from tests.e2e.lab.containerd import CDI, GPU_KIND, TOOLKIT
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.product_images import PARTS, product_images
from tests.e2e.product.installation import NAMESPACE

SOCKETS = "/run/spire/agent-sockets"
"""Where pods look for the SPIRE agent."""
FAST = {
    "GPUWARDEN_ATTESTATION_INTERVAL": "2s",
    "GPUWARDEN_ATTESTATION_CHALLENGE_TTL": "3s",
    "GPUWARDEN_ATTESTATION_LEASE": "30s",
}
REPLICAS = 2
_DRIVER = "/var/lib/nvidia-driver"
"""Where this node keeps NVML's stand-in."""
_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
_DATA = "/var/lib/gpuwarden-volumes"
_PRESENT = "nvidia.com/gpu.present"
_OURS = ("--selector=app.kubernetes.io/name=gpuwarden", "--timeout=60s")
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Changes:
    """What an overlay changes beside the place of the driver."""

    policy: Mapping[str, Any]
    """The whole file."""
    agent: Mapping[str, str] = field(default_factory=dict)
    """Variables."""
    controller: Mapping[str, str] = field(default_factory=dict)
    images: Sequence[Document] = ()
    """As in kustomization.yaml."""
    extender: bool = False
    """With the component for schedulers in other pods."""
    workstation: bool = False
    """With the component for people with a kubeconfig."""


class Deployed:
    """The shipped workloads in one lab."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        """`folder`: an empty one for the files that are applied."""
        self.lab = lab
        self._folder = folder

    def import_images(self, registry: str = "") -> list[str]:
        """Agent and controller, in containerd afterwards; their names.

        `registry`: as if they were pulled from there.
        """
        containerd = self.lab.node.containerd
        images = product_images()
        for image in images.values():
            if not containerd.has(image.name):
                containerd.load_archive(image.archive)
            if registry:
                containerd.tag(image.name, f"{registry}/{image.name.rpartition('/')[2]}")
        return [images[part].name for part in PARTS]

    def furnish(self, scenario: Scenario) -> None:
        """The folder of sockets, NVML's stand-in, and these GPUs, on the node."""
        inside = self.lab.node.capsule.path
        inside(SOCKETS).mkdir(parents=True, exist_ok=True)
        inside(_DRIVER).mkdir(parents=True, exist_ok=True)
        shutil.copy(build() / LIBRARY, inside(_DRIVER) / LIBRARY)
        self.show(scenario)

    def show(self, scenario: Scenario) -> None:
        """The node's GPUs from now on."""
        write(self.lab.node.capsule.path(_DRIVER) / "scenario", scenario)

    def offer_driver(self) -> None:
        """As on a GPU node: the toolkit mounts it where a pod of its RuntimeClass asks for GPUs."""
        mounts = [
            {"hostPath": source, "containerPath": target, "options": ["ro", "rbind"]}
            for source, target in (
                (f"{_DRIVER}/{LIBRARY}", f"{_LIBRARIES}/{LIBRARY}"),
                (_DRIVER, _DRIVER),
            )
        ]
        edits = {"env": [f"{VARIABLE}={_DRIVER}/scenario"], "mounts": mounts}
        every = {"name": "all", "containerEdits": edits}
        specification = {"cdiVersion": "0.6.0", "kind": GPU_KIND, "devices": [every]}
        folder = self.lab.node.capsule.path(CDI)
        folder.mkdir(exist_ok=True)
        (folder / "driver.json").write_text(json.dumps(specification))
        runtime_class = {"metadata": {"name": TOOLKIT}, "handler": TOOLKIT}
        self.lab.api.post("/apis/node.k8s.io/v1/runtimeclasses", runtime_class)

    def apply(self, changes: Changes) -> None:
        """Start everything; does not wait."""
        self.provide_volumes()
        self.mark_node()
        self.kubectl("apply", "-k", str(overlay(self._folder, changes)))

    def provide_volumes(self, *more: str) -> None:
        """One for each replica, and for these claims: the lab has no provisioner."""
        claims = [f"data-gpuwarden-controller-{number}" for number in range(REPLICAS)]
        volumes = [self._volume(*x) for x in enumerate([*claims, *more])]
        self._volumes.write_text(yaml.safe_dump_all(volumes))
        self.kubectl("apply", "-f", str(self._volumes))

    def mark_node(self) -> None:
        """As the GPU feature discovery does."""
        self.kubectl("label", "--overwrite", "node", self.lab.node.name, f"{_PRESENT}=true")

    def mount_driver(self) -> None:
        """Into the agents that are there: what NVIDIA's container toolkit does on a GPU node."""
        self.kubectl("patch", "daemonset", "gpuwarden-agent", "--patch", _agents({})["patch"])

    def clear(self) -> None:
        """Take away what runs, and what was remembered about the node; other tests go on."""
        self.kubectl("label", "node", self.lab.node.name, f"{_PRESENT}-")
        self.kubectl("delete", "daemonsets,statefulsets,poddisruptionbudgets", *_OURS)
        self.kubectl("wait", "pods", "--for=delete", *_OURS)
        self.kubectl("delete", "persistentvolumeclaims", *_OURS)
        node = f"nodeenrollment/{self.lab.node.name}"
        if self.kubectl("get", node, "--ignore-not-found"):
            self.kubectl("delete", node, "--wait=false")
            self.kubectl("patch", node, "--type=merge", '--patch={"metadata":{"finalizers":null}}')
        self.kubectl("delete", "--timeout=60s", "-f", str(self._volumes))

    def kubectl(self, *arguments: str) -> str:
        """Run it as the administrator in our namespace; its standard output."""
        command = self.kubectl_command(*arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def kubectl_command(self, *arguments: str) -> Sequence[str]:
        """What `kubectl` runs."""
        return (
            str(self.lab.site.programs["kubectl"]),
            f"--kubeconfig={self.lab.kubeconfig}",
            f"--cache-dir={self.lab.folder / 'kubectl'}",
            f"--namespace={NAMESPACE}",
            *arguments,
        )

    def gpuwarden(self, replica: int, *arguments: str) -> str:
        """What the command line says in a controller's pod."""
        pod = f"gpuwarden-controller-{replica}"
        return self.kubectl("exec", pod, "--", "gpuwarden", *arguments)

    def node(self, replica: int) -> Document | None:
        """The real node as the replica sees it; None where it says nothing yet."""
        try:
            found = self.gpuwarden(replica, "nodes", "--output", "json")
        except RuntimeError:  # not started yet
            return None
        nodes: list[Document] = json.loads(found)["nodes"]
        return next((x for x in nodes if x["name"] == self.lab.node.name), None)

    def in_state(self, replica: int, state: str) -> Document | None:
        """The real node, where the replica sees it in this state."""
        node = self.node(replica)
        return node if node is not None and node["state"] == state else None

    def pods(self, component: str) -> list[Document]:
        label = f"app.kubernetes.io/component={component}"
        found: list[Document] = json.loads(self.kubectl("get", "pods", "-l", label, "-o", "json"))[
            "items"
        ]
        return found

    def audit_log(self, replica: int) -> str:
        """What the replica has written into its audit log."""
        folder = self.lab.node.capsule.path(f"{_DATA}/{replica}") / "audit"
        return "".join(x.read_text() for x in sorted(folder.glob("*.jsonl")))

    @property
    def _volumes(self) -> Path:
        return self._folder / "volumes.yaml"

    def _volume(self, number: int, claim: str) -> Document:
        """What a provisioner would make for a claim: an empty folder that is root's alone.

        Of type `local`: unlike `hostPath`, kubelet gives it to the pod's `fsGroup`.
        """
        path = self.lab.node.capsule.path(f"{_DATA}/{number}")
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        path.chmod(0o700)
        name = self.lab.node.name
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [name]}
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"gpuwarden-{number}"},
            "spec": {
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteOnce"],
                "local": {"path": f"{_DATA}/{number}"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
                "claimRef": {"namespace": NAMESPACE, "name": claim},
            },
        }


def shipped_policy() -> Document:
    """The policy that deploy/kustomize installs."""
    found: Document = yaml.safe_load((BASE / "config/policy.yaml").read_text())
    return found


def overlay(folder: Path, changes: Changes) -> Path:
    """An overlay of the base below `folder`; where its kustomization.yaml lies."""
    shutil.copytree(BASE, folder / "base")
    shutil.copytree(KUSTOMIZE / "components", folder / "components")
    mine = folder / "mine"
    mine.mkdir()
    (mine / "policy.yaml").write_text(yaml.safe_dump(dict(changes.policy)))
    document = {
        "resources": ["../base"],
        "components": [
            *(["../components/extender"] if changes.extender else []),
            *(["../components/workstation"] if changes.workstation else []),
        ],
        "configMapGenerator": [_POLICY],
        "images": list(changes.images),
        "patches": [_agents(changes.agent), _controllers(changes.controller)],
    }
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return mine


_POLICY = {
    "name": "gpuwarden-policy",
    "namespace": NAMESPACE,
    "behavior": "replace",
    "files": ["policy.yaml"],
}


def _agents(variables: Mapping[str, str]) -> Document:
    driver = {"name": "driver", "hostPath": {"path": _DRIVER, "type": "Directory"}}
    container = {
        "name": "agent",
        "env": _entries({VARIABLE: f"{_DRIVER}/scenario", **variables}),
        "volumeMounts": [
            {"name": "driver", "mountPath": f"{_LIBRARIES}/{LIBRARY}", "subPath": LIBRARY},
            {"name": "driver", "mountPath": _DRIVER},
        ],
    }
    return _patch("DaemonSet", "gpuwarden-agent", container, volumes=[driver])


def _controllers(variables: Mapping[str, str]) -> Document:
    container = {"name": "controller", "env": _entries({**FAST, **variables})}
    return _patch("StatefulSet", "gpuwarden-controller", container, nodeSelector={_PRESENT: "true"})


def _entries(variables: Mapping[str, str]) -> list[Document]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def _patch(kind: str, name: str, container: Document, **pod: Any) -> Document:
    spec = {"containers": [container], **pod}
    document = {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"template": {"spec": spec}},
    }
    return {"patch": yaml.safe_dump(document)}
