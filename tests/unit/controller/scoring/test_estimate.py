import math
from statistics import fmean

import pytest

from controller.scoring.estimate import (
    NO_RUNS,
    Moments,
    Prior,
    from_logarithm,
    log_variance,
    posterior,
)

VARIANCE = log_variance(10, 5)


def of(*values: float) -> Moments:
    found = NO_RUNS
    for value in values:
        found = found.with_one(value)
    return found


def test_the_prior_has_the_mean_and_sigma_that_were_set() -> None:
    found = from_logarithm(math.log(10) - VARIANCE / 2, VARIANCE)
    assert (found.mu, found.sigma) == pytest.approx((10.0, 5.0))
    assert found.spread == pytest.approx(0.5)


def test_moments_are_those_of_the_values() -> None:
    values = [1.0, 2.0, 4.0, 9.0]
    found = of(*values)
    assert (found.weight, found.mean) == (4.0, fmean(values))
    assert found.squares == pytest.approx(sum((x - 4) ** 2 for x in values))


def test_moments_of_parts_add_up() -> None:
    both = of(1.0, 5.0).with_all(of(2.0, 3.0, 8.0))
    whole = of(1.0, 5.0, 2.0, 3.0, 8.0)
    assert (both.weight, both.mean, both.squares) == pytest.approx(
        (whole.weight, whole.mean, whole.squares)
    )
    assert NO_RUNS.with_all(NO_RUNS) == NO_RUNS


def test_fading_keeps_mean_and_variance() -> None:
    found = of(1.0, 3.0, 5.0, 7.0).at_most(2.0)
    assert (found.weight, found.mean, found.squares) == (2.0, 4.0, 10.0)
    assert of(1.0, 3.0).at_most(2.0) == of(1.0, 3.0)


def test_one_run_gives_its_time_and_the_spread_of_the_prior() -> None:
    found = posterior(of(math.log(3600)), Prior(VARIANCE))
    assert found.mu == pytest.approx(3600 * math.exp(VARIANCE / 2))
    assert found.spread == pytest.approx(0.5)


def test_equal_runs_make_it_certain() -> None:
    spreads = [posterior(of(*[5.0] * count), Prior(VARIANCE)).spread for count in (1, 2, 5, 50)]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] < 0.02


def test_runs_that_differ_leave_it_less_certain() -> None:
    alike, unlike = of(5.0, 5.1, 5.2, 5.1), of(4.0, 6.0, 5.5, 4.5)
    assert posterior(unlike, Prior(VARIANCE)).spread > posterior(alike, Prior(VARIANCE)).spread


def test_runs_elsewhere_are_worth_one_run() -> None:
    found = posterior(of(4.0), Prior(VARIANCE, 2.0))
    # The mean of both; the variance of two runs that are 2 apart: (v + 2² / 4) / 1.5 / 2.
    variance = (VARIANCE + 1.0) / 1.5 / 2
    assert found.mu == pytest.approx(math.exp(3.0 + variance / 2))
    assert found.spread == pytest.approx(math.sqrt(math.expm1(variance)))


def test_runs_elsewhere_alone_tell_the_time_of_a_type_without_runs() -> None:
    found = posterior(NO_RUNS, Prior(VARIANCE, math.log(100)))
    assert found.mu == pytest.approx(100 * math.exp(VARIANCE / 2))
    assert found.spread == pytest.approx(0.5)


def test_runs_that_contradict_by_orders_leave_it_finite() -> None:
    found = posterior(of(-20.0, 20.0), Prior(VARIANCE, -20.0))
    assert math.isfinite(found.sigma)
    assert found.spread == pytest.approx(math.sqrt(math.expm1(4.0)))
