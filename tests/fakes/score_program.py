"""`gpuwarden-score` as a process of its own."""

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from sandbox.program import Program
from tests.hang import HANG_S

ROOT = Path(__file__).resolve().parents[2]


@contextlib.asynccontextmanager
async def gpuwarden_score(folder: Path) -> AsyncIterator[str]:
    """Its URL; what it learns is in a file of the folder."""
    program = await Program.start(
        "score",
        [
            *(sys.executable, "-m", "controller.scorer", "--listen", "127.0.0.1:0"),
            *("--database", str(folder / "score.db")),
        ],
        environment={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        log=folder / "score.log",
    )
    try:
        listening = await program.event("score.listening", timeout_s=HANG_S)
        yield f"http://{listening['address']}"
    finally:
        await program.stop()
