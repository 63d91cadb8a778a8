"""The wheel as somebody installs it who has no checkout: its programs, the sandbox among them."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from re import fullmatch

import pytest

from sandbox.nvml.build import LIBRARY, ROOT

RUN_S = 300


@dataclass(frozen=True, slots=True)
class Installed:
    folder: Path
    wheel: Path

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.folder / "venv/bin" / program, *arguments],
            cwd=self.folder / "elsewhere",
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder / "home"),
                "TMPDIR": str(self.folder / "tmp"),
            },
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )


@pytest.fixture(scope="module")
def installed() -> Iterator[Installed]:
    """Built, and installed without its requirements, which are the locked ones of this Python."""
    folder = Path(tempfile.mkdtemp(prefix="w"))
    for name in ("elsewhere", "home", "tmp"):
        (folder / name).mkdir()
    build = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    subprocess.run(build, cwd=ROOT, capture_output=True, timeout=RUN_S, check=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv/bin/python"
    pip = (sys.executable, "-m", "pip", f"--python={python}", "install", "--quiet")
    subprocess.run(
        (*pip, "--no-deps", "--no-index", "--no-compile", str(wheel)),
        capture_output=True,
        timeout=RUN_S,
        check=True,
    )
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    yield Installed(folder, wheel)
    shutil.rmtree(folder)


def test_nothing_of_the_checkout_is_used(installed: Installed) -> None:
    names = ("agent", "controller", "gpuwarden", "sandbox")
    program = f"import {', '.join(names)}; print({', '.join(f'{x}.__file__' for x in names)})"
    run = installed.run("python", "-c", program)
    assert run.returncode == 0, run.stderr
    assert {Path(x).is_relative_to(installed.folder) for x in run.stdout.split()} == {True}


def test_it_has_the_product_and_the_sandbox_and_no_tests(installed: Installed) -> None:
    assert fullmatch(
        r"gpuwarden-[0-9.]+-py3-none-any\.whl", installed.wheel.name
    )  # as deploy/krew names it
    with zipfile.ZipFile(installed.wheel) as wheel:
        names = wheel.namelist()
    tops = {x.partition("/")[0] for x in names}
    assert {x for x in tops if not x.endswith(".dist-info")} == {
        "agent",
        "controller",
        "gpuwarden",
        "sandbox",
    }
    assert "sandbox/install.py" not in names
    assert {"sandbox/nvml/fake_nvml.c", "sandbox/shipped/requirements/zig.txt"} <= set(names)


def test_the_scoring_service_is_a_program(installed: Installed) -> None:
    database = installed.folder / "score.db"
    run = installed.run("gpuwarden-score", "export", "--database", str(database))
    assert (run.returncode, run.stderr) == (
        2,
        f"gpuwarden-score export: {database}: No such file or directory\n",
    )


def test_the_sandbox_shows_the_demo(installed: Installed) -> None:
    before = files(installed.folder / "venv")
    run = installed.run("gpuwarden-sandbox", "demo", "--only=inventory", "--only=filter")
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == "demo: 2 of 2 checks passed"
    kept = installed.folder / "home/.cache/gpuwarden-sandbox/fake-nvml"
    assert (kept / LIBRARY).is_file()
    assert files(installed.folder / "venv") == before


def files(folder: Path) -> set[Path]:
    """All but what Python compiles for itself."""
    return {x for x in folder.rglob("*") if x.is_file() and x.suffix != ".pyc"}


def test_what_it_prints_to_try_is_there(installed: Installed) -> None:
    program = (
        "from pathlib import Path; from sandbox.demo.try_it import things_to_try;"
        "from sandbox.laptop import Addresses;"
        "print(things_to_try(Addresses('a', 'e', 'o', 'l'), Path('/audit')))"
    )
    run = installed.run("python", "-c", program)
    assert run.returncode == 0, run.stderr
    words = run.stdout.replace("@", " ").split()
    examples = {Path(x) for x in words if x.endswith(("pod.yaml", "filter.json"))}
    assert {x.name for x in examples} == {"pod.yaml", "filter.json"}
    assert [x for x in examples if not x.is_file()] == []
    assert f'PATH="{installed.folder}/venv/bin:$PATH"' in words
