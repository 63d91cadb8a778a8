from collections.abc import Callable, Sequence

import pytest

from controller.scoring.parameters import Parameters
from controller.scoring.replay import (
    ALIBABA_COLUMNS,
    NothingToCompareError,
    Run,
    read_alibaba,
    replay,
)


def row(**change: str) -> list[str]:
    usual = {
        "job_name": "j1",
        "task_name": "worker",
        "inst_num": "1.0",
        "status": "Terminated",
        "start_time": "100.0",
        "end_time": "160.0",
        "plan_cpu": "600.0",
        "plan_mem": "29.3",
        "plan_gpu": "50.0",
        "gpu_type": "T4",
    }
    return list({**usual, **change}.values())


# --- the format


def test_a_task_is_a_run() -> None:
    assert read_alibaba([row()]) == [Run("worker 600.0 29.3 50.0", "T4", 60.0, 100.0)]


@pytest.mark.parametrize(
    "change",
    [
        {"status": "Failed"},
        {"status": "Running"},
        {"gpu_type": ""},
        {"start_time": ""},
        {"end_time": "100.0"},
        {"end_time": "99.0"},
        {"end_time": "nan"},
        {"end_time": "inf"},
    ],
)
def test_tasks_that_tell_no_run_time_are_left_out(change: dict[str, str]) -> None:
    assert read_alibaba([row(**change), []]) == []


def test_a_header_is_no_task_and_runs_are_in_the_order_of_their_beginning() -> None:
    found = read_alibaba([ALIBABA_COLUMNS, row(start_time="150", plan_gpu=""), row()])
    assert [(x.began, x.job_type[-1]) for x in found] == [(100.0, "0"), (150.0, "-")]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([row(), row()[:-1]], "line 2: 9 columns, expected 10"),
        ([row(end_time="soon")], "line 1: '100.0' and 'soon', expected two times"),
    ],
)
def test_another_format_names_the_line(rows: list[list[str]], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        read_alibaba(rows)


# --- the replay


def always(at: int) -> Callable[[Sequence[str]], str]:
    return lambda names: names[at]


def runs(slow: float, count: int = 40) -> list[Run]:
    """Of a job that takes one hour on V100 and `slow` hours on T4, by turns, T4 first."""
    return [
        Run("train", gpu, 3600 * hours, at)
        for at in range(count)
        for gpu, hours in (("T4", slow), ("V100", 1.0))
    ]


def test_hours_and_regret_are_those_of_the_means() -> None:
    report = replay(runs(3.0), Parameters(), [always(0), always(1)])
    assert (report.jobs, report.job_types, report.gpu_types, report.left_out) == (80, 1, 2, 0)
    assert report.oracle_hours == pytest.approx(80)
    learned, chance, first = report.outcomes
    assert (learned.name, chance.name, first.name) == ("learned", "random", "first-fit")
    assert first.hours == pytest.approx(240)
    assert first.regret[:2] == pytest.approx((2.0, 4.0))
    assert (chance.hours, chance.spread) == pytest.approx((160, 80))
    assert chance.regret[-1] == pytest.approx(80)


def test_the_score_learns_what_is_fast_and_stays_there() -> None:
    learned = replay(runs(3.0), Parameters(), [always(0)]).outcomes[0]
    assert learned.hours < 90
    assert learned.regret[-1] == learned.regret[20]


def test_types_that_take_as_long_give_no_regret() -> None:
    assert [x.hours for x in replay(runs(1.0), Parameters(), [always(0)]).outcomes] == (
        pytest.approx([80, 80, 80])
    )


def test_jobs_that_ran_on_one_type_are_left_out() -> None:
    alone = [Run("alone", "A10", 1.0, 0.0)] * 3
    report = replay([*alone, *runs(3.0, 2)], Parameters(), [always(0)])
    assert (report.jobs, report.left_out, report.gpu_types) == (4, 3, 2)
    with pytest.raises(NothingToCompareError, match="no type of job ran on two GPU types"):
        replay(alone, Parameters(), [always(0)])
