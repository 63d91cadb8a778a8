"""The Workload API as a program of its own, steered from outside, as the demo does it."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden.clock import SystemClock
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.svid import exactly
from gpuwarden.identity.svid_watcher import SvidWatcher
from gpuwarden.identity.watchdog import Limits
from sandbox.spiffe.control import ControlError, ask
from tests.hang import HANG_S

AGENT = "spiffe://sandbox.test/gpuwarden/agent/node-a"
ROOT = Path(__file__).resolve().parents[2]


def program(directory: Path, *arguments: str) -> list[str]:
    command, *rest = arguments
    return [sys.executable, "-m", "sandbox.spiffe", command, "--directory", str(directory), *rest]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    command = program(
        tmp_path, "serve", "--trust-domain", "sandbox.test", "--workload", f"a={AGENT}"
    )
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == f"a unix://{tmp_path}/a.sock\n"
        assert process.stdout.readline() == "ready\n"
        yield tmp_path
        process.terminate()
        assert process.wait(HANG_S) == 0
        assert "INSECURE: throwaway SPIFFE trust domain sandbox.test" in process.stderr.read()
    assert list(tmp_path.iterdir()) == []


def test_a_workload_is_served_rotated_and_denied_from_another_process(served: Path) -> None:
    changed = threading.Event()
    svid_watcher = SvidWatcher.dialing(
        f"unix://{served}/a.sock",
        exactly(parse_spiffe_id(AGENT)),
        SystemClock(),
        Limits(probe_every=0.05, confirm_after=0.02, tick=0.02),
    )
    svid_watcher.subscribe(changed.set)
    control = served / "control.sock"
    with svid_watcher:
        assert changed.wait(HANG_S)
        for act in ("rotate", "rotate-ca", "retire-ca"):
            changed.clear()
            ask(control, act)
            assert changed.wait(HANG_S), act
        changed.clear()
        ask(control, "fault", name="a", fault="denied")
        assert changed.wait(HANG_S)
        assert svid_watcher.current() is None
        changed.clear()
        ask(control, "fault", fault="none")
        assert changed.wait(HANG_S)
        assert svid_watcher.current() is not None


def test_the_command_line_asks_and_shows(served: Path) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = program(served, "ask", *arguments)
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert run("add", "b", f"{AGENT}-b").returncode == 0
    assert run("assign", "b", f"{AGENT}-c").returncode == 0
    shown = ask(served / "control.sock", "status")
    assert shown["b"] == {
        "socket": str(served / "b.sock"),
        "ids": [f"{AGENT}-c"],
        "fault": "none",
    }
    assert '"ids"' in run("status").stdout
    assert run("remove", "b").returncode == 0
    failed = run("rotate", "b")
    assert failed.returncode == 1
    assert failed.stderr == "error: KeyError: 'b'\n"


@pytest.mark.parametrize(
    ("do", "arguments"),
    [
        ("dance", {}),
        ("fault", {"fault": "unheard-of"}),
        ("add", {"name": "a", "ids": [AGENT]}),
        ("add", {"name": "b"}),
        ("remove", {"name": ["a"]}),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_changes_nothing(
    served: Path, do: str, arguments: dict[str, object]
) -> None:
    control = served / "control.sock"
    before = ask(control, "status")
    with pytest.raises(ControlError):
        ask(control, do, **arguments)
    assert ask(control, "status") == before
