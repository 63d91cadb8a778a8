"""`gpuwarden-score` as a process: answers, remembers, and shares its file with nobody."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp

from sandbox.program import Program
from tests.hang import HANG_S

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
SCORE = {"job_type": "train", "candidate_gpu_types": ["A100-80GB"]}
RUN = {"job_type": "train", "gpu_type": "A100-80GB", "measured_runtime_s": 100}


async def started(folder: Path, name: str = "score") -> Program:
    arguments = ("--listen", "127.0.0.1:0", "--database", str(folder / "score.db"))
    return await Program.start(
        name,
        [sys.executable, "-m", "controller.scorer", *arguments],
        environment=ENVIRONMENT,
        log=folder / f"{name}.log",
    )


async def ended(program: Program) -> int:
    """Its exit status, once it ends by itself."""
    await program._process.wait()
    return await program.stop()


async def post(program: Program, path: str, document: dict[str, Any]) -> dict[str, Any]:
    listening = await program.event("score.listening", timeout_s=HANG_S)
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{listening['address']}{path}", json=document) as answer,
    ):
        assert answer.status == 200
        found: dict[str, Any] = await answer.json()
        return found


async def test_it_answers_by_itself_and_remembers_what_it_said_it_had_saved(
    tmp_path: Path,
) -> None:
    first = await started(tmp_path)
    answer = await post(first, "/v1/score", SCORE)
    terms = {"mu": 10.0, "sigma": 5.0, "ig": 2.56099, "cost": 9.70731, "chosen_gpu": "A100-80GB"}
    assert answer["terms"].items() >= terms.items()
    assert (await post(first, "/v1/observe", RUN))["saved"] is True

    second = await started(tmp_path, "second")
    assert await ended(second) == 1
    assert "score.db is in use by another process" in second.tail()
    assert (await post(first, "/v1/score", SCORE))["terms"]["runs"] == 1.0

    os.kill(first.pid, signal.SIGKILL)
    assert await ended(first) == -signal.SIGKILL
    again = await started(tmp_path, "again")
    assert (await post(again, "/v1/score", SCORE))["terms"]["runs"] == 1.0
    assert await again.stop() == 0
    assert "process.stopped" in again.tail()
