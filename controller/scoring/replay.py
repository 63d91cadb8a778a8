"""Replays recorded runs: how much run time the learned score would have cost, and other choices.

A trace has one run for each job, on the GPU type that it got. What it would have taken elsewhere
is drawn from the runs of the same type of job there. So only job types that ran on two GPU types or
more are compared, and what a type of job takes on a type is the mean of its recorded runs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import fmean, pstdev
from typing import Final

from controller.scoring.learned import Learned, Observation
from controller.scoring.parameters import Parameters
from controller.scoring.score import Job, Scorer

ALIBABA_COLUMNS: Final = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
"""Of `pai_task_table` in Alibaba's cluster-trace-gpu-v2020, which has no header."""
_SUCCEEDED: Final = "Terminated"


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded run that succeeded."""

    job_type: str
    gpu_type: str
    seconds: float
    began: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one way of choosing costs over the whole trace."""

    name: str
    hours: float
    regret: tuple[float, ...]
    """Hours above the oracle after each job."""
    spread: float = 0.0
    """Standard deviation of `hours` over shuffles; 0 where nothing is drawn."""


@dataclass(frozen=True, slots=True)
class Report:
    """A replay."""

    jobs: int
    job_types: int
    gpu_types: int
    left_out: int
    """Runs of job types that ran on one GPU type only."""
    oracle_hours: float
    outcomes: tuple[Outcome, ...]


class NothingToCompareError(ValueError):
    """No type of job ran on two GPU types."""


def read_alibaba(rows: Iterable[Sequence[str]]) -> list[Run]:
    """Runs of `pai_task_table`, in the order in which they began; raises ValueError with the line.

    A type of job is a task's name with what it asks for: such tasks recur. Tasks that failed, have
    no GPU type or no times are left out.
    """
    runs = []
    for number, row in enumerate(rows, 1):
        if not row or tuple(row) == ALIBABA_COLUMNS:
            continue
        if len(row) != len(ALIBABA_COLUMNS):
            expected = f"{len(ALIBABA_COLUMNS)} columns ({', '.join(ALIBABA_COLUMNS)})"
            raise ValueError(f"line {number}: {len(row)} columns, expected {expected}")
        of = dict(zip(ALIBABA_COLUMNS, row, strict=True))
        if of["status"] != _SUCCEEDED or not (of["gpu_type"] and of["start_time"]):
            continue
        try:
            began, ended = float(of["start_time"]), float(of["end_time"])
        except ValueError:
            times = f"{of['start_time']!a} and {of['end_time']!a}"
            raise ValueError(f"line {number}: {times}, expected two times in seconds") from None
        if 0 < ended - began < float("inf"):
            asks = (of[x] or "-" for x in ("plan_cpu", "plan_mem", "plan_gpu"))
            job_type = " ".join((of["task_name"], *asks))
            runs.append(Run(job_type, of["gpu_type"], ended - began, began))
    return sorted(runs, key=lambda x: x.began)


Draw = Callable[[Sequence[str]], str]
"""Draws one of several GPU types."""


def replay(runs: Sequence[Run], parameters: Parameters, draws: Sequence[Draw]) -> Report:
    """Choose a GPU type for each run again; by chance once for each of `draws`.

    Raises NothingToCompareError.
    """
    times: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        times[run.job_type][run.gpu_type].append(run.seconds)
    compared = [run.job_type for run in runs if len(times[run.job_type]) > 1]
    if not compared:
        raise NothingToCompareError("no type of job ran on two GPU types")
    means = {
        job: {gpu: fmean(found) for gpu, found in by_gpu.items()} for job, by_gpu in times.items()
    }
    best = [min(means[job].values()) for job in compared]
    order = list(dict.fromkeys(run.gpu_type for run in runs))

    def outcome(name: str, choose: Callable[[str], str]) -> Outcome:
        total, regret = 0.0, []
        for job, least in zip(compared, best, strict=True):
            total += means[job][choose(job)] - least
            regret.append(total / 3600)
        return Outcome(name, (sum(best) + total) / 3600, tuple(regret))

    shuffles = [outcome("random", _random(means, draw)) for draw in draws]
    drawn = Outcome(
        "random",
        fmean(x.hours for x in shuffles),
        tuple(map(fmean, zip(*(x.regret for x in shuffles), strict=True))),
        pstdev(x.hours for x in shuffles),
    )
    return Report(
        jobs=len(compared),
        job_types=len(set(compared)),
        gpu_types=len({gpu for job in set(compared) for gpu in means[job]}),
        left_out=len(runs) - len(compared),
        oracle_hours=sum(best) / 3600,
        outcomes=(
            outcome("learned", _learner(times, parameters)),
            drawn,
            outcome("first-fit", lambda job: next(x for x in order if x in means[job])),
        ),
    )


def _random(means: Mapping[str, Mapping[str, float]], draw: Draw) -> Callable[[str], str]:
    return lambda job: draw(sorted(means[job]))


def _learner(
    times: Mapping[str, Mapping[str, Sequence[float]]], parameters: Parameters
) -> Callable[[str], str]:
    """Score, choose, and learn a recorded run of the chosen type."""
    learned = Learned(parameters)
    scorer = Scorer(parameters, learned)
    recorded = {
        (job, gpu): cycle(found) for job, by_gpu in times.items() for gpu, found in by_gpu.items()
    }

    def choose(job: str) -> str:
        chosen = scorer.score(Job(job_type=job, candidates=tuple(times[job]))).chosen.gpu_type
        seconds = next(recorded[job, chosen])
        learned.observe(Observation(job_type=job, gpu_type=chosen, runtime_s=seconds))
        return chosen

    return choose
