"""`gpuwarden-score` as a process of its own."""

import contextlib
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from sandbox.program import Program
from tests.hang import HANG_S

ROOT = Path(__file__).resolve().parents[2]


async def started(folder: Path, name: str = "score", listen: str = "127.0.0.1:0") -> Program:
    """What it learns is in `score.db` of the folder."""
    return await Program.start(
        name,
        [
            *(sys.executable, "-m", "controller.scorer", "--listen", listen),
            *("--database", str(folder / "score.db")),
        ],
        environment={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        log=folder / f"{name}.log",
    )


async def address_of(program: Program) -> str:
    """Where it listens, once it does."""
    listening = await program.event("score.listening", timeout_s=HANG_S)
    return str(listening["address"])


async def ended(program: Program) -> int:
    """Its exit status, once it ends by itself."""
    await program._process.wait()
    return await program.stop()


async def killed(program: Program) -> None:
    """It has no time to write anything."""
    os.kill(program.pid, signal.SIGKILL)
    assert await ended(program) == -signal.SIGKILL


@contextlib.contextmanager
def full_disk(program: Program) -> Iterator[None]:
    """Meanwhile the kernel lets the program write to no file."""
    before = resource.prlimit(program.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(program.pid, resource.RLIMIT_FSIZE, (0, before[1]))
    yield
    with contextlib.suppress(ProcessLookupError):  # it was killed
        resource.prlimit(program.pid, resource.RLIMIT_FSIZE, before)


@contextlib.asynccontextmanager
async def gpuwarden_score(folder: Path) -> AsyncIterator[str]:
    """Its URL; what it learns is in a file of the folder."""
    program = await started(folder)
    try:
        yield f"http://{await address_of(program)}"
    finally:
        await program.stop()
