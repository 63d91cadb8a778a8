"""The plugin as `make test` calls it, on a small product and small tests of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hang import HANG_S

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = """
FIRST = 1
def in_unit():
    return 3
def elsewhere():
    return 5
def in_a_thread_of_unit():
    return 7
"""
UNIT = """
import threading
from agent import shown

def test_it():
    shown.in_unit()
    thread = threading.Thread(target=shown.in_a_thread_of_unit)
    thread.start()
    thread.join()
"""
ELSEWHERE = """
from agent import shown

def test_it():
    from agent import imported_late
    shown.elsewhere()
"""


@pytest.mark.parametrize("processes", ["-n0", "-n1"])
def test_some_folders_and_imports_are_measured(tmp_path: Path, processes: str) -> None:
    files = {
        "agent/__init__.py": "",
        "agent/shown.py": PRODUCT.lstrip(),
        "agent/imported_late.py": "LATE = 1\ndef never():\n    return 3\n",
        "tests/property/test_elsewhere.py": ELSEWHERE,
        "tests/unit/test_unit.py": UNIT,
        "none.ini": "[pytest]\naddopts = --import-mode=importlib\nfilterwarnings = error\n",
        ".coveragerc": "[run]\nbranch = true\nsource = agent\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    options = (
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
        "-c",
        "none.ini",
        "--rootdir",
        ".",
        processes,
    )
    measuring = ("-p", "tests.measured", "--cov", "--cov-report=json:found.json")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *measuring, "tests"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())["files"]
    lines = {name: facts["executed_lines"] for name, facts in found.items()}
    assert lines["agent/shown.py"] == [1, 2, 3, 4, 6, 7]
    assert lines["agent/imported_late.py"] == [1, 2]
