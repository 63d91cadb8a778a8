"""What the Dockerfiles say of an image that only building it would show otherwise."""

import json
import re
from pathlib import Path

import pytest

from tests.deploy.manifests import Object, container_of, objects, one, pod_of

ROOT = Path(__file__).resolve().parents[2]
ALL = objects()
PARTS = {
    "agent": one(ALL, "DaemonSet", "gpuwarden-agent"),
    "controller": one(ALL, "StatefulSet", "gpuwarden-controller"),
}
LABELS = {"title", "description", "licenses", "base.name", "version", "revision"}


def stages(part: str) -> dict[str, list[str]]:
    """Instructions by stage, comments and line ends taken out; the last stage is ``."""
    text = (ROOT / f"Dockerfile.{part}").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found: dict[str, list[str]] = {}
    for block in re.split(r"^(?=FROM )", text, flags=re.MULTILINE)[1:]:
        first, *rest = (" ".join(line.split()) for line in block.splitlines() if line.strip())
        found[first.partition(" AS ")[2]] = [first, *rest]
    return found


def values(part: str, instruction: str, stage: str = "") -> list[str]:
    return [
        x.removeprefix(f"{instruction} ")
        for x in stages(part)[stage]
        if x.startswith(f"{instruction} ")
    ]


@pytest.mark.parametrize("part", PARTS)
def test_it_starts_with_nothing_but_what_is_in_the_image(part: str) -> None:
    """`-I`: neither variables nor the working folder choose modules."""
    (entry,) = values(part, "ENTRYPOINT")
    assert json.loads(entry) == ["/usr/bin/python3", "-I", "-m", part]
    assert values(part, "FROM") == ["scratch"]
    assert "RUN" not in {x.split()[0] for x in stages(part)[""]}


@pytest.mark.parametrize("part", PARTS)
def test_layers_come_from_what_changes_least_to_what_changes_most(part: str) -> None:
    order = [x.split()[0] for x in values(part, "COPY")]
    assert order == ["--from=system", "--from=requirements", "--from=program"]


@pytest.mark.parametrize("part", PARTS)
def test_requirements_are_the_locked_ones_by_hash(part: str) -> None:
    (install,) = [x for x in values(part, "RUN", "requirements") if " pip install " in f" {x} "]
    assert {"--require-hashes", "--only-binary", "--no-cache-dir"} <= set(install.split())
    assert f"-r /{part}.txt" in install
    assert f"requirements/{part}.txt" in values(part, "COPY", "requirements")[0].split()


def test_what_is_debians_is_one_layer_of_both() -> None:
    assert stages("agent")["system"] == stages("controller")["system"]


@pytest.mark.parametrize(("part", "workload"), PARTS.items(), ids=PARTS)
def test_user_and_ports_are_the_manifests(part: str, workload: Object) -> None:
    context = pod_of(workload)["securityContext"] | container_of(workload)["securityContext"]
    assert values(part, "USER") == [f"{context['runAsUser']}:{context['runAsGroup']}"]
    exposed = {int(x) for line in values(part, "EXPOSE") for x in line.split()}
    assert {x["containerPort"] for x in container_of(workload)["ports"]} <= exposed


@pytest.mark.parametrize("part", PARTS)
def test_labels_say_what_it_is(part: str) -> None:
    (labels,) = values(part, "LABEL")
    found = dict(re.findall(r'org\.opencontainers\.image\.([a-z.]+)="([^"]+)"', labels))
    assert found.keys() == LABELS
    assert found["title"] == f"gpuwarden-{part}"
