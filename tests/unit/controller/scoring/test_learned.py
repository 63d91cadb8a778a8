import math
from dataclasses import replace
from typing import Any

import pytest

from controller.scoring.learned import Key, Learned, Observation, Row, RowKind
from controller.scoring.parameters import Parameters


def run(
    seconds: float = 100.0, *beside: str, job: str = "train", gpu: str = "A100-80GB"
) -> Observation:
    return Observation(job_type=job, gpu_type=gpu, runtime_s=seconds, colocated=beside)


def learned(*runs: Observation, **parameters: float) -> Learned:
    found = Learned(replace(Parameters(), **parameters))  # type: ignore[arg-type]
    for one in runs:
        found.observe(one)
    return found


def pair(found: Learned, job: str = "train", gpu: str = "A100-80GB") -> Row:
    return found.of_job(job)[gpu]


def test_a_run_alone_is_a_baseline() -> None:
    found = pair(learned(run(100), run(400)))
    assert (found.alone.weight, found.beside.weight) == (2.0, 0.0)
    assert found.runs.mean == pytest.approx(math.log(200))


def test_a_run_beside_others_is_no_baseline() -> None:
    found = pair(learned(run(100), run(400, "noisy")))
    assert (found.alone.weight, found.beside.weight) == (1.0, 1.0)
    assert found.runs.mean == pytest.approx(math.log(100))


def test_runs_beside_others_count_until_there_is_a_baseline() -> None:
    assert pair(learned(run(400, "noisy"))).runs.mean == pytest.approx(math.log(400))


def test_a_failure_is_no_fast_run() -> None:
    found = learned(run(100))
    found.observe(replace(run(1), succeeded=False))
    row = pair(found)
    assert (row.failures, row.runs.weight) == (1, 1.0)
    assert row.runs.mean == pytest.approx(math.log(100))


def test_slowdown_is_learned_from_the_baseline() -> None:
    found = learned(run(100), *[run(150, "noisy")] * 50)
    assert found.slowdown("train", "noisy") == pytest.approx(0.5, abs=0.02)
    assert found.slowdown("other", "noisy") == found.slowdown("train", "other") == 0.0


def test_one_slow_run_is_weak_evidence() -> None:
    once = learned(run(100), run(150, "noisy")).slowdown("train", "noisy")
    assert once == pytest.approx(math.sqrt(1.5) - 1)


def test_a_slowdown_is_attributed_to_who_causes_it() -> None:
    runs = [run(100)]
    for _ in range(30):
        runs += [run(150, "noisy", "quiet"), run(150, "noisy"), run(100, "quiet")]
    found = learned(*runs)
    assert found.slowdown("train", "noisy") > 0.4
    assert found.slowdown("train", "quiet") < 0.05


def test_a_speedup_is_no_negative_slowdown() -> None:
    assert learned(run(100), run(50, "lucky")).slowdown("train", "lucky") == 0.0


def test_without_a_baseline_nobody_is_blamed() -> None:
    found = learned(run(150, "noisy"))
    assert found.slowdown("train", "noisy") == 0.0
    assert len(found) == 1


@pytest.mark.parametrize("what", ["driver", "image"])
def test_a_change_makes_earlier_runs_worth_one(what: str) -> None:
    old: dict[str, Any] = {what: "1"}
    new: dict[str, Any] = {what: "2"}
    before = [replace(run(100), **old)] * 20
    found = learned(*before, replace(run(400), **new))
    row = pair(found)
    assert row.runs.weight == 2.0
    assert row.runs.mean == pytest.approx(math.log(200))
    assert getattr(row, what) == "2"


def test_the_first_word_on_the_driver_is_no_change_and_silence_neither() -> None:
    found = learned(run(), replace(run(), driver="1"), run(), replace(run(), driver="1"))
    assert (pair(found).runs.weight, pair(found).driver) == (4.0, "1")


def test_an_estimate_weighs_so_many_runs_and_follows_a_drift() -> None:
    runs = [run(100)] * 100 + [run(400)] * 40
    assert pair(learned(*runs, retention_observations=10)).runs.weight == 10.0
    assert pair(learned(*runs, retention_observations=10)).runs.mean > math.log(380)
    assert pair(learned(*runs)).runs.mean < math.log(200)


def test_the_pair_that_is_unchanged_for_longest_is_forgotten() -> None:
    found = learned(run(job="a"), run(job="b"), run(job="a"), max_pairs=2)
    old = pair(found, "b")
    before = found.observe(run(job="c"))
    assert before == {Key(RowKind.PAIR, "c", "A100-80GB"): None, old.key: old}
    assert sorted(found.on_gpu("A100-80GB")) == ["a", "c"]
    assert (found.of_job("b"), len(found)) == ({}, 2)


def test_a_job_has_so_many_gpu_types() -> None:
    found = learned(*[run(gpu=f"gpu-{x}") for x in (0, *range(64))], run(gpu="gpu-0"))
    before = found.observe(run(gpu="gpu-64"))
    assert {key.other for key in before} == {"gpu-64", "gpu-1"}
    assert len(found.of_job("train")) == 64
    assert found.on_gpu("gpu-1") == {}
    assert len(found.observe(run(gpu="gpu-1", job="other"))) == 1


def test_a_change_says_how_the_rows_were() -> None:
    found = learned(run())
    before = pair(found)
    were = found.observe(run(150, "noisy"))
    assert were == {before.key: before, Key(RowKind.BESIDE, "train", "noisy"): None}
    rows = found.rows([*were, Key(RowKind.PAIR, "no", "such")])
    assert [x.number for x in rows] == [2, 2]


def test_runs_that_are_taken_back_and_learned_again_give_the_same() -> None:
    runs = [run(100), run(150, "noisy"), run(90, job="other"), replace(run(1), succeeded=False)]
    found = learned(runs[0])
    before: dict[Key, Row | None] = {}
    for one in runs[1:]:
        before = {**found.observe(one), **before}
    found.correct(before)
    assert found.rows() == learned(runs[0]).rows()
    for one in runs[1:]:
        found.observe(one)
    assert found.rows() == learned(*runs).rows()


def test_rows_from_elsewhere_take_the_place_of_what_is_there() -> None:
    found = learned(run(job="a"), run(job="b"), run(job="c"))
    elsewhere = learned(*[run(300, job="b")] * 7)
    a, theirs = pair(found, "a"), pair(elsewhere, "b")
    nothing = Key(RowKind.PAIR, "no", "such")
    assert found.correct({theirs.key: theirs, a.key: None, nothing: None}) == {}
    assert [x.job_type for x in found.rows()] == ["c", "b"]
    assert pair(found, "b") == theirs
    assert found.on_gpu("A100-80GB").keys() == {"b", "c"}
    found.observe(run(job="new"))
    assert pair(found, "new").number == 8


def test_rows_from_elsewhere_keep_the_bounds() -> None:
    found = learned(run(job="a"), max_pairs=1)
    rows = {
        row.key: row
        for row in (
            Row(kind=RowKind.PAIR, job_type=name, other="L4", number=number)
            for name, number in (("a", 8), ("b", 7))
        )
    }
    before = found.correct(rows)
    assert [x.job_type for x in found.rows()] == ["a"]
    assert [x.number for x in found.rows()] == [8]
    assert {key.job_type: row and row.number for key, row in before.items()} == {"a": 1, "b": 7}
    many = Learned(Parameters())
    types = [Row(kind=RowKind.PAIR, job_type="a", other=f"gpu-{x}", number=x) for x in range(65)]
    assert many.correct({row.key: row for row in types}) == {types[0].key: types[0]}
