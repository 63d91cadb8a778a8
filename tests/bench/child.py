"""A program under measurement or a peer: started, pinned to a core, asked by lines of JSON.

Synchronous on purpose: the measuring process must do nothing else meanwhile.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sandbox.fleet.tally import cpu_seconds, rss_mib

ROOT = Path(__file__).resolve().parents[2]
CORES = sorted(os.sched_getaffinity(0))
"""Before this process is bound to one of them."""
SERVER_CORE, LOAD_CORE = CORES[0], CORES[-1]
_TASKSET = shutil.which("taskset") or "/usr/bin/taskset"
_STOP_S = 10
_SHOWN = 2000


class Child:
    """A running child process."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        *,
        core: int | None = None,
        environment: dict[str, str] | None = None,
        silent: bool = False,
    ) -> None:
        """With `core` it runs on that one alone. `silent`: nobody reads its standard output."""
        mask = ",".join(map(str, CORES if core is None else [core]))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by `stop`
        self._process = subprocess.Popen(
            [_TASKSET, "-c", mask, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if silent else subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        )

    @classmethod
    def python(cls, *arguments: str | Path, core: int | None = None, silent: bool = False) -> Self:
        """A module of this tree: `Child.python("tests.bench.extender_main", …)`."""
        return cls((sys.executable, "-m", *arguments), core=core, silent=silent)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def event(self, name: str) -> dict[str, Any]:
        """Wait for the JSON line whose `event` is `name`."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            found = _decoded(line)
            if found.get("event") == name:
                return found
        self._process.wait()
        raise RuntimeError(self.fault())

    @property
    def has_ended(self) -> bool:
        """Whether it is gone."""
        return self._process.poll() is not None

    def fault(self) -> str:
        """Its exit status and the end of its standard error."""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")[-_SHOWN:]
        return f"{self._process.args!r} ended with {self._process.returncode}: {said}"

    def ask(self, line: str = "report") -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def cpu_s(self) -> float:
        """CPU time so far."""
        return cpu_seconds(self.pid)

    def rss_mib(self) -> float:
        """Resident memory now."""
        return rss_mib(self.pid)

    def peak_mib(self) -> float:
        """Highest resident memory since `forget_peak`."""
        return rss_mib(self.pid, "VmHWM")

    def forget_peak(self) -> None:
        """Let the highest memory begin again."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


@contextmanager
def undisturbed() -> Iterator[None]:
    """This process, and what it starts meanwhile, goes before all others, where that is allowed.

    For tails of latencies, which are other programs' else. Keep it short: nobody else runs.
    """
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def pin(core: int) -> None:
    """Bind this process to one core."""
    os.sched_setaffinity(0, {core})


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
