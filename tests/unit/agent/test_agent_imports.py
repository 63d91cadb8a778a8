"""What the agent process loads at its start is part of its footprint on every node."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hang import HANG_S

ROOT = Path(__file__).resolve().parents[3]
UNWANTED = ("aiohttp", "opentelemetry", "cyclopts", "uvloop", "kubernetes", "controller")
NOT_INSTALLED_WITH_IT = (*UNWANTED, "rich")
"""structlog takes rich along where it happens to be installed, which it is not with an agent."""


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("module", ["agent.app", "agent.__main__"])
def test_nothing_is_loaded_that_only_others_need(module: str) -> None:
    script = f"import sys, {module}; print([x for x in {UNWANTED!r} if x in sys.modules])"
    assert run(script) == "[]"


@pytest.mark.parametrize("module", ["agent.app", "agent.__main__"])
def test_it_starts_where_they_are_not_installed(module: str) -> None:
    without = f"sys.modules.update(dict.fromkeys({NOT_INSTALLED_WITH_IT!r}))"
    assert run(f"import sys; {without}; import {module}; print('started')") == "started"
