"""The service with its file: what is learned is durable, or in memory and said to be."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.scorer.service import ScoreService, SwitchedOffError, TooManyWaitError
from controller.scoring.documents import BadRequestError
from controller.scoring.learned import Learned
from controller.scoring.parameters import Parameters
from controller.store.learned_rows import ScoresUnavailableError
from controller.store.scores import ScoreFile, export_rows
from gpuwarden.clock import SystemClock
from tests.fakes.score_service import REFUSING, RUN, SCORE, Running


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    found = Running(tmp_path / "s.db")
    await found.saving.write()
    yield found
    await found.end()


async def test_what_was_learned_is_there_after_a_restart(running: Running) -> None:
    for _ in range(3):
        assert await running.service.observe(RUN) == {
            "status": "ok",
            "learned": True,
            "saved": True,
        }
    await running.end()
    again = Running(running.path)
    assert await again.saving.write()
    assert await again.runs() == 3.0
    await again.end()


async def test_runs_of_one_moment_are_all_durable_when_they_are_said_to_be(
    running: Running,
) -> None:
    documents = [{**RUN, "job_type": f"job-{x}"} for x in range(40)]
    answers = await asyncio.gather(*map(running.service.observe, documents))
    assert {x["saved"] for x in answers} == {True}
    assert len(export_rows(running.path)) == 40


async def test_a_file_that_takes_nothing_leaves_answers_from_memory(running: Running) -> None:
    await running.service.observe(RUN)
    running.sql(REFUSING)
    assert (await running.service.observe(RUN))["saved"] is False
    assert "full" in running.service.problem
    assert (await running.runs(), running.saving.unsaved) == (2.0, 1)
    assert (await running.service.observe({**RUN, "job_type": "more"}))["saved"] is False
    running.sql("DROP TRIGGER full")
    assert await running.saving.write()
    assert (running.service.problem, running.saving.unsaved) == ("", 0)
    assert {row.job_type: row.runs().weight for row in export_rows(running.path)} == {
        "train": 2.0,
        "more": 1.0,
    }
    assert [bool(x) for x in running.heard.problems] == [False, True, False]
    assert running.heard.saved == [True, False, False]


async def test_a_locked_file_leaves_answers_from_memory(running: Running) -> None:
    other = sqlite3.connect(running.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert (await running.service.observe(RUN))["saved"] is False
    assert "locked" in running.service.problem
    other.execute("ROLLBACK")
    other.close()
    assert await running.saving.write()
    assert len(export_rows(running.path)) == 1


async def test_a_damaged_file_is_left_alone_and_what_comes_next_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    path.write_bytes(b"x" * 5000)
    running = Running(path)
    assert not await running.saving.write()
    assert (await running.service.observe(RUN))["saved"] is False
    assert await running.runs() == 1.0
    assert path.read_bytes() == b"x" * 5000
    path.unlink()
    assert await running.saving.write()
    assert len(export_rows(path)) == 1
    await running.end()


async def test_what_a_file_has_joins_what_was_learned_before_it_could_be_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.db"
    before = Running(path)
    await before.saving.write()
    await before.service.observe(RUN)
    await before.service.observe({**RUN, "job_type": "old"})
    await before.end()
    running = Running(path)
    assert (await running.service.observe(RUN))["saved"] is False
    assert await running.saving.write()
    assert await running.runs() == 2.0
    rows = {row.job_type: row.runs().weight for row in export_rows(path)}
    assert rows == {"train": 2.0, "old": 1.0}
    await running.end()


async def test_what_waits_has_a_bound_and_what_is_over_it_is_not_learned(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.scorer.service.MOST_WAITING", 4)
    running.sql(REFUSING)
    for others in (["a"], ["a", "b"]):
        run = {**RUN, "colocated_job_types": others}
        assert (await running.service.observe(run))["saved"] is False
    with pytest.raises(TooManyWaitError, match=r"^2 runs waiting for the database: .*full$"):
        await running.service.observe({**RUN, "run_id": "again"})
    assert await running.runs() == 2.0
    running.sql("DROP TRIGGER full")
    assert await running.saving.write()
    answer = await running.service.observe({**RUN, "run_id": "again"})
    assert (answer["saved"], answer["learned"]) == (True, True)


async def test_a_file_that_is_gone_is_missed_before_the_next_run(running: Running) -> None:
    running.path.rename(running.path.with_name("elsewhere"))
    assert not await running.saving.write()
    assert "it was there before" in running.service.problem


async def test_another_process_has_the_file(running: Running) -> None:
    second = Running(running.path)
    assert not await second.saving.write()
    assert "in use by another process" in second.service.problem
    assert (await second.service.observe(RUN))["saved"] is False
    await running.end()
    assert await second.saving.write()
    await second.end()


async def test_rows_that_went_are_gone_from_the_file(tmp_path: Path) -> None:
    running = Running(tmp_path / "s.db", max_pairs=2)
    await running.saving.write()
    for name in "abc":
        await running.service.observe({**RUN, "job_type": name})
    assert [row.job_type for row in export_rows(running.path)] == ["b", "c"]
    assert running.heard.gone == 1
    await running.saving.checkpoint()
    assert running.service.problem == ""
    await running.end()


async def test_a_file_with_more_rows_than_are_kept_shrinks(running: Running) -> None:
    for name in "abc":
        await running.service.observe({**RUN, "job_type": name})
    await running.end()
    again = Running(running.path, max_pairs=1)
    assert await again.saving.write()
    assert [row.job_type for row in export_rows(running.path)] == ["c"]
    assert again.heard.gone == 2
    await again.end()


async def test_a_checkpoint_that_fails_is_said(running: Running) -> None:
    running.path.rename(running.path.with_name("elsewhere"))
    await running.saving.checkpoint()
    assert "it was there before" in running.service.problem


async def test_a_failed_run_is_not_learned(running: Running) -> None:
    answer = await running.service.observe({**RUN, "status": "failed"})
    assert answer == {"status": "ok", "learned": False, "saved": True}
    assert await running.runs() == 0.0


async def test_a_run_that_is_reported_again_is_not_learned_again(running: Running) -> None:
    again = {"status": "ok", "learned": False, "saved": True, "repeated": True}
    for run_id in ("a", "b"):
        assert (await running.service.observe({**RUN, "run_id": run_id}))["learned"] is True
        assert await running.service.observe({**RUN, "run_id": run_id}) == again
    assert await running.runs() == 2.0
    assert (running.heard.again, running.heard.saved) == (["a", "b"], [True, True])
    for _ in range(2):
        assert (await running.service.observe({**RUN, "run_id": ""}))["learned"] is True
    running.sql(REFUSING)
    assert (await running.service.observe({**RUN, "run_id": "c"}))["saved"] is False
    assert (await running.service.observe({**RUN, "run_id": "c"})) == {**again, "saved": False}


async def test_only_the_last_runs_are_known_again(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.scorer.service.MOST_RUN_IDS", 2)
    monkeypatch.setattr("controller.store.scores.MOST_RUN_IDS", 2)
    answers = [await running.service.observe({**RUN, "run_id": x}) for x in "abbacba"]
    assert ["repeated" in x for x in answers] == [False, False, True, True, False, True, False]


async def test_a_write_that_comes_late_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ScoreFile(tmp_path / "s.db", SystemClock())
    running = Running(store=store)
    assert await running.saving.write()
    answered = store._thread.answered
    lost = iter((False, True))

    async def losing(done: asyncio.Future[bool]) -> bool:
        found = await answered(done)
        if next(lost, False):
            raise ScoresUnavailableError("no answer within 3 s")
        return found

    monkeypatch.setattr(store._thread, "answered", losing)
    assert (await running.service.observe({**RUN, "run_id": "a"}))["saved"] is False
    assert [row.runs().weight for row in export_rows(tmp_path / "s.db")] == [1.0]
    assert (await running.service.observe({**RUN, "run_id": "a"}))["repeated"] is True
    assert await running.saving.write()
    await running.end()
    again = Running(tmp_path / "s.db")
    assert await again.saving.write()
    assert (await again.service.observe({**RUN, "run_id": "a"}))["repeated"] is True
    assert await again.runs() == 1.0
    await again.end()


async def test_types_that_are_not_configured_are_refused(tmp_path: Path) -> None:
    found = Running(tmp_path / "s.db")
    learned = Learned(Parameters())
    service = ScoreService(
        Parameters(), learned, found.saving, found.heard, gpu_types={"L4": 24.0}, node_label="class"
    )
    with pytest.raises(BadRequestError) as error:
        await service.observe(RUN)
    assert error.value.field == "gpu_type"
    with pytest.raises(BadRequestError) as error:
        await service.score(SCORE)
    assert error.value.field == "candidate_gpu_types[0]"
    assert len(learned) == 0


async def test_a_job_that_fits_nowhere_names_its_memory(running: Running) -> None:
    with pytest.raises(BadRequestError) as error:
        await running.service.score({**SCORE, "features": {"gpu_mem_gb": 81}})
    assert str(error.value) == (
        "features.gpu_mem_gb: 81.0, expected at most 80: no candidate type has more memory"
    )


async def test_a_gang_is_assigned_at_once(tmp_path: Path) -> None:
    running = Running(tmp_path / "s.db", enable_sinkhorn=True)
    jobs = [{"job_type": "a", "name": "one"}, {"job_type": "b", "features": {"gpu_mem_gb": 40}}]
    answer = await running.service.assign(
        {"jobs": jobs, "capacity": {"A100-80GB": 1, "L4-24GB": 1}}
    )
    assert [(x["name"], x["gpu_type"]) for x in answer["assignments"]] == [
        ("one", "L4-24GB"),
        ("1", "A100-80GB"),
    ]
    assert running.heard.decisions == []
    for capacity, field in (
        ({"A100-80GB": 1}, "capacity"),
        ({"L4-24GB": 2}, "jobs[1].features.gpu_mem_gb"),
        ({"A100-80GB": 0, "L4-24GB": 2}, "capacity"),
    ):
        with pytest.raises(BadRequestError) as error:
            await running.service.assign({"jobs": jobs, "capacity": capacity})
        assert error.value.field == field


async def test_gangs_are_off_by_default(running: Running) -> None:
    with pytest.raises(SwitchedOffError, match="SCHEDULER_ENABLE_SINKHORN"):
        await running.service.assign({})
