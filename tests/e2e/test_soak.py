"""The soak of `make soak` for three minutes: too short to judge memory but in the roughest way.

A program of its own with a cluster of its own, which needs no root. Few nodes and pods, so that it
mostly waits.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.run_record import KEPT
from tests.fakes.process_group import run_group
from tests.soak.watch import longest_s

ROOT: Final = Path(__file__).resolve().parents[2]
SHORT: Final = {
    "minutes": "3",
    "nodes": "12",
    "pods": "20",
    "rotate": "60",
    "kill": "50",
    "interval": "10",
    "flat": "16384",
}
PATIENCE_S: Final = longest_s(float(SHORT["minutes"])) + 60
"""It ends before, with a report of what it waited for."""


def arguments(folder: Path) -> Sequence[str]:
    options = [word for name, value in SHORT.items() for word in (f"--{name}", value)]
    return (sys.executable, "-m", "tests.soak", *options, "--folder", str(folder))


@pytest.mark.timeout(PATIENCE_S + 60)
def test_a_short_soak_finds_no_fault() -> None:
    folder = KEPT / "soak"
    done = run_group(arguments(folder), cwd=ROOT, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    report = json.loads((folder / "report.json").read_text())
    assert report["faults"] == []
    assert {x["process"] for x in report["memory"]} == {"agents", "controller-0", "controller-1"}
