"""Every image from one private registry: the values of examples/values, and the page's steps."""

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.builders.console_commands import page_commands, words
from tests.chart.comparing import of_parts
from tests.chart.rendering import (
    CHART,
    DIGEST,
    NAMESPACE,
    REQUIRED,
    Object,
    RefusedError,
    notes,
    objects,
    pods,
    render,
    typed_line,
)
from tests.deploy.manifests import rendered
from tests.docs_pages.site import ROOT

PAGE: Final = "docs/air-gapped.md"
FILE: Final = "examples/values/air-gapped.yaml"
VALUES: Final[dict[str, Any]] = yaml.safe_load((ROOT / FILE).read_text())
REGISTRY: Final = "registry.acme.io"
ALSO: Final[dict[str, dict[str, Any]]] = {
    "alone": {},
    "bundled-spire": {"spire": {"mode": "bundled", "people": True}},
    "scorer": {"hints": {"scorer": {"enabled": True}}},
    "evaluation": {"evaluation": {"enabled": True}},
}
"""What may be added to the file."""


def images(found: list[Object]) -> set[str]:
    return {
        container["image"]
        for spec in pods(found).values()
        for container in (*spec["containers"], *spec.get("initContainers", ()))
    }


def typed_commands() -> list[list[str]]:
    return [words(x.text) for x in page_commands(PAGE)]


@pytest.mark.parametrize("name", ALSO)
def test_every_image_of_every_pod_is_of_the_private_registry(name: str) -> None:
    found = render({**VALUES, **ALSO[name]})
    specs = pods(found)
    kinds = {x.partition("/")[0] for x in specs}
    assert kinds == {"DaemonSet", "Deployment", "Job", "Pod", "StatefulSet"}
    assert {x for x in images(found) if not x.startswith(f"{REGISTRY}/")} == set()
    for where, spec in specs.items():
        assert spec["imagePullSecrets"] == VALUES["imagePullSecrets"], where


def test_without_a_mirror_the_other_images_are_upstreams() -> None:
    bundled = {**REQUIRED, "imageRegistry": "own.acme.io", "spire": {"mode": "bundled"}}
    upstream = {x for x in images(render(bundled)) if not x.startswith("own.acme.io/")}
    assert {x.partition(":")[0] for x in upstream} == {
        "registry.k8s.io/kubectl",
        "registry.k8s.io/kube-scheduler",
        "ghcr.io/spiffe/spire-agent",
        "ghcr.io/spiffe/spire-controller-manager",
        "ghcr.io/spiffe/spire-server",
    }


@pytest.mark.parametrize(
    ("repository", "mirrored"),
    [
        ("registry.k8s.io/kubectl", "kubectl"),
        ("ghcr.io/a/b/kubectl", "a/b/kubectl"),
        ("registry:5000/kubectl", "kubectl"),
        ("localhost/kubectl", "kubectl"),
        ("kubectl", "kubectl"),
        ("rancher/kubectl", "rancher/kubectl"),
        ("library/v1.2/kubectl", "library/v1.2/kubectl"),
    ],
)
@pytest.mark.parametrize("mirror", ["m.acme.io:5000/all", "m.acme.io:5000/all/"])
def test_the_mirror_takes_the_place_of_a_registry(
    repository: str, mirrored: str, mirror: str
) -> None:
    """And of nothing else in the name; tag and digest stay."""
    for given, end in (({"tag": "v1"}, ":v1"), ({"digest": DIGEST}, f"@{DIGEST}")):
        image = {"repository": repository, **given}
        found = render({**REQUIRED, "mirrorRegistry": mirror, "kubectl": {"image": image}})
        (job,) = [x for x in objects(found, "Job") if x["metadata"]["name"].endswith("clean-up")]
        assert images([job]) == {f"m.acme.io:5000/all/{mirrored}{end}"}


def test_the_mirror_is_not_for_gpuwardens_own_images() -> None:
    found = images(render({**REQUIRED, "mirrorRegistry": "m.acme.io"}))
    assert {x for x in found if "gpuwarden" in x} == {
        "gpuwarden-agent:0.1.0",
        "gpuwarden-controller:0.1.0",
    }


def test_the_page_copies_what_the_values_pull() -> None:
    bundled = {**VALUES, "spire": {"mode": "bundled"}}
    pulled = {
        x
        for x in images(render(bundled, kubernetes="1.35.4"))
        if x.startswith(f"{REGISTRY}/mirror/")
    }
    copied = [x for x in typed_commands() if x[:3] == ["skopeo", "copy", "--all"]]
    assert {x[-1].removeprefix("docker://") for x in copied} == pulled
    for *_, source, target in copied:
        path = target.removeprefix(f"docker://{REGISTRY}/mirror/")
        assert source.removeprefix("docker://").partition("/")[2] == path
    assert ["make", "images", f"PUSH={VALUES['imageRegistry']}"] in typed_commands()


def test_the_page_makes_the_secret_before_a_pod_needs_it() -> None:
    secret = VALUES["imagePullSecrets"][0]["name"]
    create = ["kubectl", "create", "namespace", NAMESPACE]
    make = ["kubectl", "-n", NAMESPACE, "create", "secret", "docker-registry", secret]
    order = [
        number
        for beginning in (create, make, ["helm", "install"])
        for number, command in enumerate(typed_commands())
        if command[: len(beginning)] == beginning
    ]
    assert len(order) == 3
    assert order == sorted(order)
    (server,) = [x for x in typed_commands()[order[1]] if x.startswith("--docker-server=")]
    assert server == f"--docker-server={REGISTRY}"


def test_the_page_installs_with_the_file() -> None:
    (install,) = [x for x in typed_commands() if x[:2] == ["helm", "install"]]
    assert FILE in install, shlex.join(install)
    here = [str(ROOT / FILE) if x == FILE else x for x in install[2:]]
    assert images(typed_line(here)) == images(render(VALUES))


def test_the_pages_patch_gives_every_pod_of_kustomize_the_secret(tmp_path: Path) -> None:
    of_parts(tmp_path, ["kustomize/base", "scheduler"], ["scorer"])
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / PAGE).read_text(), re.DOTALL)
    file = tmp_path / "kustomization.yaml"
    file.write_text(file.read_text() + block)
    specs = pods(rendered(tmp_path))
    assert len(specs) == 4
    for where, spec in specs.items():
        assert spec["imagePullSecrets"] == VALUES["imagePullSecrets"], where


LABELS: Final = [f"pod-security.kubernetes.io/{x}=privileged" for x in ("enforce", "warn")]
BY_HAND: Final = {"namespaceLabels": {"enabled": False}}


def test_the_page_sets_the_labels_that_the_job_sets() -> None:
    (job,) = [x for x in objects(render(REQUIRED), "Job") if "-labels" in x["metadata"]["name"]]
    (spec,) = pods([job]).values()
    by_job = {x for x in spec["containers"][0]["args"] if x.startswith("pod-security")}
    beginning = ["kubectl", "label", "--overwrite", "namespace", NAMESPACE]
    (typed,) = [x[5:] for x in typed_commands() if x[:5] == beginning]
    assert typed == LABELS
    assert by_job == {*LABELS}


def test_notes_warn_of_a_namespace_without_labels_where_no_job_sets_them() -> None:
    """Nobody can ask the API server for the profile that it has for such a namespace."""
    command = f"kubectl label --overwrite namespace {NAMESPACE} {' '.join(LABELS)}"
    told = notes({**REQUIRED, **BY_HAND})
    assert "  - namespaceLabels.enabled is false, and namespace gpuwarden-system has no" in told
    assert command in told
    assert command not in notes(REQUIRED)


def chart_that_sees(folder: Path, labels: Mapping[str, str]) -> Path:
    """The chart, in a cluster whose namespace has these labels."""
    copy = folder / "chart"
    shutil.copytree(CHART, copy)
    asked = 'lookup "v1" "Namespace" "" .Release.Namespace'
    answer = json.dumps({"metadata": {"labels": labels}})
    for name in ("NOTES.txt", "checks.yaml"):
        text = (copy / "templates" / name).read_text()
        assert text.count(asked) == 1
        (copy / "templates" / name).write_text(text.replace(asked, f"fromJson `{answer}`"))
    return copy


@pytest.mark.parametrize(
    ("labels", "warned"),
    [
        ({"kubernetes.io/metadata.name": NAMESPACE}, True),
        ({"pod-security.kubernetes.io/enforce": "privileged"}, False),
    ],
    ids=["without", "with"],
)
def test_a_namespace_with_the_label_is_not_warned_of(
    labels: dict[str, str], warned: bool, tmp_path: Path
) -> None:
    told = notes({**REQUIRED, **BY_HAND}, chart=chart_that_sees(tmp_path, labels))
    assert ("namespaceLabels.enabled is false" in told) is warned


def test_a_namespace_with_another_profile_is_refused(tmp_path: Path) -> None:
    chart = chart_that_sees(tmp_path, {"pod-security.kubernetes.io/enforce": "restricted"})
    with pytest.raises(RefusedError, match='enforce is "restricted", expected privileged'):
        notes({**REQUIRED, **BY_HAND}, chart=chart)
    assert notes(REQUIRED, chart=chart)
