"""Whether memory grows: the slope of samples over time, and how sure it is. Pure.

Theil and Sen: the slope is the median of the slopes between all pairs of points, the interval is
Sen's. A step up or a spike moves them little, and nothing is assumed about the noise. Samples that
follow each other closely say the same, so a point is the median of a whole stretch of time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from statistics import NormalDist, median
from typing import Final

CONFIDENCE: Final = 0.95
STRETCHES: Final = 12
FEWEST: Final = 6
"""Points below which no interval is worth its name."""
WARM_UP: Final = 1 / 3
"""Share of a process's life in which it takes the memory that it needs."""
_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident memory at a moment."""

    at_s: float
    kib: float


@dataclass(frozen=True, slots=True)
class Slope:
    """KiB per minute, with the ends of its interval."""

    kib_per_min: float
    low: float
    high: float


class Trend(StrEnum):
    """What a slope says against a limit."""

    FLAT = "flat"
    """The whole interval is within the limit."""
    GROWS = "grows"
    """The whole interval is beyond it."""
    UNDECIDED = "undecided"
    """The limit lies within the interval, or there are too few samples for one."""
    SHORT = "short life"
    """The process did not live for long enough to be judged."""


def settled(samples: Sequence[Sample]) -> list[Sample]:
    """Those after the warm-up."""
    if not samples:
        return []
    first, last = samples[0].at_s, samples[-1].at_s
    return [x for x in samples if x.at_s >= first + WARM_UP * (last - first)]


def slope(samples: Sequence[Sample]) -> Slope | None:
    """Of samples in order of time; None where they are too few or of one moment."""
    points = medians(samples)
    if len(points) < FEWEST:
        return None
    slopes = sorted(
        (late.kib - early.kib) / (late.at_s - early.at_s) * _S
        for early, late in combinations(points, 2)
    )
    low, high = _ranks(len(points), len(slopes))
    return Slope(median(slopes), slopes[low], slopes[high])


def trend(found: Slope | None, limit: float) -> Trend:
    """`limit`: KiB per minute that are still flat; less memory is never a fault."""
    if found is None:
        return Trend.UNDECIDED
    if found.high <= limit:
        return Trend.FLAT
    return Trend.GROWS if found.low > limit else Trend.UNDECIDED


def medians(samples: Sequence[Sample]) -> list[Sample]:
    """Points of the slope: one for each stretch of time in which there are samples."""
    if not samples:
        return []
    first, last = samples[0].at_s, samples[-1].at_s
    length = (last - first) / STRETCHES
    if length <= 0:
        return []
    stretches: list[list[Sample]] = [[] for _ in range(STRETCHES)]
    for one in samples:
        stretches[min(int((one.at_s - first) / length), STRETCHES - 1)].append(one)
    return [
        Sample(median(x.at_s for x in each), median(x.kib for x in each))
        for each in stretches
        if each
    ]


def _ranks(points: int, slopes: int) -> tuple[int, int]:
    """Which of the sorted slopes are the ends of the interval (Sen 1968, without ties)."""
    deviation = math.sqrt(points * (points - 1) * (2 * points + 5) / 18)
    width = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * deviation
    low = max(0, math.floor((slopes - width) / 2) - 1)
    return low, slopes - 1 - low
