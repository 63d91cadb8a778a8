"""Runs a program that starts others, and leaves none of them behind where it takes too long."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_group(
    arguments: Sequence[str],
    *,
    cwd: Path,
    timeout: float,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with its output captured; TimeoutExpired ends the whole group."""
    with subprocess.Popen(
        arguments,
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, out, errors)
