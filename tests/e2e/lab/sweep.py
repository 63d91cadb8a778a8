"""Removes everything of a lab: processes, link, cgroups, folder. Safe to call again at any time.

Its processes carry the lab's folder in their environment; they are ended by their process id.
The node's mounts, interfaces, shims and containers go with the namespaces that its first
process holds.
"""

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.e2e.lab import cgroups
from tests.e2e.lab.addresses import AddressPlan

MARK = "LAB_OF_GPUWARDEN"
"""Environment variable that holds the folder of the lab that a process belongs to."""
_NODE = "node.mark"
_PROC = Path("/proc")
_GONE_S = 15.0
_POLL_S = 0.02


def mark_node(folder: Path) -> None:
    """Say, before they are made, that the link and the cgroups of this number are this lab's."""
    (folder / _NODE).touch()


def sweep(folder: Path, plan: AddressPlan) -> None:
    """Leave nothing of the lab in `folder`."""
    _end(folder)
    if (folder / _NODE).exists():
        if (Path("/sys/class/net") / plan.link).exists():
            subprocess.run(["ip", "link", "delete", plan.link], check=False, capture_output=True)  # noqa: S607 - its place differs
        cgroups.remove(plan.cgroup)
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: Path) -> list[int]:
    """Process ids of the lab's programs that still run."""
    mark = f"{MARK}={folder}".encode()
    return [
        int(entry.name)
        for entry in _PROC.iterdir()
        if entry.name.isdecimal() and mark in _environment(entry).split(b"\0")
    ]


def keeper_of(folder: Path) -> int | None:
    """Process id of the lab's keeper; None where it has none."""
    wanted = {b"tests.e2e.lab.keeper", str(folder).encode()}
    for entry in _PROC.iterdir():
        with suppress(OSError):  # not a process, or it has ended
            if wanted <= set((entry / "cmdline").read_bytes().split(b"\0")):
                return int(entry.name)
    return None


def _end(folder: Path) -> None:
    deadline = time.monotonic() + _GONE_S
    while found := processes_of(folder):
        for pid in found:
            _kill(pid)
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes {found} of {folder.name} did not end")
        time.sleep(_POLL_S)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:  # gone, or another user's
        return b""
