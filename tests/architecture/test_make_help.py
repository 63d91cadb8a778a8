"""`make help` names every target that says what it does, on a terminal of 80 columns."""

import re
import shutil
import subprocess

from tests.architecture.test_names import ROOT

WIDTH = 80


def test_help_names_every_target_in_80_columns() -> None:
    make = shutil.which("make")
    assert make is not None
    run = subprocess.run(
        [make, "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    told = re.findall(r"^  make (\S+) +(\S.*)$", run.stdout, re.MULTILINE)
    described = re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(name for name, _ in told) == sorted(described)
    assert "demo" in described
    assert [line for line in run.stdout.splitlines() if len(line) > WIDTH] == []
    assert " ".join(run.stdout.split()).count("KEEP=1 leaves it running") == 1
