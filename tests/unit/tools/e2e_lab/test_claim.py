import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.test_names import ROOT
from tests.e2e.lab import claim
from tests.e2e.lab.addresses import LABS
from tests.e2e.lab.claim import Claim, ClaimError, labs_folder
from tests.e2e.lab.sweep import MARK, keeper_of, processes_of
from tests.e2e.lab.waiting import until

SLEEP = "import time; time.sleep(60)"
OWNER = """
import subprocess, sys
from pathlib import Path
from tests.e2e.lab.claim import Claim
from tests.e2e.lab.sweep import MARK
claim = Claim.take(Path(sys.argv[1]))
program = {"env": {MARK: str(claim.folder)}, "stdout": subprocess.DEVNULL}
subprocess.Popen(["sleep", "60"], start_new_session=True, **program)
print(claim.folder, flush=True)
sys.stdin.read()
"""


def owner(root: Path) -> tuple[subprocess.Popen[str], Path]:
    """Another process that has a lab with one program."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_claims_beside_each_other_have_their_own_number(tmp_path: Path) -> None:
    process, folder = owner(tmp_path)
    try:
        ours = Claim.take(tmp_path)
        assert number_of(ours.folder) == ours.plan.number != number_of(folder)
        ours.release()
        assert not ours.folder.exists()
        assert folder.is_dir()
        assert len(processes_of(folder)) == 1
    finally:
        end(process)


def test_a_release_that_could_not_sweep_all_leaves_it_to_the_keeper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper waits for the number: who waited for the keeper with it would wait for ever.

    The last number, so that no lab takes it between the two.
    """
    monkeypatch.setattr(claim, "sweep", lambda *_: None)
    ours = Claim.take(tmp_path, range(LABS - 1, LABS))
    ours.release()
    assert not ours.folder.exists()


def test_a_killed_owners_keeper_leaves_nothing(tmp_path: Path) -> None:
    process, folder = owner(tmp_path)
    assert len(processes_of(folder)) == 1
    end(process)
    until("the folder is gone", lambda: not folder.exists())
    assert processes_of(folder) == []


def test_the_next_claim_sweeps_where_the_keeper_was_killed_too(tmp_path: Path) -> None:
    process, folder = owner(tmp_path)
    keeper = keeper_of(folder)
    assert keeper is not None
    os.kill(keeper, signal.SIGKILL)
    end(process)
    assert len(processes_of(folder)) == 1
    number = number_of(folder)
    ours = Claim.take(tmp_path, range(number, number + 1))
    assert processes_of(folder) == []
    assert not folder.exists()
    ours.release()


def test_a_number_is_had_once_whatever_the_folder(tmp_path: Path) -> None:
    """Its addresses, link and cgroup are the machine's."""
    ours = Claim.take(tmp_path)
    only = range(ours.plan.number, ours.plan.number + 1)
    (tmp_path / "other").mkdir()
    with pytest.raises(ClaimError, match="all 1 labs of this machine are taken"):
        Claim.take(tmp_path / "other", only)
    ours.release()
    Claim.take(tmp_path / "other", only).release()


def test_release_may_come_twice(tmp_path: Path) -> None:
    ours = Claim.take(tmp_path)
    ours.release()
    ours.release()
    assert not ours.folder.exists()


def test_other_processes_are_left_alone(tmp_path: Path) -> None:
    ours = Claim.take(tmp_path)
    other = {MARK: f"{ours.folder}x", "PATH": os.environ["PATH"]}
    with subprocess.Popen([sys.executable, "-c", SLEEP], env=other) as stranger:
        ours.release()
        assert stranger.poll() is None
        stranger.kill()


def test_folders_that_the_node_hides_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWARDEN_LAB_HOME", "/var/lib/x")
    with pytest.raises(ClaimError, match="/var/lib/x, expected a folder outside /run and /var"):
        labs_folder()


def test_a_folder_that_others_can_write_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUWARDEN_LAB_HOME", str(tmp_path))
    tmp_path.chmod(0o777)
    with pytest.raises(ClaimError, match="can be written by somebody else"):
        labs_folder()


def number_of(folder: Path) -> int:
    return int(folder.name.partition("-")[0])
