"""`make help` names every target on a terminal of 80 columns; `make demo` runs the demo."""

import re
import shutil
import subprocess

from tests.architecture.test_names import ROOT
from tests.builders.console_commands import typed, words
from tests.hang import HANG_S
from tests.integration.test_demo import DEMO

WIDTH = 80


def printed(*arguments: str) -> str:
    make = shutil.which("make")
    assert make is not None
    run = subprocess.run(
        [make, "--no-print-directory", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    return run.stdout


def test_make_demo_runs_the_demo_as_its_test_does() -> None:
    once, keeping = (
        printed("--dry-run", "demo", *words(x)).splitlines()[-1].split()
        for x in typed("docs/demo.md", "make demo")
    )
    assert once == [".venv/bin/python", *DEMO]
    assert keeping == [".venv/bin/python", *DEMO, "--keep"]


def test_help_names_every_target_in_80_columns() -> None:
    (variables,) = typed("CONTRIBUTING.md", "make help")
    text = printed("help", *words(variables))
    told = re.findall(r"^  make (\S+) +(\S.*)$", text, re.MULTILINE)
    described = re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert sorted(name for name, _ in told) == sorted(described)
    assert "demo" in described
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    assert " ".join(text.split()).count("KEEP=1 leaves it running") == 1
