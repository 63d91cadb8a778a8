"""`.ci/run` says at its end how long it took, whether or not it failed. Programs are stand-ins."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.test_names import ROOT
from tests.hang import HANG_S

PROGRAMS = {
    "make": 'echo "make $*"; test "$1" != "$FAILS"',
    "dpkg-query": 'echo "install ok installed"',
    "date": 'test "$1" = +%s || exit 0; cat now; echo 12760 > now',
    "python3": "exit 0",
    "nice": 'shift 2; exec "$@"',
}


@pytest.mark.parametrize(
    ("fails", "is_failed", "end"),
    [
        ("nothing", False, "done after 46 minutes (limit from cold caches: 75)"),
        ("test", True, "failed after 46 minutes (limit from cold caches: 75)"),
        ("e2e", True, "failed after 46 minutes (limit from cold caches: 75)"),
        ("setup", True, "failed after 46 minutes (limit from cold caches: 75)"),
    ],
)
def test_the_last_line_says_how_long_it_took(
    tmp_path: Path, fails: str, is_failed: bool, end: str
) -> None:
    """Begun at 10,000 s, ended 2,760 s later."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "now").write_text("10000\n")
    for name, text in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    done = subprocess.run(
        [tmp_path / ".ci" / "run"],
        env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "FAILS": fails},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (done.returncode != 0) is is_failed, done.stderr
    assert done.stdout.splitlines()[-1].endswith(end), done.stdout
