import math
from dataclasses import replace
from typing import Any

import pytest

from controller.scoring.exploration import DecisionType
from controller.scoring.learned import Learned, Observation
from controller.scoring.parameters import Parameters
from controller.scoring.score import Job, NoneLargeEnoughError, Scored, Scorer

A, B, H = "A100-80GB", "L4-24GB", "H100-80GB"


def run(
    seconds: float, gpu: str = A, job: str = "train", beside: tuple[str, ...] = ()
) -> Observation:
    return Observation(job_type=job, gpu_type=gpu, runtime_s=seconds, colocated=beside)


def scorer(*runs: Observation, **parameters: Any) -> Scorer:
    given = replace(Parameters(), **parameters)
    learned = Learned(given)
    for one in runs:
        learned.observe(one)
    return Scorer(given, learned)


def scored(found: Scorer, *candidates: str, job: str = "train", **more: Any) -> Scored:
    return found.score(Job(job_type=job, candidates=candidates, **more))


# --- the older service's vector


def test_an_unknown_pair_has_the_terms_of_the_older_service() -> None:
    chosen = scored(scorer(), A).chosen
    assert chosen.estimate.mu == pytest.approx(10)
    assert chosen.estimate.sigma == pytest.approx(5)
    assert chosen.information_gain == pytest.approx(2.56099, abs=5e-6)
    assert chosen.penalty == 0
    assert chosen.cost == pytest.approx(9.70731, abs=5e-6)
    assert chosen.relative_cost == pytest.approx(chosen.cost)


@pytest.mark.parametrize(
    ("parameter", "cost"),
    [
        ({"lambda_uncertainty": 0.0}, 10 - 0.7 * 2.56099),
        ({"beta_exploration": 0.0}, 11.5),
        ({"tau_squared": 25.0}, 11.5 - 0.7 * 0.5 * 0.693147),
        ({"prior_mean": 20.0}, 19.70731),
    ],
)
def test_each_parameter_moves_the_cost(parameter: dict[str, float], cost: float) -> None:
    assert scored(scorer(**parameter), A).chosen.cost == pytest.approx(cost, abs=5e-6)


def test_slowdown_is_in_the_cost() -> None:
    found = scorer(run(100), *[run(150, beside=("noisy",))] * 20)
    loud, still = scored(found, A, colocated=("noisy",)).chosen, scored(found, A).chosen
    assert loud.penalty > 0.4
    assert loud.cost == pytest.approx(still.cost + 0.5 * loud.penalty)
    assert loud.relative_cost > still.relative_cost + 2


# --- the scale


def test_a_job_that_nobody_knows_is_in_the_middle() -> None:
    assert scored(scorer(), A, B, H).chosen.score == pytest.approx(50)
    assert scored(scorer(), A).chosen.score == pytest.approx(50)


def test_a_known_job_on_its_best_type_is_at_the_top() -> None:
    assert scored(scorer(*[run(3600)] * 20), A).chosen.score > 95


def test_the_best_type_known_need_not_be_a_candidate() -> None:
    found = scorer(*[run(1000)] * 20, *[run(4000, B)] * 20)
    assert scored(found, B).chosen.score == pytest.approx(25, abs=2)
    assert scored(found, A).chosen.score > 95


def test_the_scale_does_not_depend_on_how_long_jobs_run() -> None:
    for seconds in (1.0, 100.0, 1e6):
        found = scorer(*[run(seconds)] * 8, *[run(2 * seconds, B)] * 8)
        assert scored(found, B).chosen.score == pytest.approx(46, abs=2)


def test_values_between_top_and_bottom_occur() -> None:
    known = [*[run(100)] * 9, *[run(100 * 1.1**x, f"gpu-{x}") for x in range(20) for _ in range(9)]]
    found = scorer(*known)
    scores = [round(scored(found, f"gpu-{x}").chosen.score) for x in range(20)]
    assert len(set(scores)) > 15
    assert scores == sorted(scores, reverse=True)


# --- memory


def test_types_that_are_too_small_are_left_out() -> None:
    found = scored(scorer(*[run(10, B)] * 9), A, B, gpu_mem_gb=40.0)
    assert [x.gpu_type for x in found.candidates] == [A]
    assert found.too_small == (B,)


def test_a_job_that_fills_the_memory_fits() -> None:
    assert scored(scorer(), A, gpu_mem_gb=80.0).chosen.fit == 1.0
    assert scored(scorer(), A, gpu_mem_gb=20.0).chosen.fit == pytest.approx(1 - 0.25 * 0.75)


def test_the_smaller_of_two_equal_types_is_chosen() -> None:
    assert scored(scorer(), A, B, gpu_mem_gb=20.0).chosen.gpu_type == B


def test_a_type_of_unknown_size_is_not_left_out() -> None:
    assert scored(scorer(), "mine", B, gpu_mem_gb=40.0).chosen.gpu_type == "mine"


def test_sizes_that_the_caller_knows_count() -> None:
    with pytest.raises(NoneLargeEnoughError) as error:
        scored(scorer(), "mine", B, gpu_mem_gb=40.0, memory_gb={"mine": 39.0})
    assert error.value.largest == 39.0


# --- the choice


def test_the_faster_type_is_chosen() -> None:
    found = scored(scorer(*[run(100)] * 5, *[run(50, B)] * 5), A, B)
    assert (found.chosen.gpu_type, found.decision) == (B, DecisionType.EXPLOIT)


def test_equal_types_are_chosen_by_name_in_any_order() -> None:
    assert scored(scorer(), "b", "a", "c").chosen.gpu_type == "a"
    assert scored(scorer(), "c", "b", "a").chosen.gpu_type == "a"


def test_a_promising_type_is_explored_until_the_cap() -> None:
    found = scorer(*[run(100)] * 9, exploration_cap=0.25, exploration_window=40)
    decisions = [scored(found, A, H) for _ in range(40)]
    explored = [x for x in decisions if x.decision is DecisionType.EXPLORE]
    assert len(explored) == 11
    assert {x.chosen.gpu_type for x in explored} == {H}
    assert {x.chosen.gpu_type for x in decisions if x not in explored} == {A}
    assert found.exploration_ratio == pytest.approx(11 / 40)


def test_a_job_without_any_runs_is_no_exploration() -> None:
    found = scorer()
    decisions = {scored(found, A, B, job=f"job-{x}").decision for x in range(100)}
    assert (decisions, found.exploration_ratio) == ({DecisionType.FORCED}, 0.0)


def test_a_dry_run_counts_for_nothing() -> None:
    found = scorer(*[run(100)] * 9, exploration_window=4)
    job = Job(job_type="train", candidates=(A, H))
    assert found.score(job, counts=False).decision is DecisionType.EXPLORE
    assert found.exploration_ratio == 0.0


def test_a_type_that_is_much_slower_for_others_is_not_explored() -> None:
    others = [run(100 * factor, gpu, "other") for gpu, factor in ((A, 1), (B, 5)) for _ in range(9)]
    found = scored(scorer(*others, *[run(60)] * 9), A, B)
    assert found.decision is DecisionType.EXPLOIT
    slow = next(x for x in found.candidates if x.gpu_type == B)
    assert slow.estimate.mu > 150


def test_a_jobs_own_runs_do_not_tell_how_types_compare() -> None:
    found = scored(scorer(run(100, "x"), run(300, "y")), "y").chosen
    variance = (math.log1p(0.25) + math.log(3) ** 2 / 4) / 1.5 / 2
    assert found.estimate.mu == pytest.approx(math.sqrt(100 * 300) * math.exp(variance / 2))


def test_models_tell_what_no_job_has_shown() -> None:
    found = scored(scorer(*[run(100)] * 9), A, B, H).candidates
    by_type = {x.gpu_type: x.estimate.mu for x in found}
    assert by_type[H] < by_type[A] < by_type[B]


# --- who is beside


def test_whoever_slows_the_job_is_avoided_the_worst_first() -> None:
    slow = [run(100 + 10 * x, beside=(f"job-{x}",)) for x in (5, 2, 9) for _ in range(30)]
    found = scorer(run(100), *slow, *[run(105, beside=("mild",))] * 30)
    given = ("mild", "job-2", "job-5", "job-9", "unknown")
    assert scored(found, A, colocated=given).avoid == ("job-9", "job-5", "job-2")
    assert scored(found, A, colocated=("mild",)).avoid == ()


def test_the_worst_sixteen_are_enough() -> None:
    names = [f"job-{x:02}" for x in range(20)]
    slow = [run(150 + 10 * at, beside=(x,)) for at, x in enumerate(names) for _ in range(5)]
    found = scored(scorer(run(100), *slow), A, colocated=tuple(names)).avoid
    assert list(found) == names[:3:-1]


def test_the_threshold_is_no_slowdown_to_avoid() -> None:
    found = scorer(run(100), *[run(150, beside=("noisy",))] * 9)
    exact = scored(found, A, colocated=("noisy",)).chosen.penalty
    again = scorer(run(100), *[run(150, beside=("noisy",))] * 9, avoid_threshold=exact)
    assert scored(again, A, colocated=("noisy",)).avoid == ()


def test_interference_can_be_switched_off() -> None:
    found = scorer(run(100), *[run(150, beside=("noisy",))] * 9, enable_interference=False)
    given = scored(found, A, colocated=("noisy",))
    assert (given.avoid, given.chosen.penalty, given.chosen.quiet) == ((), 0.0, 1.0)


# --- images


def of(image: str, seconds: float, gpu: str, job: str = "train") -> list[Observation]:
    return [replace(run(seconds, gpu, job), image=image)] * 20


def test_the_image_tells_which_runs_count() -> None:
    """Without one that is known, those with the image that ran last."""
    runs = [*of("x", 400, A), *of("x", 100, B), *of("y", 100, A), *of("y", 400, B)]
    found = scorer(*runs)
    chosen = scored(found, A, B, image="x").chosen
    assert (chosen.gpu_type, chosen.runs) == (B, 20.0)
    assert chosen.estimate.mu == pytest.approx(100, rel=0.2)
    for image in ("y", "", "unknown"):
        chosen = scored(found, A, B, image=image).chosen
        assert (chosen.gpu_type, chosen.runs) == (A, 21.0)
        assert chosen.estimate.mu == pytest.approx(100, rel=0.2)


def test_on_a_new_type_runs_with_the_same_image_tell() -> None:
    found = scorer(*of("x", 100, A), *of("y", 10_000, A))
    assert found.estimate("train", H, "x").mu < 200
    assert found.estimate("train", H, "y").mu > 1000
    assert found.estimate("train", H) == found.estimate("train", H, "y")


def test_types_are_compared_by_runs_with_one_image() -> None:
    other = [*of("x", 100, A, "other"), *of("x", 100, B, "other"), *of("y", 10_000, B, "other")]
    assert scorer(*other, *of("z", 100, A)).estimate("train", B).mu < 500
