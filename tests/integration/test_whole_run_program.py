"""The program as `make` calls it, on small test files of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hang import HANG_S

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("-q", "-n0", "-p", "no:cacheprovider", "-c", "none.ini", "--rootdir", ".")
FAILS_ONCE = """
from pathlib import Path

def test_that_fails_once():
    marker = Path(__file__).with_name("ran")
    ran = marker.exists()
    marker.touch()
    assert ran
"""


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path) -> None:
    (tmp_path / "none.ini").write_text("[pytest]\n")


def whole_run(folder: Path, source: str, *options: str, **environment: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "tests.whole_run", "out", "test_it.py", "--", *OPTIONS, *options],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return done.returncode, done.stdout


def test_tests_that_pass(tmp_path: Path) -> None:
    code, said = whole_run(tmp_path, "def test_a(): pass\ndef test_b(): pass\n")
    assert code == 0
    assert "whole run: 2 collected, 2 passed, 0 left out" in said


def test_two_processes_that_share_the_tests(tmp_path: Path) -> None:
    dies = "import os\ndef test_a(): pass\ndef test_b(): os._exit(1)\ndef test_c(): pass\n"
    code, said = whole_run(tmp_path, dies, "-n2")
    assert code == 1
    assert "difference: test_it.py::test_b: failed" in said
    assert "whole run: 3 collected, 2 passed, 0 left out" in said


def test_what_a_process_alone_collects_was_collected(tmp_path: Path) -> None:
    one_more = "import os\nif os.environ['PYTEST_XDIST_WORKER'] == 'gw1':\n def test_b(): pass\n"
    code, said = whole_run(tmp_path, "def test_a(): pass\n" + one_more, "-n2")
    assert code == 1
    assert "test_it.py::test_b: was collected and never run" in said


def test_a_test_without_a_known_reason_to_be_left_out(tmp_path: Path) -> None:
    code, said = whole_run(tmp_path, "import pytest\ndef test_a(): pytest.skip('no mood')\n")
    assert code == 1
    assert "difference: test_it.py::test_a: was left out without a known reason: no mood" in said


def test_a_known_reason(tmp_path: Path) -> None:
    code, said = whole_run(tmp_path, "import pytest\ndef test_a(): pytest.skip('no images: x')\n")
    assert code == 0
    assert "left out, 1 of them: no images: x\nwhole run:   test_it.py::test_a\n" in said


def test_one_failure_is_one_too_many(tmp_path: Path) -> None:
    code, said = whole_run(tmp_path, FAILS_ONCE)
    assert code == 1
    assert "UNSTEADY" not in said


def test_a_second_look_names_what_is_unsteady(tmp_path: Path) -> None:
    code, said = whole_run(tmp_path, FAILS_ONCE, SECOND_LOOK="1")
    assert code == 0
    assert "UNSTEADY: test_it.py::test_that_fails_once failed once, then passed 2 times" in said


def test_a_second_look_forgives_no_fault(tmp_path: Path) -> None:
    code, said = whole_run(tmp_path, "def test_a(): assert False\n", SECOND_LOOK="1")
    assert code == 1
    assert "difference: test_it.py::test_a: failed" in said


def test_a_second_look_that_leaves_it_out_shows_nothing(tmp_path: Path) -> None:
    then_left_out = "assert ran\n    pytest.skip('a part of the tests')"
    source = "import pytest\n" + FAILS_ONCE.replace("assert ran", then_left_out)
    code, said = whole_run(tmp_path, source, SECOND_LOOK="1")
    assert code == 1
    assert "UNSTEADY" not in said


def test_many_failures_get_no_second_look(tmp_path: Path) -> None:
    tests = "".join(f"def test_{n}(): assert False\n" for n in range(4))
    code, said = whole_run(tmp_path, tests, SECOND_LOOK="1")
    assert code == 1
    assert "second look" not in said


def test_a_process_that_dies_is_a_difference(tmp_path: Path) -> None:
    code, said = whole_run(tmp_path, "import os\ndef test_a(): os._exit(0)\ndef test_b(): pass\n")
    assert code == 1
    assert "difference: test_it.py::test_b: was collected and never run" in said
