"""The component that lets people in with a kubeconfig, and what krew installs."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.kube.api.resources import ACCESS_NAME
from controller.people.rights import CLUSTER_ROLES, FLEET, GROUP, INSPECT, OPERATE
from gpuwarden.cli.connection.cluster_connection import (
    ACCESS,
    CERTIFICATES_PORT,
    CONTROLLER,
    MOST_REPLICAS,
    TOKENS_PORT,
)
from tests.deploy.manifests import BASE, KUSTOMIZE, container_of, objects, one, rendered
from tests.deploy.test_admission_files import ADMISSION, overlay
from tests.deploy.test_http_api_files import settings_of
from tests.hang import HANG_S

WORKSTATION = KUSTOMIZE / "components" / "workstation"
KREW = KUSTOMIZE.parent / "krew"
PEOPLE = list(yaml.safe_load_all((WORKSTATION / "people.yaml").read_text()))
NAMES = [f"{CONTROLLER}-{number}" for number in range(MOST_REPLICAS)]


@pytest.mark.parametrize("others", [(), (ADMISSION,)])
def test_the_component_opens_both_listeners_on_loopback(
    tmp_path: Path, others: tuple[Path, ...]
) -> None:
    made = rendered(overlay(tmp_path, *others, WORKSTATION))
    container = container_of(one(made, "StatefulSet", CONTROLLER))
    settings = settings_of(container)
    mounts = {x["mountPath"]: x["name"] for x in container["volumeMounts"]}
    for path in (settings.access.tls.cert, settings.access.tls.key, settings.access.tls.ca):
        assert mounts[str(path.parent)] == "access"
    listen = settings.listen
    assert (listen.access_tokens.port, listen.access_certificates.port) == (
        TOKENS_PORT,
        CERTIFICATES_PORT,
    )
    assert listen.access_tokens.is_loopback
    assert listen.access_certificates.is_loopback
    assert one(made, "ConfigMap", ACCESS_NAME).get("data") is None


def test_without_the_component_nobody_comes_in() -> None:
    container = container_of(one(rendered(BASE), "StatefulSet", CONTROLLER))
    assert settings_of(container).access.tls.cert is None
    assert not [x for x in objects() if x["metadata"]["name"] in CLUSTER_ROLES.values()]


def test_each_role_gives_the_rights_that_the_controller_asks_for() -> None:
    def verbs(name: str) -> list[str]:
        (rule,) = one(PEOPLE, "ClusterRole", name)["rules"]
        assert (rule["apiGroups"], rule["resources"]) == ([GROUP], [FLEET])
        found: list[str] = rule["verbs"]
        return found

    assert verbs(CLUSTER_ROLES[INSPECT]) == [INSPECT.verb]
    assert verbs(CLUSTER_ROLES[OPERATE]) == [INSPECT.verb, OPERATE.verb]


def test_the_way_in_names_each_object_that_the_command_line_reads() -> None:
    rules = one(PEOPLE, "Role", ACCESS)["rules"]
    found = {x["resources"][0]: (x["resourceNames"], x["verbs"]) for x in rules}
    assert found == {
        "configmaps": ([ACCESS], ["get"]),
        "pods": (NAMES, ["get"]),
        "pods/portforward": (NAMES, ["get", "create"]),
    }
    assert ACCESS == ACCESS_NAME


def test_nothing_is_bound_to_anybody() -> None:
    assert {x["kind"] for x in PEOPLE} == {"ClusterRole", "Role", "ConfigMap"}


def test_the_certificate_has_the_name_and_secret() -> None:
    found = list(yaml.safe_load_all((WORKSTATION / "certificates.yaml").read_text()))
    server = one(found, "Certificate", "gpuwarden-access-server")["spec"]
    assert server["dnsNames"] == [f"{ACCESS}.gpuwarden-system.svc"]
    patch = yaml.safe_load((WORKSTATION / "controller.yaml").read_text())
    (volume,) = patch["spec"]["template"]["spec"]["volumes"]
    assert volume["secret"]["secretName"] == server["secretName"]


# --- krew


def test_the_krew_manifest_has_what_krew_validates() -> None:
    """Source: krew's pkg/index/validation; placeholders as a release fills them."""
    text = (KREW / "gpuwarden.yaml").read_text()
    for name, value in {
        "VERSION": "1.2.3",
        "URL": "https://example.org/gpuwarden",
        "SHA256": "0" * 64,
    }.items():
        assert name in text
        text = text.replace(name, value)
    found: dict[str, Any] = yaml.safe_load(text)
    assert (found["apiVersion"], found["kind"]) == (
        "krew.googlecontainertools.github.com/v1alpha2",
        "Plugin",
    )
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", found["metadata"]["name"])
    spec = found["spec"]
    assert re.fullmatch(r"v\d+\.\d+\.\d+", spec["version"])
    assert 0 < len(spec["shortDescription"]) <= 80
    assert not {"\n", "\r"} & set(spec["shortDescription"])
    for platform in spec["platforms"]:
        assert platform["uri"].startswith("https://")
        assert re.fullmatch(r"[0-9a-f]{64}", platform["sha256"])
        files = {x["from"] for x in platform["files"]}
        assert platform["bin"] in files
        assert all(x["to"] == "." for x in platform["files"])
        for file in files - {"LICENSE"}:
            assert os.access(KREW / file, os.X_OK)
        assert {x["key"] for x in platform["selector"]["matchExpressions"]} == {"os", "arch"}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["nod"], ["node", "nodes", ":4"]),
        (["explain", ""], ["node", "pod", ":4"]),
        (["node", "show", "gpu-"], ["gpu-a1", "gpu-b1", ":4"]),
        (["node", "show", "x"], [":0"]),
    ],
)
def test_kubectl_completes_words_and_names(
    tmp_path: Path, words: list[str], answer: list[str]
) -> None:
    program = tmp_path / "kubectl-gpuwarden"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = nodes ] && printf "gpu-a1\\ngpu-b1\\n" && exit\n'
        f'exec {sys.executable} -m gpuwarden.cli "$@"\n'
    )
    program.chmod(0o755)
    ran = subprocess.run(
        [KREW / "kubectl_complete-gpuwarden", *words],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert (sorted(ran.stdout.split()[:-1]) + ran.stdout.split()[-1:], ran.stderr) == (answer, "")


def test_the_plugin_prefers_the_program_of_its_own_name(tmp_path: Path) -> None:
    for name in ("gpuwarden", "kubectl-gpuwarden"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    command = ["/bin/sh", str(KREW / "kubectl-gpuwarden"), "nodes"]
    env = {"PATH": str(tmp_path)}
    assert subprocess.check_output(command, env=env, text=True) == "kubectl-gpuwarden nodes\n"


@pytest.mark.parametrize(
    ("installed", "code", "said"),
    [("gpuwarden", 7, "gpuwarden nodes -o wide"), ("uvx", 7, "uvx --from"), ("", 127, "")],
)
def test_the_plugin_starts_what_is_installed(
    tmp_path: Path, installed: str, code: int, said: str
) -> None:
    if installed:
        program = tmp_path / installed
        program.write_text(f'#!/bin/sh\necho {installed} "$@"\nexit 7\n')
        program.chmod(0o755)
    ran = subprocess.run(
        ["/bin/sh", KREW / "kubectl-gpuwarden", "nodes", "-o", "wide"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code
    assert ran.stdout.startswith(said)
    assert ("pipx install URL/" in ran.stderr) is (not installed)
