"""Runs jobs in forked children, several at once, each step within its time."""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

_LIMIT: Final = struct.Struct("d")
_START_S: Final = 60.0
"""Until a child says how long its first step may take."""

Announce = Callable[[float], None]
"""Says that a step begins that may take so many seconds."""


class End(IntEnum):
    """How a child ended; also its exit status."""

    SURVIVED = 0
    KILLED = 1
    UNFIT = 3
    """The mutant cannot be tried in this way."""
    TIMED_OUT = 4
    BROKEN = 5
    """What runs the tests failed itself."""


@dataclass(frozen=True, slots=True)
class Job:
    """`work` runs in the child, with a folder of its own for temporary files."""

    number: int
    work: Callable[[Announce, Path], End]
    heard: bool = False
    """Whether it keeps its standard error."""


@dataclass(slots=True)
class _Child:
    job: Job
    process: int
    folder: Path
    deadline: float


def run(jobs: Iterable[Job], at_once: int, ended: Callable[[int, End], None]) -> None:
    """Run every job; `ended` gets its number and how it ended. Raises RuntimeError if one broke."""
    waiting = iter(jobs)
    running: dict[int, _Child] = {}
    with tempfile.TemporaryDirectory(prefix="m") as base:
        try:
            while True:
                while len(running) < at_once and (job := next(waiting, None)) is not None:
                    end, child = _start(job, Path(base))
                    running[end] = child
                if not running:
                    return
                for number, how in _step(running):
                    ended(number, how)
        finally:
            for child in running.values():
                _reaped(child)


def answer(work: Callable[[Announce, Path], bytes]) -> bytes | None:
    """What `work` returns in a forked child, None if the child did not get so far."""
    with tempfile.TemporaryDirectory(prefix="m") as base:
        target = Path(base) / "answer"

        def write(announce: Announce, folder: Path) -> End:
            target.write_bytes(work(announce, folder))
            return End.SURVIVED

        run([Job(0, write, heard=True)], 1, lambda *_: None)
        return target.read_bytes() if target.exists() else None


def _step(running: dict[int, _Child]) -> Iterator[tuple[int, End]]:
    """Wait until a child says something, has ended or is late; those that have ended."""
    for end in _ready(running):
        if message := os.read(end, _LIMIT.size):
            running[end].deadline = time.monotonic() + _LIMIT.unpack(message)[0]
        else:
            os.close(end)
            child = running.pop(end)
            yield child.job.number, _reaped(child)
    for end in _late(running):
        os.close(end)
        child = running.pop(end)
        _reaped(child)
        yield child.job.number, End.TIMED_OUT


def _start(job: Job, base: Path) -> tuple[int, _Child]:
    folder = Path(tempfile.mkdtemp(dir=base, prefix=""))
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        _child(job, folder, writing)
    os.close(writing)
    return reading, _Child(job, process, folder, time.monotonic() + _START_S)


def _child(job: Job, folder: Path, writing: int) -> None:
    status, shown = End.BROKEN, os.dup(2)
    try:
        os.setpgid(0, 0)
        _end_with_parent()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1) if job.heard else (0, 1, 2):
            os.dup2(null, descriptor)
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        status = job.work(lambda limit: _say(writing, limit), folder)
    except BaseException:  # noqa: BLE001 - nothing may leave a fork; the parent raises
        os.write(shown, traceback.format_exc().encode())
    finally:
        os._exit(status)


def _end_with_parent() -> None:
    """Nobody is left behind when the run is killed; prctl(2), PR_SET_PDEATHSIG."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _say(writing: int, limit: float) -> None:
    os.write(writing, _LIMIT.pack(limit))


def _ready(running: dict[int, _Child]) -> list[int]:
    left = min(child.deadline for child in running.values()) - time.monotonic()
    return select.select(list(running), [], [], max(0.0, left))[0]


def _late(running: dict[int, _Child]) -> list[int]:
    now = time.monotonic()
    return [end for end, child in running.items() if child.deadline <= now]


def _reaped(child: _Child) -> End:
    """End whatever the child has started, and say how it ended itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.process, signal.SIGKILL)
    _, status = os.waitpid(child.process, 0)
    shutil.rmtree(child.folder, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    if code == End.BROKEN:
        raise RuntimeError(f"job {child.job.number} broke, which has nothing to do with a mutant")
    return End(code) if code in set(End) else End.KILLED
