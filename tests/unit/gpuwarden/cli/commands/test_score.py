"""`gpuwarden score` runs the scorer's own program, with all that was typed."""

import os
import subprocess
import sys
from pathlib import Path

from tests.hang import HANG_S


def typed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line as a program, with one folder of programs."""
    return subprocess.run(
        [sys.executable, "-m", "gpuwarden.cli", "score", *arguments],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
        env={**os.environ, "PATH": str(folder)},
    )


def test_arguments_and_exit_code_are_the_programs(tmp_path: Path) -> None:
    program = tmp_path / "gpuwarden-score"
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit 7\n')
    program.chmod(0o755)
    done = typed(tmp_path, "replay", "a trace.csv", "--plot", "x.svg", "-v")
    assert (done.stdout, done.stderr) == ("replay|a trace.csv|--plot|x.svg|-v|", "")
    assert done.returncode == 7


def test_without_the_program_it_says_what_brings_it(tmp_path: Path) -> None:
    done = typed(tmp_path, "replay", "trace.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpuwarden: gpuwarden-score: not installed, expected it beside")
    assert "gpuwarden[controller]" in done.stderr


def test_the_real_program_answers(tmp_path: Path) -> None:
    program = tmp_path / "gpuwarden-score"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m controller.scorer "$@"\n')
    program.chmod(0o755)
    trace = tmp_path / "trace.csv"
    done = typed(tmp_path, "replay", str(trace))
    assert done.stderr == f"gpuwarden-score replay: {trace}: No such file or directory\n"
    assert done.returncode == 2
