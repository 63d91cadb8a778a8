"""Progress of an installation, and the programs that it makes."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sandbox.install import ROOT, pins, progress, write_launchers
from tests.hang import HANG_S

REQUIREMENTS = """\
aiohttp==3.14.5 \\
    --hash=sha256:00
cffi==2.1.1 ; platform_python_implementation != 'PyPy' \\
    --hash=sha256:11
opentelemetry_api==1.45.2 \\
    --hash=sha256:22
"""
WANTED = {"aiohttp": "3.14.5", "cffi": "2.1.1", "opentelemetry-api": "1.45.2"}


def test_a_requirement_file_names_packages_and_versions() -> None:
    assert pins(REQUIREMENTS) == WANTED


def test_each_package_is_told_once_when_it_is_fetched() -> None:
    lines = [
        "Collecting aiohttp==3.14.5 (from -r demo.txt (line 1))\n",
        "  Using cached aiohttp-3.14.5.whl\n",
        "Requirement already satisfied: cffi==2.1.1 in /x (from -r demo.txt (line 3)) (2.1.1)\n",
        "Requirement already satisfied: pip in /x\n",
        "Collecting opentelemetry_api==1.45.2 (from -r demo.txt (line 5))\n",
        "Requirement already satisfied: cffi>=2 in /x (from aiohttp->-r demo.txt) (2.1.1)\n",
        "Collecting aiohttp>=3\n",
        "Installing collected packages: opentelemetry-api, aiohttp\n",
        "Successfully installed aiohttp-3.14.5 opentelemetry-api-1.45.2\n",
    ]
    assert list(progress(lines, WANTED)) == [
        "package   1 of 3, aiohttp 3.14.5",
        "package   3 of 3, opentelemetry-api 1.45.2",
        "unpacks 2 packages; this can take a minute",
        "2 packages are new, 1 were there",
    ]


def wheel(folder: Path) -> str:
    """A wheel with one module; its digest."""
    path = folder / "tiny_thing-1.0-py3-none-any.whl"
    info = "tiny_thing-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("tiny_thing.py", "")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def install(folder: Path, digest: str) -> subprocess.CompletedProcess[str]:
    file = folder / "tiny.txt"
    file.write_text(f"tiny-thing==1.0 \\\n    --hash=sha256:{digest}\n")
    settings = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "PIP_TARGET": str(folder / "target"),
        "PIP_CONFIG_FILE": os.devnull,
    }
    return subprocess.run(
        [sys.executable, "-m", "sandbox.install", str(file)],
        cwd=ROOT,
        env={"PATH": os.defpath, "HOME": str(folder), **settings},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def test_a_file_is_installed_with_progress(tmp_path: Path) -> None:
    run = install(tmp_path, wheel(tmp_path))
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines() == [
        "setup: package   1 of 1, tiny-thing 1.0",
        "setup: unpacks 1 packages; this can take a minute",
        "setup: 1 packages are new, 0 were there",
    ]
    assert (tmp_path / "target" / "tiny_thing.py").exists()


def test_another_hash_is_a_failure_with_pips_words(tmp_path: Path) -> None:
    wheel(tmp_path)
    run = install(tmp_path, "0" * 64)
    assert run.returncode != 0
    assert "DO NOT MATCH THE HASHES" in run.stderr
    assert run.stderr.splitlines()[-1].startswith("setup: pip could not install")
    assert not (tmp_path / "target" / "tiny_thing.py").exists()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An environment's programs, below a name that a shell would split."""
    made = tmp_path / "a b" / "bin"
    made.mkdir(parents=True)
    (made / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (made / "python").chmod(0o755)
    return made


def test_a_launcher_starts_the_projects_program_from_anywhere(folder: Path, tmp_path: Path) -> None:
    write_launchers(folder)
    run = subprocess.run(
        [str(folder / "gpuwarden-sandbox"), "demo", "--help"],
        cwd=tmp_path,
        env={"PATH": os.defpath},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("usage: gpuwarden-sandbox demo")
    assert sorted(x.name for x in folder.iterdir()) == [
        "gpuwarden",
        "gpuwarden-agent",
        "gpuwarden-controller",
        "gpuwarden-sandbox",
        "gpuwarden-score",
        "kubectl-gpuwarden",
        "python",
    ]


def test_a_launcher_replaces_its_like_and_nothing_that_pip_made(folder: Path) -> None:
    (folder / "gpuwarden").write_text("#!/x/.venv/bin/python\nmade by pip\n")
    (folder / "gpuwarden-agent").write_text("#!/bin/sh\nan older one\n")
    write_launchers(folder)
    assert (folder / "gpuwarden").read_text().endswith("made by pip\n")
    assert "-m agent " in (folder / "gpuwarden-agent").read_text()
