import math
from dataclasses import replace
from typing import Any

import pytest

from controller.scoring.learned import (
    MOST_VARIANTS,
    Key,
    Learned,
    Observation,
    Row,
    RowKind,
)
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
    assert found.runs().mean == pytest.approx(math.log(200))


def test_a_run_beside_others_is_no_baseline() -> None:
    found = pair(learned(run(100), run(400, "noisy")))
    assert (found.alone.weight, found.beside.weight) == (1.0, 1.0)
    assert found.runs().mean == pytest.approx(math.log(100))


def test_runs_beside_others_count_until_there_is_a_baseline() -> None:
    assert pair(learned(run(400, "noisy"))).runs().mean == pytest.approx(math.log(400))


def test_a_failure_is_no_fast_run() -> None:
    found = learned(run(100))
    found.observe(replace(run(1), succeeded=False))
    row = pair(found)
    assert (row.failures, row.runs().weight) == (1, 1.0)
    assert row.runs().mean == pytest.approx(math.log(100))


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
    assert row.runs().weight == 2.0
    assert row.runs().mean == pytest.approx(math.log(200))
    assert getattr(row, what) == "2"


def image(name: str, seconds: float = 100.0) -> Observation:
    return replace(run(seconds), image=name, driver="1")


def test_an_image_that_comes_back_finds_what_was_known_of_it() -> None:
    found = learned(*[image("a", 100)] * 20, image("b", 400), image("a", 100))
    row = pair(found)
    assert (row.image, row.runs().weight) == ("a", 21.0)
    assert row.runs().mean == pytest.approx(math.log(100))
    assert (row.runs("b").weight, row.runs("other")) == (2.0, row.runs())
    assert [x.image for x in row.earlier] == ["b"]


def test_images_in_turn_are_each_learned() -> None:
    """The first one as if the other had never run."""
    runs = [image("a", 100), image("a", 120), image("b", 400)] * 30
    row = pair(learned(*runs))
    alone = pair(learned(*[x for x in runs if x.image == "a"]))
    assert row.runs("a") == alone.runs()
    assert row.runs("b").weight == 31.0
    assert row.runs("b").mean == pytest.approx(math.log(400), abs=0.05)


def test_a_driver_that_comes_back_is_known_too_and_a_new_one_begins_with_the_same_image() -> None:
    old = [image("a", 100)] * 20 + [image("b", 400)] * 20
    new = replace(image("a", 50), driver="2")
    row = pair(learned(*old, new))
    assert (row.driver, row.image, row.runs().weight) == ("2", "a", 2.0)
    assert row.runs().mean == pytest.approx((math.log(100) + math.log(50)) / 2)
    row = pair(learned(*old, new, image("b", 400)))
    assert (row.driver, row.image, row.runs().weight) == ("1", "b", 22.0)
    assert row.runs("a").weight == 2.0  # with the driver that ran last


def test_who_says_less_is_taken_for_the_last_that_agrees() -> None:
    mixed = [image("a"), replace(image("b"), driver="2"), replace(run(), driver="1")]
    row = pair(learned(*mixed))
    assert (row.driver, row.image, row.runs().weight) == ("1", "a", 2.0)
    row = pair(learned(*mixed, replace(run(), image="b")))
    assert (row.driver, row.image, row.runs().weight) == ("2", "b", 3.0)
    silent = pair(learned(image("a"), replace(run(), driver="2")))
    assert (silent.driver, silent.image, silent.runs().weight) == ("2", "a", 2.0)
    silent = pair(learned(image("a"), replace(run(), image="b")))
    assert (silent.driver, silent.image, silent.runs().weight) == ("1", "b", 2.0)


def test_runs_beside_others_are_forgotten_with_the_rest() -> None:
    runs = [replace(image("a"), colocated=("noisy",))] * 20
    assert pair(learned(*runs, replace(runs[0], image="b"))).beside.weight == 2.0


def test_so_many_images_are_remembered_and_the_one_that_ran_longest_ago_goes() -> None:
    names = [f"sha256:{x}" for x in range(MOST_VARIANTS)]
    row = pair(learned(*map(image, names), image(names[0]), image("new")))
    assert [x.image for x in row.variants] == ["new", names[0], *names[:1:-1]]
    assert len(row.variants) == MOST_VARIANTS


def test_an_image_that_only_failed_takes_nothing_from_the_others() -> None:
    failed = replace(image("b"), succeeded=False)
    first = pair(learned(failed, image("a"), failed))
    assert (first.image, first.runs().weight, first.failures) == ("b", 1.0, 2)
    assert [x.image for x in first.earlier] == ["a"]
    back = pair(learned(*[image("a")] * 20, failed, image("a")))
    assert (back.image, back.runs().weight) == ("a", 21.0)


def test_slowdown_is_measured_against_the_baseline_of_the_image() -> None:
    runs = [image("fast", 100), image("slow", 400)] * 20
    runs += [replace(x, runtime_s=x.runtime_s * 1.5, colocated=("noisy",)) for x in runs]
    assert learned(*runs).slowdown("train", "noisy") == pytest.approx(0.5, abs=0.06)


def test_the_first_word_on_the_driver_is_no_change_and_silence_neither() -> None:
    found = learned(run(), replace(run(), driver="1"), run(), replace(run(), driver="1"))
    assert (pair(found).runs().weight, pair(found).driver) == (4.0, "1")


def test_an_estimate_weighs_so_many_runs_and_follows_a_drift() -> None:
    runs = [run(100)] * 100 + [run(400)] * 40
    assert pair(learned(*runs, retention_observations=10)).runs().weight == 10.0
    assert pair(learned(*runs, retention_observations=10)).runs().mean > math.log(380)
    assert pair(learned(*runs)).runs().mean < math.log(200)


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
