"""Labs beside each other, and what is left of a lab that ended: nothing, however it ended."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.lab import cgroups
from tests.e2e.lab.addresses import AddressPlan
from tests.e2e.lab.claim import Claim
from tests.e2e.lab.description import LABEL
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.logs import files_below
from tests.e2e.lab.machine import missing
from tests.e2e.lab.pods import pod
from tests.e2e.lab.product_images import NEEDS
from tests.e2e.lab.selection import chosen_kubernetes, why_no_node, why_no_spire
from tests.e2e.lab.sweep import keeper_of, processes_of
from tests.e2e.lab.waiting import NeverError, until

ROOT = Path(__file__).resolve().parents[2]
READY_S = 120


class Kept:
    """`make lab` in a process of its own, with a pod running where there is a node."""

    def __init__(self, log: Path, *arguments: str, ready_s: int = READY_S) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.lab", *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        until("make lab is ready", self._says_ready, timeout_s=ready_s)
        said = dict(line.split(None, 1) for line in log.read_text().splitlines()[1:])
        self.folder = Path(said["logs"]).parent
        self.plan = AddressPlan(int(self.folder.name.partition("-")[0]))
        self.processes = {*processes_of(self.folder), *contained(self.plan)}

    def _says_ready(self) -> bool:
        said = self.log.read_text()
        assert self.process.poll() is None, said
        return "is ready after" in said

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait(60)

    def keeper(self) -> int:
        found = keeper_of(self.folder)
        assert found is not None
        return found

    def remains(self) -> list[str]:
        """What is left for good; the kernel takes a moment to free a killed program's memory."""
        try:
            until("nothing is left", lambda: not self.leftovers(), timeout_s=5)
        except NeverError:
            return self.leftovers()
        return []

    def leftovers(self) -> list[str]:
        """Whatever of it is still on this machine."""
        found = [f"process {pid}" for pid in self.processes if runs(pid)]
        found += [f"process {pid}" for pid in processes_of(self.folder)]
        found += [f"cgroup {path}" for path in groups(self.plan)]
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        found += [f"mount {line}" for line in mounts if str(self.folder) in line]
        places = (self.folder, Path("/sys/class/net") / self.plan.link)
        return found + [str(path) for path in places if path.exists()]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    running = Kept(tmp_path / "log")
    yield running
    if running.process.poll() is None:
        running.end(signal.SIGKILL)


def test_a_lab_that_runs_is_seen(kept: Kept) -> None:
    """So that the other tests here would find what was left."""
    assert kept.folder.is_dir()
    assert len(kept.processes) >= 4
    if not why_no_node():
        assert contained(kept.plan)
        assert (Path("/sys/class/net") / kept.plan.link).exists()
    assert kept.leftovers()


def test_what_is_printed_is_enough_for_a_person(kept: Kept) -> None:
    said = kept.log.read_text()
    for project in ("Kubernetes", "etcd"):
        assert re.search(rf"{project} [0-9]+\.[0-9]+", said), project
    (kubeconfig,) = re.findall(r"export KUBECONFIG=(\S+)", said)
    (kubectl,) = re.findall(r"alias kubectl=(\S+)", said)
    done = subprocess.run(
        [kubectl, f"--kubeconfig={kubeconfig}", f"--cache-dir={kept.log.parent}", "version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert f"Server Version: v{chosen_kubernetes().version}" in done.stdout
    assert f"kill {kept.process.pid}\n" in said


@pytest.mark.usefixtures("real_node")
@pytest.mark.skipif(bool(why_no_spire()), reason=f"no SPIRE: {'; '.join(why_no_spire())}")
def test_a_lab_with_spire_says_where_everything_is_and_leaves_nothing(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "log", "--spire")
    try:
        said = kept.log.read_text()
        assert "not deployed; `make lab PRODUCT=1` deploys it" in said
        (agent,) = re.findall(r"SPIRE agent +(\S+)", said)
        assert agent in printed_command(said, "SPIRE")
        assert re.search(r"^CONTAINER", printed_command(said, "ctr"))
        (pods,) = re.findall(r"pods' logs +(\S+)", said)
        assert any(x.name.startswith("spire-system_") for x in Path(pods).iterdir())
    finally:
        kept.end(signal.SIGTERM)
    assert kept.remains() == []


@pytest.mark.long
@pytest.mark.usefixtures("real_node")
@pytest.mark.skipif(bool(why_no_spire()), reason=f"no SPIRE: {'; '.join(why_no_spire())}")
@pytest.mark.skipif(bool(missing(NEEDS)), reason=f"no images: {'; '.join(missing(NEEDS))}")
def test_a_lab_with_the_product_answers_what_it_says_to_type(tmp_path: Path) -> None:
    """`make lab PRODUCT=1`. Images that are not built yet are built."""
    kept = Kept(tmp_path / "log", "--spire", "--product", ready_s=1500)
    try:
        said = kept.log.read_text()
        (kubectl,) = re.findall(r"alias kubectl=(\S+)", said)
        (kubeconfig,) = re.findall(r"export KUBECONFIG=(\S+)", said)
        typed = re.findall(
            r"kubectl (-n \S+ exec .* gpuwarden (?:nodes|gpus))$", said, re.MULTILINE
        )
        answers = [
            subprocess.run(
                [kubectl, f"--kubeconfig={kubeconfig}", *command.split()],
                capture_output=True,
                text=True,
                timeout=120,
                check=True,
            ).stdout
            for command in typed
        ]
        assert [x.split()[0] for x in answers] == ["NAME", "NODE"]
        assert "eligible" in answers[0]
    finally:
        kept.end(signal.SIGTERM)
    assert kept.remains() == []


def printed_command(said: str, label: str) -> str:
    """What the command behind this label prints, run as printed."""
    (command,) = re.findall(rf"^  {label:{LABEL}}((?:.*\\\n)*.*)$", said, re.MULTILINE)
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM], ids=lambda how: how.name)
def test_an_asked_end_leaves_nothing(kept: Kept, how: signal.Signals) -> None:
    kept.end(how)
    assert kept.process.returncode == 0
    assert kept.remains() == []


def test_a_killed_lab_is_cleaned_up_by_its_cleanup_process(kept: Kept) -> None:
    kept.end(signal.SIGKILL)
    until("the keeper has swept", lambda: not kept.folder.exists())
    assert kept.remains() == []


def test_a_lab_killed_with_its_cleanup_process_is_cleaned_up_by_the_next(kept: Kept) -> None:
    os.kill(kept.keeper(), signal.SIGKILL)
    kept.end(signal.SIGKILL)
    assert kept.leftovers()
    following = [Claim.take()]
    try:
        while following[-1].plan.number < kept.plan.number:
            following.append(Claim.take())
        assert kept.remains() == []
    finally:
        for claim in following:
            claim.release()


def test_two_labs_side_by_side_do_not_meet(lab: Lab) -> None:
    has_node = not why_no_node()
    with Lab.whole() if has_node else Lab.control_plane_only() as other:
        assert other.plan.number != lab.plan.number
        document = pod("same-name", "say", "hello") if has_node else pod("same-name", kind="fake")
        for one in (lab, other):
            one.pods.create(document)
        other.pods.create(pod("other", kind="fake"))
        assert lab.api.found(f"{lab.pods.path}/pods/other") is None
        if has_node:
            for one in (lab, other):
                one.pods.says("same-name", "hello")
    if has_node:
        lab.pods.says("same-name", "hello")
        assert lab.pods.get("same-name")["status"]["phase"] == "Running"
    lab.api.delete(f"{lab.pods.path}/pods/same-name", grace_s=0)


def runs(pid: int) -> bool:
    """Whether the process lives; one whose parent was killed may be a zombie for a while."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def groups(plan: AddressPlan) -> list[Path]:
    return [path for h in cgroups.hierarchies() if (path := h / plan.cgroup).exists()]


def contained(plan: AddressPlan) -> list[int]:
    """The processes of the lab's pods."""
    files = [path for group in groups(plan) for path in files_below(group, "cgroup.procs")]
    found: set[int] = set()
    for path in files:
        with contextlib.suppress(OSError):  # a group that is gone holds nothing
            found.update(map(int, path.read_text().split()))
    return sorted(found)
