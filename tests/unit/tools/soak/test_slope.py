"""Slopes of made-up memory: growth is found, and noise, steps and warm-up are no growth."""

import random
from collections.abc import Callable, Sequence

import pytest

from tests.soak.slope import Sample, Slope, Trend, settled, slope, trend

MINUTES = 30
KIB = 100_000.0


def samples(kib: Callable[[float], float], *, noise: float = 0.0) -> list[Sample]:
    """One each five seconds; `kib` of the minute."""
    draw = random.Random(1)  # noqa: S311 - repeatable on purpose
    return [
        Sample(s, KIB + kib(s / 60) + draw.uniform(-noise, noise))
        for s in range(0, MINUTES * 60 + 1, 5)
    ]


def of(found: Sequence[Sample]) -> Slope:
    known = slope(found)
    assert known is not None
    return known


def test_a_straight_line_has_its_slope_and_no_doubt() -> None:
    found = of(samples(lambda minute: 12 * minute))
    assert found.kib_per_min == pytest.approx(12)
    assert [found.low, found.high] == pytest.approx([12, 12])


def test_a_leak_below_noise_is_found() -> None:
    found = of(samples(lambda minute: 50 * minute, noise=400))
    assert found.low < 50 < found.high
    assert found.low > 35


def test_noise_alone_is_flat_and_the_interval_has_both_signs() -> None:
    found = of(samples(lambda _minute: 0, noise=400))
    assert found.low < 0 < found.high
    assert trend(found, 50) is Trend.FLAT


def test_one_spike_is_no_growth() -> None:
    found = of(samples(lambda minute: 50_000 if 20 < minute < 22 else 0))
    assert found == Slope(0, 0, 0)


def test_the_warm_up_does_not_count() -> None:
    warm = samples(lambda minute: min(minute, 10) * 3000)
    assert of(warm).kib_per_min > 100
    assert of(settled(warm)).kib_per_min == 0
    assert settled(warm)[0].at_s == 600
    assert settled([]) == []


@pytest.mark.parametrize(
    "few",
    [[], [Sample(0, 1)], [Sample(3, 1), Sample(3, 2)], [Sample(s, s) for s in range(5)]],
    ids=["none", "one", "one moment", "five"],
)
def test_too_few_samples_have_no_slope(few: list[Sample]) -> None:
    assert slope(few) is None
    assert trend(slope(few), 1e9) is Trend.UNDECIDED


def test_six_points_are_enough_and_their_interval_is_wide() -> None:
    found = slope([Sample(60 * n, kib) for n, kib in enumerate([0, 3, 1, 5, 4, 8])])
    assert found is not None
    assert found.kib_per_min == pytest.approx(1.5)
    assert (found.low, found.high) == (-1, 4)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-9, 9.99, Trend.FLAT),
        (-9, 10, Trend.FLAT),
        (10, 11, Trend.UNDECIDED),
        (9, 11, Trend.UNDECIDED),
        (10.01, 11, Trend.GROWS),
        (-900, -800, Trend.FLAT),
    ],
)
def test_a_trend_is_the_whole_interval_against_the_limit(
    low: float, high: float, expected: Trend
) -> None:
    assert trend(Slope((low + high) / 2, low, high), 10) is expected
