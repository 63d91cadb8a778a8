"""This machine as the checks on real hardware need it: its environment, programs, and a cgroup."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from sandbox.laptop import ROOT

HERE: Final = Path(__file__).parent
_END_S: Final = 20


def environment() -> dict[str, str]:
    """Where programs and the driver's libraries are; CUDA counts GPUs as NVML does."""
    names = ("PATH", "LD_LIBRARY_PATH")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    return {**kept, "PYTHONPATH": str(ROOT), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@contextmanager
def cuda_program(what: str) -> Iterator[subprocess.Popen[bytes]]:
    """The program of that name with a GPU in use, or AssertionError; ended afterwards."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "cuda_program.py"), what],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    try:
        assert process.stdout.readline(), "the CUDA program ended without a word"
        yield process
    finally:
        process.stdin.close()
        process.wait(_END_S)
        process.stdout.close()


@contextmanager
def in_pod_cgroup(pid: int) -> Iterator[str | None]:
    """Put a process into a cgroup as kubelet makes them; gives the pod's UID.

    Null where this process may not make cgroups. The process must have ended before the end.
    """
    uid = str(uuid.uuid4())
    folder = _hierarchy() / "gpuwarden-check" / "kubepods" / f"pod{uid}"
    try:
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text(str(pid))
    except OSError:
        uid = ""
    try:
        yield uid or None
    finally:
        for made in (folder, folder.parent, folder.parent.parent):
            with suppress(OSError):
                made.rmdir()


def _hierarchy() -> Path:
    """Version 2, or the first one of version 1 that takes processes."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.procs").exists():
        return root
    return next((path.parent for path in sorted(root.glob("*/cgroup.procs"))), root)
