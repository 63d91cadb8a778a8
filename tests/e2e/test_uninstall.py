"""docs/uninstall.md is walked on an API server of its own: its commands, in its order."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.kube.enrollments import enrollment_object
from controller.kube.nodes import ENFORCE_LABEL
from tests.contracts.enrollment_store import FULL
from tests.e2e.lab.fake_nodes import KIND_LABEL
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.waiting import until
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import DEPLOY, NAMESPACE, Installation

PAGE = DEPLOY.parent / "docs" / "uninstall.md"
BASE = "deploy/kustomize/base"
OBJECTS = "/apis/gpuwarden.dev/v1alpha1/nodeenrollments"
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodeenrollments.gpuwarden.dev"
NODES, VOLUMES = "/api/v1/nodes", "/api/v1/persistentvolumes"
INSTALLED = (
    f"-k {BASE}",
    "-k deploy/scheduler",
    "-k deploy/policy",
    "-f deploy/kustomize/components/admission/webhooks.yaml",
)
NODE = "leaving-0"
DENIED = FULL.node
KEPT = {
    f"NodeEnrollment {NODE}",
    f"NodeEnrollment {DENIED}",
    "CustomResourceDefinition nodeenrollments.gpuwarden.dev",
    "APIService v1alpha1.gpuwarden.dev",
    "PersistentVolume logs-0",
}
"""After the first part."""


class Cluster:
    """An empty cluster, and a person with kubectl in front of it."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self._folder = folder

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """In a shell, in the repository's folder."""
        programs = self.lab.site.programs["kubectl"].parent
        return subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-c", command],
            cwd=self._folder,
            env={
                "PATH": f"{programs}:{os.environ['PATH']}",
                "KUBECONFIG": str(self.lab.kubeconfig),
                "HOME": str(self._folder),
            },
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def do(self, command: str) -> None:
        done = self.run(command)
        assert done.returncode == 0, f"{command}: {done.stderr}"

    def walk(self, *sections: str) -> None:
        """Run all commands of these sections of the page."""
        for section in sections:
            for command in commands(section):
                self.do(command)

    def traces(self) -> set[str]:
        """Kind and name of every object that says gpuwarden anywhere; Events end by themselves."""
        api = self.lab.api
        groups = [
            f"/apis/{x['preferredVersion']['groupVersion']}" for x in api.get("/apis")["groups"]
        ]
        found = set()
        for group in ("/api/v1", *groups):
            for resource in api.get(group)["resources"]:
                if "list" not in resource["verbs"] or resource["kind"] == "Event":
                    continue
                for item in api.get(f"{group}/{resource['name']}")["items"]:
                    if "gpuwarden" in json.dumps(item).replace(KIND_LABEL, ""):
                        found.add(f"{resource['kind']} {item['metadata']['name']}")
        return found

    def volume(self) -> None:
        """As a provisioner makes it: deleted together with its claim."""
        spec = {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "hostPath": {"path": "/nowhere"},
            "claimRef": {"namespace": NAMESPACE, "name": "data-gpuwarden-controller-0"},
        }
        self.lab.api.post(VOLUMES, {"metadata": {"name": "logs-0"}, "spec": spec})

    def remember_a_denial(self) -> None:
        self.lab.api.post(OBJECTS, enrollment_object(FULL))

    def is_denied(self) -> bool:
        return "denial" in self.lab.api.get(f"{OBJECTS}/{DENIED}")["spec"]


def commands(section: str) -> list[str]:
    """What the page says to type below this heading."""
    (text,) = re.findall(
        rf"^## {section}.*?\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    found: list[str] = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found
    return found


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("repository")
    (folder / "deploy").symlink_to(DEPLOY)
    with Lab.control_plane_only() as lab:
        yield Cluster(lab, folder)


def test_the_way_of_the_page_keeps_denials_first_and_leaves_nothing_at_last(
    cluster: Cluster,
) -> None:
    lab = cluster.lab
    before = cluster.traces()
    lab.fake_nodes.add(NODE)
    lab.api.patch(f"{NODES}/{NODE}", {"spec": {"unschedulable": True}})  # nobody ends pods there
    installation = Installation(lab, "leaving")
    try:
        cluster.volume()
        cluster.do("\n".join(f"kubectl apply {what}" for what in INSTALLED))
        cluster.do(f"kubectl label namespace default {ENFORCE_LABEL}=true")
        installation.start()
        installation.agents.start(h100_node(NODE))
        installation.agents.hash_of(NODE)
        until("its enrolled GPUs are stored", lambda: lab.api.answers(f"{OBJECTS}/{NODE}"))
        cluster.remember_a_denial()
        lab.api.patch(
            f"{NODES}/{NODE}", {"metadata": {"annotations": {"gpuwarden.dev/requeued": "1"}}}
        )
    finally:
        installation.close()  # as the commands end those that run in pods
    cluster.walk("Before", "Part 1")
    left = cluster.traces() - before
    assert left >= KEPT
    assert {x.partition(" ")[0] for x in left - KEPT} <= {"CustomResourceDefinition"}
    assert cluster.is_denied()
    cluster.walk("Part 2")
    until("nothing says gpuwarden", lambda: cluster.traces() == before)


def test_a_delete_of_everything_is_held_until_somebody_lets_go_knowingly(cluster: Cluster) -> None:
    lab = cluster.lab
    before = cluster.traces()
    cluster.do(f"kubectl apply -k {BASE}")
    until("the custom resource is served", lambda: lab.api.answers(OBJECTS))
    cluster.remember_a_denial()
    held = cluster.run(f"kubectl delete -k {BASE} --timeout=15s")
    assert held.returncode != 0
    assert "timed out" in held.stderr
    assert "deletionTimestamp" in lab.api.get(DEFINITION)["metadata"]
    assert cluster.is_denied()
    cluster.walk("A delete that hangs", "Part 2")
    until("nothing says gpuwarden", lambda: cluster.traces() == before)
