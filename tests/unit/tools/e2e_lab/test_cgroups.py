from pathlib import Path

import pytest

from tests.e2e.lab import cgroups


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    for name in ("memory", "cpuset", "unified"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("1\n")
    (tmp_path / "cpuset/cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset/cpuset.mems").write_text("0\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cpu").symlink_to("memory")
    return tmp_path


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory pids\n")
    return tmp_path


def test_v1_gets_a_group_in_each_hierarchy_once(v1: Path) -> None:
    assert not cgroups.is_v2(v1)
    assert [path.name for path in cgroups.hierarchies(v1)] == ["cpuset", "memory", "unified"]
    cgroups.create("lab", v1)
    assert (v1 / "memory/lab").is_dir()
    assert not (v1 / "elsewhere/lab").exists()


def test_v1_processes_may_enter(v1: Path) -> None:
    cgroups.create("lab", v1)
    assert (v1 / "cpuset/lab/cpuset.cpus").read_text() == "0-1\n"
    assert (v1 / "cpuset/lab/cpuset.mems").read_text() == "0\n"


def test_v2_delegates_the_controllers(v2: Path) -> None:
    (v2 / "lab").mkdir()
    (v2 / "lab/cgroup.controllers").write_text("memory pids\n")
    cgroups.create("lab", v2)
    assert (v2 / "cgroup.subtree_control").read_text() == "+cpuset +cpu +memory +pids"
    assert (v2 / "lab/cgroup.subtree_control").read_text() == "+memory +pids"


def test_removed_from_the_innermost(v1: Path) -> None:
    (v1 / "memory/lab/kubepods/pod1").mkdir(parents=True)
    cgroups.remove("lab", v1)
    assert not (v1 / "memory/lab").exists()
    cgroups.remove("lab", v1)
