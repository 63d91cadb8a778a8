"""A made-up workload: types of jobs, how long each really runs where, and who slows whom.

A seed draws all of it. Neither the scorer nor the scheduler is told any of it but what a pod says.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from controller.placement.gpu_type import type_name

GPUS_OF_A_NODE: Final = 4
NODES_OF_A_TYPE: Final = 4


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU as it is sold."""

    product: str
    memory_mib: int
    bandwidth: float
    """GB/s of its memory."""

    @property
    def gpu_type(self) -> str:
        """As scores and hints name it."""
        return type_name(self.product)


MODELS: Final = (
    GpuModel("NVIDIA H100 80GB HBM3", 81_559, 3350),
    GpuModel("NVIDIA A100-SXM4-80GB", 81_920, 1940),
    GpuModel("NVIDIA L40S", 46_068, 864),
    GpuModel("NVIDIA L4", 23_034, 300),
)
GPUS: Final = len(MODELS) * NODES_OF_A_TYPE * GPUS_OF_A_NODE


@dataclass(frozen=True, slots=True)
class JobType:
    """What its pods ask for, and how long they take about."""

    name: str
    seconds: float
    memory_gib: int
    gpus: int = 1

    def fits(self, model: GpuModel) -> bool:
        """Whether the memory is enough."""
        return model.memory_mib >= 1024 * self.memory_gib


JOB_TYPES: Final = (
    JobType("train-large", 7200, 70, 2),
    JobType("fine-tune", 3600, 40),
    JobType("simulate", 2700, 30),
    JobType("train-small", 2400, 16),
    JobType("render", 1800, 10),
    JobType("infer", 1200, 12),
    JobType("embed", 900, 20),
    JobType("etl", 600, 6),
)

# --- how the truth is drawn

_MOST_EXPONENT: Final = 0.8
"""A job's run time goes with the memory bandwidth to a power from 0 to this; the scorer believes in
one half for each of them."""
_OWN: Final = 0.3
"""Standard deviation of what a job has against a GPU besides, as a logarithm."""
_LUCK: Final = 0.2
"""Of one run, likewise."""
_SLOWS: Final = 0.3
"""Probability that one type of job slows another notably."""
_NOTABLE: Final = (0.1, 0.6)
_SLIGHT: Final = (0.0, 0.03)

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Job:
    """One of many."""

    number: int
    type: JobType
    arrives: float
    luck: float
    """Factor of its run time, wherever it runs."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The truth."""

    jobs: tuple[Job, ...]
    """As they arrive."""
    seconds: Mapping[Pair, float]
    """Usual run time of a job type on a GPU type that it fits, with the node to itself."""
    slowdown: Mapping[Pair, float]
    """Of the first job type by each job of the second on its node; 0.1 is 10 %."""

    def alone(self, job: Job, gpu_type: str) -> float:
        """Run time of a job with the node to itself."""
        return self.seconds[job.type.name, gpu_type] * job.luck

    def best(self, job_type: JobType) -> str:
        """The GPU type on which it is fastest."""
        fitting = [x.gpu_type for x in MODELS if job_type.fits(x)]
        return min(fitting, key=lambda x: self.seconds[job_type.name, x])


def workload(seed: int, *, jobs: int, load: float) -> Workload:
    """Draw one. `load`: work that arrives over what the fleet does, spread evenly over its types.

    Run times and slowdowns of a seed are the same for every load.
    """
    draw = random.Random(seed)  # noqa: S311 -- the same draws every time
    seconds = {
        (job.name, model.gpu_type): job.seconds * factor
        for job in JOB_TYPES
        for model, factor in _slowness(draw).items()
        if job.fits(model)
    }
    names = [x.name for x in JOB_TYPES]
    slowdown = {
        (slowed, other): draw.uniform(*(_NOTABLE if draw.random() < _SLOWS else _SLIGHT))
        for slowed in names
        for other in names
    }
    between = _mean_work(seconds) / (load * GPUS)
    return Workload(_arriving(draw, jobs, between), seconds, slowdown)


def _slowness(draw: random.Random) -> dict[GpuModel, float]:
    """Of one job type, on every model."""
    exponent = draw.uniform(0, _MOST_EXPONENT)
    return {
        model: (MODELS[0].bandwidth / model.bandwidth) ** exponent * draw.lognormvariate(0, _OWN)
        for model in MODELS
    }


def _mean_work(seconds: Mapping[Pair, float]) -> float:
    """Of a job, in seconds of a GPU, on any type that it fits."""
    total = 0.0
    for job in JOB_TYPES:
        here = [found for (name, _), found in seconds.items() if name == job.name]
        total += job.gpus * sum(here) / len(here)
    return total / len(JOB_TYPES) * math.exp(_LUCK**2 / 2)


def _arriving(draw: random.Random, jobs: int, between: float) -> tuple[Job, ...]:
    """A Poisson process of job types that are equally frequent."""
    found, now = [], 0.0
    for number in range(jobs):
        now += draw.expovariate(1 / between)
        kind = draw.choice(JOB_TYPES)
        found.append(Job(number, kind, now, draw.lognormvariate(0, _LUCK)))
    return tuple(found)
