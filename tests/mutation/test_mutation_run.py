"""A run over a small planted package: what its tests notice is killed, the rest survives."""

import os
import subprocess
import sys
from pathlib import Path

from tests.architecture.test_names import ROOT
from tests.mutation.mutant import Key
from tests.mutation.survivors import as_entry

SOURCE = """\
from dataclasses import dataclass
from functools import cache

LIMIT = 3


def below(n):
    return n < LIMIT


@cache
def doubled(n):
    return n * 2


@dataclass(frozen=True, slots=True)
class Box:
    width: int = 4

    @property
    def area(self):
        return self.width + self.width

    @classmethod
    def of(cls, width):
        found = cls(width)
        return found
"""
COUNTED = """\


def counted(n):
    steps = 0
    while n:
        n -= 1
        steps += 1
    return steps
"""
UNSEEN = """\


def unseen(n):
    return n - 1
"""
STRONG = """\
from planted.source import Box, below, doubled


def test_below():
    assert below(2) and not below(3)


def test_box():
    assert Box().area == 8 and Box.of(1).area == 2 and doubled(3) == 6
"""
TEST_COUNTED = """\


def test_counted():
    from planted.source import counted
    assert counted(2) == 2
"""
WEAK = STRONG.replace(" and not below(3)", "")
RUN = """\
import sys
from pathlib import Path
from tests.mutation import in_copy, survivors
from tests.mutation.subjects import Subject

subjects = [Subject("planted", ("planted_tests",))]
verdicts = in_copy.tried(Path.cwd(), subjects, (), 4)
entries = survivors.listed(Path("list.toml").read_text())
sys.exit(in_copy.judged(Path.cwd(), subjects, verdicts, entries))
"""


def run(root: Path, source: str, tests: str, entries: list[str]) -> tuple[int, str]:
    for name, text in {
        "planted/source.py": source,
        "planted_tests/test_planted.py": tests,
        "list.toml": "\n".join(entries),
        "pyproject.toml": '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib"]\n',
    }.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        cwd=root,
        env={"PATH": os.defpath, "PYTHONPATH": f"{root}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def entry(function: str, operator: str, before: str, after: str) -> str:
    key = Key("planted/source.py", function, operator, before, after)
    return as_entry(key).replace('reason = ""', 'reason = "planted"')


def test_strong_tests_kill_everything_and_what_hangs_counts(tmp_path: Path) -> None:
    """Properties, class methods, caches, dataclasses and constants of the module are reached."""
    status, report = run(tmp_path, SOURCE + COUNTED, STRONG + TEST_COUNTED, [])
    [*_, total] = report.splitlines()
    name, mutants, killed, hung, left, *_ = total.split()
    assert (status, name, killed, left) == (0, "all", mutants, "0"), report
    assert int(mutants) > 20
    assert int(hung) == 3


def test_weak_tests_leave_survivors_and_a_list_must_be_exact(tmp_path: Path) -> None:
    entries = [
        entry("unseen", "return", "return n - 1", "return None"),
        entry("unseen", "arithmetic", "return n - 1", "return n + 1"),
        entry("doubled", "return", "return n * 2", "return None"),
        entry("doubled", "number", "return n * 2", "return n * 7"),
    ]
    status, report = run(tmp_path, SOURCE + UNSEEN, WEAK, entries)
    assert status == 1
    assert "-return n < LIMIT\n+return n <= LIMIT\n" in report
    assert "-LIMIT = 3\n+LIMIT = 4\n" in report
    assert "stale entry, 0 survive, 1 listed\n--- planted/source.py" in report
    assert "stale entry, there is no such mutant\n--- planted/source.py" in report
    assert "planted: " in report
    assert "+return n - 2" in report
    assert "+return None" in report.partition("stale entry, 0 survive")[2]
    assert "+return n + 1" not in report
