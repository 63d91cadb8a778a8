"""`gpuwarden-score` as a process: answers, remembers, and shares its file with nobody."""

from pathlib import Path
from typing import Any

import aiohttp

from sandbox.program import Program
from tests.fakes.eventually import eventually
from tests.fakes.score_program import address_of, ended, full_disk, killed, started

SCORE = {"job_type": "train", "candidate_gpu_types": ["A100-80GB"]}
RUN = {"job_type": "train", "gpu_type": "A100-80GB", "measured_runtime_s": 100}


async def post(program: Program, path: str, document: dict[str, Any]) -> dict[str, Any]:
    url = f"http://{await address_of(program)}{path}"
    async with aiohttp.ClientSession() as session, session.post(url, json=document) as answer:
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

    await killed(first)
    again = await started(tmp_path, "again")
    assert (await post(again, "/v1/score", SCORE))["terms"]["runs"] == 1.0
    assert await again.stop() == 0
    assert "process.stopped" in again.tail()


async def test_on_a_full_disk_it_goes_on_from_memory_and_writes_what_waits_later(
    tmp_path: Path,
) -> None:
    program = await started(tmp_path)

    async def ready() -> tuple[int, str]:
        url = f"http://{await address_of(program)}/readyz"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    async def is_ready() -> bool | None:
        return (await ready())[0] == 200 or None

    assert (await post(program, "/v1/observe", RUN))["saved"] is True
    with full_disk(program):
        answer = await post(program, "/v1/observe", RUN)
        assert (answer["learned"], answer["saved"]) == (True, False)
        assert (await post(program, "/v1/score", SCORE))["terms"]["runs"] == 2.0
        status, text = await ready()
        assert (status, "store: " in text) == (503, True)
    await eventually(is_ready, "the file takes what waits")
    await killed(program)
    again = await started(tmp_path, "again")
    assert (await post(again, "/v1/score", SCORE))["terms"]["runs"] == 2.0
    await killed(again)
