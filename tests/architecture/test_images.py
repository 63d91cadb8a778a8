"""Images hold the programs and nothing that is made for laptops and tests; how they are made."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.nvml.build import _FLAGS, _STANDS_FOR_REAL
from tests.architecture.test_names import ROOT
from tests.builders.allocator import allocator, environment_as_in
from tests.deploy.wheels import locked, tags

DOCKERFILES = sorted(path.name for path in ROOT.glob("Dockerfile*"))
LEAVES = {"agent", "controller", "gpuwarden", "requirements", "LICENSE"}
BASE = r"docker\.io/library/debian:bookworm-slim@sha256:[0-9a-f]{64}"
"""It fetches, unpacks and compiles; nothing of it gets into an image."""
BUILDS = "--platform=$BUILDPLATFORM ${BASE}"
"""A stage that runs programs is of the building machine's architecture."""
PARTS = ("agent", "controller")


@dataclass(frozen=True)
class Stage:
    """One stage: what it starts from, and its instructions on one line each."""

    name: str
    source: str
    lines: tuple[str, ...]

    def all(self, instruction: str) -> list[str]:
        return [x.partition(" ")[2] for x in self.lines if x.startswith(f"{instruction} ")]


def stages(part: str) -> dict[str, Stage]:
    """By name; the last one is `final`."""
    text = (ROOT / f"Dockerfile.{part}").read_text().replace("\\\n", "")
    lines = [x for x in text.splitlines() if x and not x.startswith("#")]
    starts = [n for n, line in enumerate(lines) if line.startswith("FROM ")]
    found = {}
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        source, _, name = lines[start].removeprefix("FROM ").partition(" AS ")
        name = name or "final"
        found[name] = Stage(name, source, tuple(lines[start + 1 : end]))
    return found


def test_there_are_images() -> None:
    names = [*PARTS, "evaluation", "evaluation.dockerignore"]
    assert [f"Dockerfile.{name}" for name in names] == DOCKERFILES


def test_the_evaluations_image_is_the_agents_with_the_stand_in_and_says_so() -> None:
    found = stages("evaluation")
    assert {name: stage.source for name, stage in found.items()} == {
        "library": BUILDS,
        "final": "--platform=$TARGETPLATFORM ${AGENT}",
    }
    final = found["final"]
    sent = {x for line in final.all("COPY") for x in line.split()[:-1] if "/" in x}
    assert {x.partition("/")[0] for x in sent - {"/library"}} == {"sandbox"}
    assert final.all("ENTRYPOINT") == ['["/usr/bin/python3", "-I", "-m", "sandbox.evaluation"]']
    assert 'dev.gpuwarden.evaluation="true"' in final.all("LABEL")[0]
    assert final.all("USER") == []
    (compiled,) = [x for x in found["library"].all("RUN") if "compiler -std" in x]
    assert set(_FLAGS) <= set(compiled.split())
    assert _STANDS_FOR_REAL not in compiled
    ignored = (ROOT / "Dockerfile.evaluation.dockerignore").read_text().split()
    assert ignored[:2] == ["*", "!sandbox"]


@pytest.mark.parametrize("part", PARTS)
def test_one_named_debian_and_the_final_image_starts_from_nothing(part: str) -> None:
    text = (ROOT / f"Dockerfile.{part}").read_text()
    (base,) = re.findall(r"^ARG BASE=(.*)$", text, re.MULTILINE)
    assert re.fullmatch(BASE, base)
    sources = {name: stage.source for name, stage in stages(part).items()}
    assert sources == {
        "system": BUILDS,
        "requirements": "system",
        "program": "system",
        "final": "scratch",
    }


def test_both_give_free_memory_back() -> None:
    """What a soak starts from the checkout does so, too."""
    agent, controller = map(allocator, PARTS)
    assert agent == controller
    assert agent.keys() == {"MALLOC_ARENA_MAX", "MALLOC_TRIM_THRESHOLD_"}
    assert environment_as_in("agent", {"HOME": "/"}) == {"HOME": "/", **agent}


def test_debian_is_the_same_layer_in_both() -> None:
    agent, controller = (stages(part)["system"] for part in PARTS)
    assert agent == controller


def locked_debian() -> dict[str, str]:
    lines = (ROOT / "requirements/debian.list").read_text().splitlines()
    pairs = [line.partition("=")[::2] for line in lines if not line.startswith("#")]
    found = dict(pairs)
    assert len(found) == len(pairs)
    return found


def test_debian_packages_are_listed_with_versions() -> None:
    found = locked_debian()
    assert list(found) == sorted(found)
    assert {"base-files", "libc6", "libssl3", "python3.11-minimal"} <= found.keys()
    assert [x for x in found.values() if not re.fullmatch(r"[0-9][A-Za-z0-9.+:~-]*", x)] == []


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("", "libc6:arm64\nzlib1g:arm64"),
        ("1", "libc6:arm64=2.36-9\nzlib1g:arm64=1:1.2"),
    ],
)
def test_versions_are_demanded_of_a_locked_build_alone(
    tmp_path: Path, lock: str, wanted: str
) -> None:
    (run,) = stages("agent")["system"].all("RUN")
    (line,) = re.findall(r"packages=\$\(.*?fi\)", run)
    (tmp_path / "debian.list").write_text("# a line\nlibc6=2.36-9\nzlib1g=1:1.2\n")
    script = line.replace("/debian.list", str(tmp_path / "debian.list")) + '; echo "$packages"'
    done = subprocess.run(
        ["/bin/sh", "-euc", script],
        env={"PATH": os.environ["PATH"], "DEBIAN_LOCKED": lock, "TARGETARCH": "arm64"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{wanted}\n"
    assert "download $packages" in run


@pytest.mark.parametrize("part", PARTS)
def test_layers_go_from_what_changes_least_to_what_changes_most(part: str) -> None:
    final = stages(part)["final"]
    assert final.all("COPY") == [
        "--from=system /system /",
        "--from=requirements /requirements /",
        "--from=program /program /",
    ]
    assert final.all("RUN") == []
    assert final.all("ADD") == []


@pytest.mark.parametrize("part", PARTS)
def test_an_image_copies_its_own_side_and_nothing_else(part: str) -> None:
    found = stages(part)
    copied = [x.split()[0] for x in found["program"].all("COPY")]
    assert copied == ["gpuwarden", part, "LICENSE"]
    assert found["system"].all("COPY") == ["requirements/debian.list /"]
    assert found["requirements"].all("COPY") == [
        f"requirements/{part}.txt requirements/unused.list /"
    ]


@pytest.mark.parametrize("part", PARTS)
def test_requirements_are_held_to_their_hashes(part: str) -> None:
    runs = [x for stage in stages(part).values() for x in stage.all("RUN") if "pip install" in x]
    (install,) = runs
    assert "--require-hashes" in install
    assert "--only-binary :all:" in install
    assert f"-r /{part}.txt" in install


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(("architecture", "machine"), [("amd64", "x86_64"), ("arm64", "aarch64")])
def test_wheels_are_those_that_the_list_was_made_for(
    part: str, architecture: str, machine: str
) -> None:
    (run,) = stages(part)["requirements"].all("RUN")
    before, _, _ = run.partition("&& python3 -m pip")
    (last,) = re.findall(r"\$platforms (--platform \S+) --target", run)
    done = subprocess.run(
        ["/bin/sh", "-euc", f"{before} && echo $platforms {last}"],
        env={"PATH": os.environ["PATH"], "TARGETARCH": architecture},
        capture_output=True,
        text=True,
        check=True,
    )
    asked = done.stdout.split("--platform ")[1:]
    listed = list(dict.fromkeys(x.platform for x in tags(machine)))
    assert [x.strip() for x in asked] == [x for x in listed if x.startswith("manylinux")]


def test_pip_decides_on_markers_for_the_building_machine_and_both_decide_alike() -> None:
    for part in PARTS:
        assert locked(part, "x86_64") == locked(part, "aarch64")


@pytest.mark.parametrize("part", PARTS)
def test_no_host_is_written_and_an_index_stays_in_a_stage_that_is_thrown_away(part: str) -> None:
    text = (ROOT / f"Dockerfile.{part}").read_text()
    assert "://" not in text
    takes = {name for name, stage in stages(part).items() if any("PIP_" in x for x in stage.lines)}
    assert takes == {"requirements"}
    assert set(stages(part)["requirements"].all("ARG")) == {
        "TARGETARCH",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_CERT",
    }


@pytest.mark.parametrize(("part", "user"), [("agent", "0:0"), ("controller", "65532:65532")])
def test_who_runs_what(part: str, user: str) -> None:
    final = stages(part)["final"]
    assert final.all("USER") == [user]
    assert final.all("ENTRYPOINT") == [f'["/usr/bin/python3", "-I", "-m", "{part}"]']
    assert final.all("CMD") == []
    assert final.all("STOPSIGNAL") == ["SIGTERM"]


@pytest.mark.parametrize("part", PARTS)
def test_an_image_says_what_it_is(part: str) -> None:
    (labels,) = stages(part)["final"].all("LABEL")
    names = set(re.findall(r"org\.opencontainers\.image\.([a-z.]+)=", labels))
    assert names == {"title", "description", "licenses", "base.name", "version", "revision"}
    assert f'title="gpuwarden-{part}"' in labels


def test_nothing_starts_a_shell() -> None:
    (program,) = stages("controller")["program"].all("RUN")
    assert re.findall(r"#!\S+", program) == ["#!/usr/bin/python3"]
    assert "#!" not in "".join(stages("agent")["program"].lines)


def test_what_is_sent_to_the_builder_is_listed() -> None:
    first, *rest = (ROOT / ".dockerignore").read_text().split()
    assert first == "*"
    assert {line.removeprefix("!") for line in rest if line.startswith("!")} == LEAVES
