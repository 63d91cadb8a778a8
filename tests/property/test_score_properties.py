"""The score is monotone in each of its terms, whatever was learned; assignments keep capacities."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.scoring.assignment import transport_plan, whole_assignment
from controller.scoring.estimate import NO_RUNS, Moments
from controller.scoring.exploration import DecisionType, ExplorationWindow
from controller.scoring.learned import MOST_VARIANTS, Learned, Observation
from controller.scoring.parameters import Parameters
from controller.scoring.score import (
    Candidate,
    Job,
    Scorer,
    certainty_of,
    fit_of,
    quiet_of,
    speed_of,
)

SECONDS = st.floats(1e-3, 1e9)
RATIOS = st.floats(0, 100)
TYPES = ("A100-80GB", "H100-80GB", "L4-24GB", "mine")
JOBS = ("a", "b", "c")
RUNS = st.lists(
    st.builds(
        Observation,
        job_type=st.sampled_from(JOBS),
        gpu_type=st.sampled_from(TYPES),
        runtime_s=SECONDS,
        colocated=st.lists(st.sampled_from(JOBS), max_size=3, unique=True).map(tuple),
        succeeded=st.booleans(),
        driver=st.sampled_from(["", "1", "2"]),
        image=st.sampled_from(["", "x", "y"]),
    ),
    max_size=25,
)
IMAGES = st.lists(st.sampled_from([f"sha256:{x}" for x in range(12)]), max_size=60)
CANDIDATES = st.lists(st.sampled_from(TYPES), min_size=1, unique=True)
COLOCATED = st.lists(st.sampled_from(JOBS), unique=True)
NEED = st.none() | st.floats(0.1, 24)


def learned(runs: list[Observation]) -> Learned:
    found = Learned(Parameters())
    for run in runs:
        found.observe(run)
    return found


def job(candidates: list[str], colocated: list[str], need: float | None) -> Job:
    return Job(
        job_type="a", candidates=tuple(candidates), colocated=tuple(colocated), gpu_mem_gb=need
    )


@given(better=SECONDS, worse=SECONDS, best=SECONDS)
def test_speed_falls_with_the_run_time(better: float, worse: float, best: float) -> None:
    better, worse = sorted((better, worse))
    assert 0 < speed_of(worse, best) <= speed_of(better, best) <= 1


@given(first=RATIOS, second=RATIOS)
def test_certainty_falls_with_the_spread_and_quiet_with_the_slowdown(
    first: float, second: float
) -> None:
    less, more = sorted((first, second))
    assert 0 < certainty_of(more, 0.5) <= certainty_of(less, 0.5) <= 1
    assert 0 < quiet_of(more, 0.5) <= quiet_of(less, 0.5) <= 1


@given(need=st.floats(0.1, 80), first=st.floats(80, 1000), second=st.floats(80, 1000))
def test_fit_falls_with_what_stays_unused(need: float, first: float, second: float) -> None:
    small, large = sorted((first, second))
    assert 0.75 <= fit_of(need, large) <= fit_of(need, small) <= 1
    assert fit_of(need / 2, small) <= fit_of(need, small)


@settings(max_examples=60)
@given(runs=RUNS, candidates=CANDIDATES, colocated=COLOCATED, need=NEED)
def test_whatever_was_learned_all_terms_are_finite_and_the_score_is_on_its_scale(
    runs: list[Observation], candidates: list[str], colocated: list[str], need: float | None
) -> None:
    found = Scorer(Parameters(), learned(runs)).score(job(candidates, colocated, need))
    for one in found.candidates:
        terms = [one.estimate.mu, one.estimate.sigma, one.cost, one.relative_cost, one.penalty]
        assert all(math.isfinite(x) for x in terms)
        assert one.estimate.mu > 0
        assert 0 < one.score <= 100
    assert {x.gpu_type for x in found.candidates} == set(candidates)
    assert set(found.avoid) <= set(colocated)


@settings(max_examples=60)
@given(runs=RUNS, candidates=CANDIDATES, colocated=COLOCATED, need=NEED)
def test_the_order_of_the_request_does_not_matter(
    runs: list[Observation], candidates: list[str], colocated: list[str], need: float | None
) -> None:
    known = learned(runs)
    one = Scorer(Parameters(), known).score(job(candidates, colocated, need))
    turned = Scorer(Parameters(), known).score(job(candidates[::-1], colocated, need))
    assert one == turned


@settings(max_examples=60)
@given(seconds=st.lists(SECONDS, min_size=1, max_size=20), factor=st.floats(1, 1000))
def test_longer_runs_on_a_type_give_it_no_better_score(seconds: list[float], factor: float) -> None:
    """With another type that stays the best, so that the scale stays."""
    fastest = [Observation(job_type="a", gpu_type="best", runtime_s=1e-4)] * 30

    def mine(times: float) -> Candidate:
        seen = [Observation(job_type="a", gpu_type="mine", runtime_s=x * times) for x in seconds]
        found = Scorer(Parameters(), learned([*fastest, *seen])).score(job(["mine"], [], None))
        return found.chosen

    assert mine(factor).score <= mine(1.0).score * (1 + 1e-9)


@settings(max_examples=60)
@given(runs=RUNS, colocated=COLOCATED)
def test_more_slowdown_gives_no_better_score(runs: list[Observation], colocated: list[str]) -> None:
    known = learned([*runs, Observation(job_type="a", gpu_type="mine", runtime_s=1.0)])
    quiet = Scorer(Parameters(), known).score(job(["mine"], [], None)).chosen
    loud = Scorer(Parameters(), known).score(job(["mine"], colocated, None)).chosen
    assert loud.score <= quiet.score
    assert loud.relative_cost >= quiet.relative_cost


# --- images


def ran(image: str, seconds: float) -> Observation:
    return Observation(job_type="a", gpu_type="mine", runtime_s=seconds, image=image)


@settings(max_examples=60)
@given(
    usual=st.dictionaries(st.sampled_from("xyz"), st.floats(10, 1e5), min_size=2, max_size=3),
    noise=st.lists(st.floats(0.9, 1.1), min_size=40, max_size=40),
)
def test_images_that_take_turns_are_each_known(usual: dict[str, float], noise: list[float]) -> None:
    runs = [ran(image, seconds * factor) for factor in noise for image, seconds in usual.items()]
    scorer = Scorer(Parameters(), learned(runs))
    for image, seconds in usual.items():
        found = scorer.estimate("a", "mine", image)
        # what another image had been known for is worth one run of forty
        assert found.mu == pytest.approx(seconds, rel=0.5)
    last = list(usual)[-1]
    assert scorer.estimate("a", "mine") == scorer.estimate("a", "mine", last)
    assert scorer.estimate("a", "mine", "unknown") == scorer.estimate("a", "mine", last)


@settings(max_examples=60)
@given(before=st.lists(SECONDS, min_size=1, max_size=30), after=SECONDS)
def test_a_new_image_forgets(before: list[float], after: float) -> None:
    row = learned([*(ran("x", s) for s in before), ran("y", after)]).of_job("a")["mine"]
    old = learned([ran("x", s) for s in before]).of_job("a")["mine"]
    assert row.runs().weight == 2.0
    assert row.runs().mean == pytest.approx((old.runs().mean + math.log(after)) / 2)
    assert row.runs("x") == old.runs()


@settings(max_examples=60)
@given(images=IMAGES, driver=st.sampled_from(["", "1"]))
def test_so_much_is_remembered_of_a_pair_whatever_runs(images: list[str], driver: str) -> None:
    found = Learned(Parameters(retention_observations=5))
    for image in images:
        found.observe(replace(ran(image, 100.0), driver=driver))
        row = found.of_job("a")["mine"]
        assert row.image == image
        assert len({x.image for x in row.variants}) == len(row.variants) <= MOST_VARIANTS
        assert all(x.alone.weight <= 5 for x in row.variants)
    recent = list(dict.fromkeys(reversed(images)))[:MOST_VARIANTS]
    rows = found.of_job("a").values()
    assert [x.image for row in rows for x in row.variants] == recent


@settings(max_examples=60)
@given(
    runs=st.lists(st.tuples(SECONDS, COLOCATED, st.booleans()), max_size=25),
    candidates=CANDIDATES,
)
def test_with_one_image_and_driver_nothing_depends_on_them(
    runs: list[tuple[float, list[str], bool]], candidates: list[str]
) -> None:
    plain = [
        Observation(
            job_type="a",
            gpu_type=TYPES[at % 3],
            runtime_s=seconds,
            colocated=tuple(beside),
            succeeded=succeeded,
        )
        for at, (seconds, beside, succeeded) in enumerate(runs)
    ]
    named = [replace(x, image="sha256:1", driver="570") for x in plain]
    asked = job(candidates, [], None)
    expected = Scorer(Parameters(), learned(plain)).score(asked)
    for image in ("", "sha256:1", "sha256:2"):
        found = Scorer(Parameters(), learned(named)).score(replace(asked, image=image))
        assert found == expected


@settings(max_examples=60)
@given(values=st.lists(st.floats(-20, 20), max_size=20), at=st.integers(0, 20))
def test_moments_of_parts_are_those_of_the_whole(values: list[float], at: int) -> None:
    def of(some: list[float]) -> Moments:
        found = NO_RUNS
        for value in some:
            found = found.with_one(value)
        return found

    whole, parts = of(values), of(values[at:]).with_all(of(values[:at]))
    assert parts.weight == whole.weight
    assert parts.mean == pytest.approx(whole.mean, abs=1e-9)
    assert parts.squares == pytest.approx(whole.squares, abs=1e-6)


@settings(max_examples=60)
@given(
    cap=st.floats(0, 1),
    size=st.integers(1, 30),
    wants=st.lists(st.booleans(), max_size=120),
)
def test_the_cap_holds_over_every_window(cap: float, size: int, wants: list[bool]) -> None:
    window, explored = ExplorationWindow(cap, size), []
    for wanted in wants:
        does = wanted and window.allows_one()
        window.note(DecisionType.EXPLORE if does else DecisionType.EXPLOIT)
        explored.append(does)
    for end in range(1, len(explored) + 1):
        last = explored[max(0, end - size) : end]
        assert sum(last) <= cap * len(last) + 1


@settings(max_examples=60)
@given(data=st.data(), jobs=st.integers(1, 6), types=st.integers(1, 4))
def test_an_assignment_keeps_capacities(data: st.DataObject, jobs: int, types: int) -> None:
    row = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=types, max_size=types)
    costs = data.draw(st.lists(row, min_size=jobs, max_size=jobs))
    room = data.draw(st.lists(st.integers(0, 6), min_size=types, max_size=types))
    room[0] += max(0, jobs - sum(room))
    plan = transport_plan(costs, room)
    assert [sum(part) for part in plan] == pytest.approx([1.0] * jobs)
    given_types = whole_assignment(plan, costs, room)
    assert all(count <= room[at] for at, count in Counter(given_types).items())
    assert len(given_types) == jobs
