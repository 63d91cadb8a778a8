"""Which pods run, by the cgroups of a made-up tree of processes."""

import asyncio
from pathlib import Path

import pytest

from agent.claims.pods import RunningPods, UnreadableProcessesError, pods_in
from gpuwarden.evidence.use_rules import MAX_PODS
from tests.hang import HANG_S

ONE = "0b7c1a52-0000-4000-8000-000000000001"
TWO = "0b7c1a52-0000-4000-8000-000000000002"
INIT = "0::/init.scope\n"


def of_pod(uid: str, container: str = "c1") -> str:
    return f"0::/kubepods.slice/kubepods-pod{uid.replace('-', '_')}.slice/{container}.scope\n"


def tree(folder: Path, *cgroups: str | None, first: str | None = INIT) -> Path:
    """Processes 1, 100, 101, …; None is one that has ended meanwhile."""
    (folder / "self").mkdir()
    for pid, text in zip((1, *range(100, 100 + len(cgroups))), (first, *cgroups), strict=True):
        (folder / str(pid)).mkdir()
        if text is not None:
            (folder / str(pid) / "cgroup").write_text(text)
    return folder


def test_each_pod_that_has_a_process_once(tmp_path: Path) -> None:
    proc = tree(tmp_path, of_pod(ONE), of_pod(ONE, "c2"), of_pod(TWO), "0::/system.slice\n", None)
    assert pods_in(proc) == {ONE, TWO}


def test_a_node_without_pods(tmp_path: Path) -> None:
    assert pods_in(tree(tmp_path, "0::/\n")) == frozenset()


@pytest.mark.parametrize("first", [of_pod(ONE), None])
def test_a_reader_inside_a_pod_of_its_own_sees_nothing_of_the_node(
    tmp_path: Path, first: str | None
) -> None:
    with pytest.raises(UnreadableProcessesError, match="NOT_THE_HOSTS"):
        pods_in(tree(tmp_path, of_pod(TWO), first=first))


def test_more_pods_than_fit_are_not_reported_in_part(tmp_path: Path) -> None:
    many = (of_pod(f"{n:08x}-0000-4000-8000-000000000000") for n in range(MAX_PODS + 1))
    with pytest.raises(UnreadableProcessesError, match="TOO_MANY"):
        pods_in(tree(tmp_path, *many))


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    proc = tree(tmp_path, of_pod(ONE), None)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        pods_in(proc)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_look(tmp_path: Path) -> None:
    found = await RunningPods(tree(tmp_path, of_pod(TWO), of_pod(ONE)))()
    assert (found.pods, found.failed_reads) == ((ONE, TWO), ())


@pytest.mark.parametrize("first", [of_pod(ONE), INIT])
async def test_a_look_that_fails_says_so(tmp_path: Path, first: str) -> None:
    proc = tree(tmp_path, of_pod(TWO), first=first)
    if first is INIT:
        (proc / "100" / "cgroup").unlink()
        (proc / "100" / "cgroup").mkdir()
    found = await RunningPods(proc)()
    (read,) = found.failed_reads
    assert found.pods is None
    assert (read.fact, read.call) == ("pods", "/proc/PID/cgroup")
    assert read.error == ("NOT_THE_HOSTS" if first is not INIT else "IsADirectoryError")


async def test_this_machine_can_be_looked_at() -> None:
    async with asyncio.timeout(HANG_S):
        found = await RunningPods()()
    assert found.pods is not None or found.failed_reads[0].error == "NOT_THE_HOSTS"
