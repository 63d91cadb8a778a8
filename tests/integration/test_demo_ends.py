"""However the demo ends, its programs end with it and its folder is gone."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.nvml.build import ROOT
from sandbox.spiffe.control import ControlError, ask
from tests.fakes.kept_demo import END_S, RunningDemo, environment, running_demo

KEPT = ("--keep", "--only=inventory")
STAYS_UP = "It stays up"
LAST = "    gpuwarden.wire"
"""Of the list of things to try: nothing is printed any more until the end."""
PROGRAMS = 4
"""The controller and three agents; more where this machine has a GPU."""

ON_A_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes standard input the terminal of this session, as a login does."""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files: paths of unix sockets below it must be short."""
    folder = Path(tempfile.mkdtemp(prefix="d"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_a_demo_that_stays_up(temporary: Path, number: signal.Signals) -> None:
    with running_demo(temporary, *KEPT) as demo:
        demo.until(STAYS_UP)
        assert "demo: 1 of 1 checks passed" in demo.lines
        assert len(demo.programs()) >= PROGRAMS
        demo.process.send_signal(number)
        assert demo.rest() == 0
        assert demo.lines[-1] == "demo: 1 of 1 checks passed"
        assert demo.has_left_nothing()


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (signal.SIGINT, " 1  ok"),
        (signal.SIGTERM, "demo: starts"),
        (signal.SIGHUP, "demo: starts"),
    ],
)
def test_a_signal_ends_a_demo_before_its_end(
    temporary: Path, number: signal.Signals, line: str
) -> None:
    with running_demo(temporary) as demo:
        demo.until(line)
        demo.process.send_signal(number)
        assert demo.rest() == 128 + number
        held = sum("  ok  " in x for x in demo.lines)
        assert demo.lines[-1] == f"demo: ended by {number.name}, {held} of 17 checks passed"
        assert demo.has_left_nothing()


def test_a_second_signal_does_not_disturb_the_end(temporary: Path) -> None:
    with running_demo(temporary, *KEPT) as demo:
        demo.until(STAYS_UP)
        assert len(demo.programs()) >= PROGRAMS
        demo.process.send_signal(signal.SIGTERM)
        demo.process.send_signal(signal.SIGINT)
        assert demo.rest() == 0
        assert demo.lines[-1] == "demo: 1 of 1 checks passed"
        assert demo.has_left_nothing()


def test_a_demo_ends_with_its_terminal(temporary: Path) -> None:
    terminal, its_side = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, sys.executable, "-m", "sandbox", "demo", *KEPT],
        cwd=ROOT,
        env=environment(temporary),
        stdin=its_side,
        stdout=its_side,
        stderr=its_side,
        start_new_session=True,
        text=True,
    )
    os.close(its_side)
    with os.fdopen(terminal, "r") as output:
        demo = RunningDemo(process, output, temporary)
        demo.until(LAST)
        assert len(demo.programs()) >= PROGRAMS
    process.wait(END_S)
    assert demo.has_left_nothing()


@pytest.mark.parametrize("line", [" 1  ok", STAYS_UP, LAST])
def test_a_demo_ends_when_nobody_reads_it(temporary: Path, line: str) -> None:
    arguments = () if line == " 1  ok" else KEPT
    with running_demo(temporary, *arguments) as demo:
        demo.until(line)
        assert len(demo.programs()) >= PROGRAMS
        demo.output.close()
        assert demo.process.wait(END_S) == (1 if arguments == () else 0)
        assert demo.has_left_nothing()


def test_nohup_keeps_a_demo_up(temporary: Path) -> None:
    shell = ("/bin/sh", "-c", 'trap "" HUP; exec "$@"', "sh")
    with running_demo(temporary, *KEPT, before=shell) as demo:
        demo.until(LAST)
        demo.process.send_signal(signal.SIGHUP)
        for _ in range(2):  # the first may still be answered by one that ends
            with pytest.raises(ControlError, match="the agent of hopper-0 runs"):
                ask(demo.folder / "control.sock", "start-agent", node="hopper-0")
        demo.process.send_signal(signal.SIGTERM)
        assert demo.rest() == 0
        assert demo.has_left_nothing()
