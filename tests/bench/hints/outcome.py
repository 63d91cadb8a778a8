"""What simulations come to: figures of one, and how those of several seeds compare."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev
from typing import Final

from tests.bench.hints.simulation import Ended
from tests.bench.hints.workload import Workload

SEEDS: Final = tuple(range(1, 11))
_STUDENT: Final = 2.262
"""97.5 % quantile of Student's t with 9 degrees of freedom: one less than there are seeds."""
BATCH: Final = 50
"""Jobs of one point of the learning curve."""


class Arm(StrEnum):
    """Who chooses."""

    WITHOUT = "without hints"
    WITH = "with hints"
    ORACLE = "oracle"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One simulation."""

    makespan_h: float
    """From time 0 to the end of the last job."""
    completion_min: float
    """Mean time from a job's arrival to its end."""
    waiting_min: float
    """The part of it before it began."""
    interference_h: float
    """What all jobs together took longer than each with the node to itself."""
    on_best: float
    """Percent of the jobs on the GPU type on which they are fastest."""
    curve: tuple[float, ...]
    """Mean run time of each `BATCH` of jobs over that on the best type alone."""


def outcome(truth: Workload, ended: Iterable[Ended]) -> Outcome:
    """Sum up."""
    jobs = sorted(ended, key=lambda x: x.job.number)
    relative = [(x.ended - x.began) / truth.alone(x.job, truth.best(x.job.type)) for x in jobs]
    return Outcome(
        makespan_h=max(x.ended for x in jobs) / 3600,
        completion_min=fmean(x.ended - x.job.arrives for x in jobs) / 60,
        waiting_min=fmean(x.began - x.job.arrives for x in jobs) / 60,
        interference_h=math.fsum(x.ended - x.began - x.alone for x in jobs) / 3600,
        on_best=100 * fmean(x.gpu_type == truth.best(x.job.type) for x in jobs),
        curve=tuple(fmean(relative[begin : begin + BATCH]) for begin in range(0, len(jobs), BATCH)),
    )


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over the seeds, and how far the 95 % confidence interval goes to each side."""

    mean: float
    reach: float


def interval(values: Sequence[float]) -> Interval:
    """Of one value for each of `SEEDS`; raises ValueError for another number."""
    if len(values) != len(SEEDS):
        raise ValueError(f"{len(values)} values, expected {len(SEEDS)}")
    return Interval(fmean(values), _STUDENT * stdev(values) / math.sqrt(len(values)))


@dataclass(frozen=True, slots=True)
class Load:
    """Simulations of one load: those of each arm in the order of the seeds."""

    name: str
    load: float
    outcomes: Mapping[Arm, Sequence[Outcome]]
