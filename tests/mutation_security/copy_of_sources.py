"""A copy of the sources in which something is taken out, and tests that run in it.

The copies are made of the working tree, so that this also holds before a commit. Nothing
is ever changed in the tree itself.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from sandbox.nvml.build import ROOT, build
from tests.mutation_security.security_mutation import Edit, SecurityMutation

_COPIED: Final = ("agent", "controller", "gpuwarden", "sandbox", "tests", "docs", "proto", "deploy")
_RUN_S: Final = 150
_TEST_S: Final = 25
"""A test that a security mutation makes wait forever has failed, soon enough."""
_HANG_S: Final = 8
"""Enough for a test that goes well; one that waits for nothing has ten parameters."""
_TESTS_FAILED: Final = 1


def copied(target: Path) -> Path:
    """Copy everything that tests need to `target`, compiled files too.

    They are used as long as their source has the time and the size that they name: not for
    one that is edited here.
    """
    for name in _COPIED:
        ignored = shutil.ignore_patterns("*.tmp")
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", target)
    shutil.copytree(build(), target / "build" / "fake-nvml")
    return target


def edited(root: Path, edit: Edit) -> None:
    """Make one edit, which must fit exactly once."""
    path = root / edit.path
    text = path.read_text()
    found = text.count(edit.before)
    assert found == 1, f"{edit.path} has changed: {edit.before!r} stands there {found} times"
    path.write_text(text.replace(edit.before, edit.after))


def pytest_in(root: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Run `tests` (`path::name`) against the copy at `root`, and nothing of this tree."""
    options = ("-q", "-n0", "-p", "no:cacheprovider", "-rfE", "--tb=short", "--no-header")
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--timeout={_TEST_S}", *tests],
        cwd=root,
        env={
            "PATH": os.defpath,
            "PYTHONPATH": str(root),
            "HOME": str(root),
            "TEST_HANG_S": str(_HANG_S),
        },
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
    )


def failed(run: subprocess.CompletedProcess[str]) -> set[str]:
    """The tests that failed, without their parameters; classes left out as the table does."""
    lines = [x.split()[1] for x in run.stdout.splitlines() if x.startswith("FAILED ")]
    names = (x.partition("[")[0].split("::") for x in lines)
    return {f"{parts[0]}::{parts[-1]}" for parts in names}


def assert_noticed(security_mutation: SecurityMutation, root: Path) -> None:
    """Every test that the table lists for a security mutation fails without the protection."""
    copied(root)
    for edit in security_mutation.edits:
        edited(root, edit)
    run = pytest_in(root, *(selector(x) for x in security_mutation.tests))
    if run.returncode != _TESTS_FAILED:
        pytest.fail(
            f"{security_mutation.name}: not noticed, or no test ran\n{run.stdout}\n{run.stderr}"
        )
    green = set(security_mutation.tests) - failed(run)
    assert not green, f"{security_mutation.name}: stayed green: {sorted(green)}\n{run.stdout}"


def selector(test: str) -> str:
    """`path::name` as pytest wants it, with the class that holds the test."""
    path, _, name = test.partition("::")
    holder = ""
    for line in (ROOT / path).read_text().splitlines():
        if line.startswith("class "):
            holder = line[6:].partition("(")[0].rstrip(":")
        if line.lstrip().startswith((f"def {name}(", f"async def {name}(")):
            return f"{path}::{holder}::{name}" if line[0].isspace() else test
    raise AssertionError(f"there is no test {test}")
