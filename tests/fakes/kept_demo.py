"""The demo as a child in a session of its own, read line by line."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from sandbox.nvml.build import ROOT

END_S = 60
"""How long a demo may take to end."""


@dataclass
class RunningDemo:
    process: subprocess.Popen[str]
    output: IO[str]
    temporary: Path
    lines: list[str] = field(default_factory=list)

    def until(self, beginning: str) -> None:
        """Read up to the first line that begins so."""
        for line in self.output:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(beginning):
                return
        raise AssertionError(f"no line begins with {beginning!r}: {self.lines}")

    def rest(self) -> int:
        """Read to the end; the exit status."""
        self.lines += [line.rstrip("\n") for line in self.output]
        return self.process.wait(END_S)

    @property
    def folder(self) -> Path:
        (found,) = self.temporary.glob("gpuwarden-*")
        return found

    def programs(self) -> set[int]:
        """Processes with the demo's folder in their command line."""
        found = set()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                is_ours = re.search(f"{self.temporary}/gpuwarden-".encode(), path.read_bytes())
            except OSError:  # it has ended
                continue
            if is_ours:
                found.add(int(path.parent.name))
        return found

    def has_left_nothing(self) -> bool:
        return not self.programs() and not list(self.temporary.iterdir())


def environment(temporary: Path) -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "HOME": str(temporary),
        "TMPDIR": str(temporary),
    }


_HEAR = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""
HEARS_HANG_UPS: Final = (sys.executable, "-c", _HEAR)
"""For a demo that starts as from a terminal, whatever these tests were started by (nohup)."""


@contextmanager
def running_demo(
    temporary: Path, *arguments: str, before: Sequence[str] = HEARS_HANG_UPS
) -> Iterator[RunningDemo]:
    """Its standard output is a pipe; `before` is a command line that starts the demo's."""
    read, write = os.pipe()
    with os.fdopen(read, "r") as output:
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "sandbox", "demo", *arguments],
            cwd=ROOT,
            env=environment(temporary),
            stdout=write,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        os.close(write)
        try:
            yield RunningDemo(process, output, temporary)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
