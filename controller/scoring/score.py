"""The score: terms of each candidate, a value from 0 to 100, and which GPU type is chosen.

    score = 100 · speed · certainty · quiet · fit

Each factor is between 0 and 1. `docs/learned-scores.md` describes them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from controller.scoring.estimate import (
    NO_RUNS,
    Estimate,
    Moments,
    Prior,
    from_logarithm,
    log_variance,
    posterior,
)
from controller.scoring.exploration import DecisionType, ExplorationWindow
from controller.scoring.gpu_types import memory_of, relative_slowness
from controller.scoring.learned import Learned
from controller.scoring.parameters import Parameters

_COMPARED: Final = 16
"""Jobs that tell how two types compare: more would say little more, and take longer."""
MOST_AVOIDED: Final = 16
"""Job types to keep away from: each may become a term of a pod's affinity."""
_WASTE: Final = 0.25
"""What a job of no size loses on a GPU that it leaves empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be placed."""

    job_type: str
    candidates: tuple[str, ...]
    """GPU types, at least one, each once."""
    colocated: tuple[str, ...] = ()
    """Job types that it may run beside, each once."""
    gpu_mem_gb: float | None = None
    """GiB that it needs of one GPU."""
    memory_gb: Mapping[str, float] = field(default_factory=dict)
    """GiB of one GPU by type, where the caller knows better than the names."""
    image: str = ""
    """What it will run, as runs are reported with it; empty where nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One GPU type that is large enough, with its terms."""

    gpu_type: str
    estimate: Estimate
    information_gain: float
    penalty: float
    """Mean slowdown by the colocated job types; 0.1 is 10 %."""
    cost: float
    """The formula on seconds, as the terms have it."""
    relative_cost: float
    """The same with run times in units of the shortest known one: what the choice goes by."""
    speed: float
    certainty: float
    quiet: float
    fit: float
    runs: float
    """How many runs it rests on; 0: none on this type."""

    @property
    def score(self) -> float:
        """From 0 to 100."""
        return 100 * self.speed * self.certainty * self.quiet * self.fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """All candidates in the order of preference, and the one that is chosen."""

    chosen: Candidate
    decision: DecisionType
    candidates: tuple[Candidate, ...]
    avoid: tuple[str, ...]
    """Colocated job types that slow the job, the worst first and not too many."""
    too_small: tuple[str, ...]


class NoneLargeEnoughError(ValueError):
    """No candidate has the memory; `largest` is the most that one has, in GiB."""

    def __init__(self, largest: float) -> None:
        super().__init__(f"no candidate has more than {largest:g}")
        self.largest = largest


# --- factors


def information_gain(sigma: float, tau_squared: float) -> float:
    """What one more run would tell, in nats."""
    return 0.5 * math.log1p(sigma * sigma / tau_squared)


def cost_of(estimate: Estimate, penalty: float, parameters: Parameters) -> float:
    """The cost: mu + lambda · sigma - beta · information gain + gamma · penalty."""
    return (
        estimate.mu
        + parameters.lambda_uncertainty * estimate.sigma
        - parameters.beta_exploration * information_gain(estimate.sigma, parameters.tau_squared)
        + parameters.gamma_interference * penalty
    )


def speed_of(mu: float, best: float) -> float:
    """Share of the shortest known run time in the expected one."""
    return min(1.0, best / mu)


def certainty_of(spread: float, prior_spread: float) -> float:
    """One half where nothing is known, 1 where the run time is."""
    return 1 / (1 + (spread / prior_spread) ** 2)


def quiet_of(penalty: float, gamma: float) -> float:
    """1 where nobody slows the job."""
    return 1 / (1 + gamma * penalty)


def fit_of(need: float | None, size: float | None) -> float:
    """1 for a GPU that the job fills, or where nobody knows; the job is not larger than it."""
    if need is None or size is None:
        return 1.0
    return 1 - _WASTE * (1 - need / size)


# --- the score


class Scorer:
    """Scores jobs by what has been learned; used from one event loop."""

    def __init__(self, parameters: Parameters, learned: Learned) -> None:
        self._parameters = parameters
        self._learned = learned
        self._window = ExplorationWindow(parameters.exploration_cap, parameters.exploration_window)
        self._variance = log_variance(parameters.prior_mean, parameters.prior_sigma)

    @property
    def exploration_ratio(self) -> float:
        """Share of explorations among the last decisions."""
        return self._window.ratio

    def score(self, job: Job, *, counts: bool = True) -> Scored:
        """Score and choose; raises NoneLargeEnoughError.

        A decision that does not count (a probe, a dry run) leaves the share of explorations alone.
        """
        large, too_small = self._by_size(job)
        pairs = self._learned.of_job(job.job_type)
        known = [name for name, row in pairs.items() if row.runs().weight]
        expected = {x: self.estimate(job.job_type, x, job.image) for x in {*known, *large}}
        best = min(expected[name].mu for name in known or large)
        slowdowns = self._slowdowns(job)
        found = sorted(
            (self._candidate(job, name, expected[name], best, slowdowns) for name in large),
            key=lambda x: (x.relative_cost, -x.score, x.gpu_type),
        )
        chosen, decision = self._choose(found)
        if counts:
            self._window.note(decision)
        threshold = self._parameters.avoid_threshold
        avoid = sorted((-slow, name) for name, slow in slowdowns.items() if slow > threshold)
        return Scored(
            chosen=chosen,
            decision=decision,
            candidates=tuple(found),
            avoid=tuple(name for _, name in avoid[:MOST_AVOIDED]),
            too_small=too_small,
        )

    def estimate(self, job_type: str, gpu_type: str, image: str = "") -> Estimate:
        """Expected run time of a job with a GPU to itself."""
        runs = self._runs(job_type, gpu_type, image)
        location = self._location(job_type, gpu_type, image)
        if location is None and not runs.weight:
            usual = math.log(self._parameters.prior_mean) - self._variance / 2
            return from_logarithm(usual, self._variance)
        return posterior(runs, Prior(self._variance, location))

    def _choose(self, found: Sequence[Candidate]) -> tuple[Candidate, DecisionType]:
        first = found[0]
        known = [x for x in found if x.runs]
        if not known:
            return first, DecisionType.FORCED
        if first.runs:
            return first, DecisionType.EXPLOIT
        if self._window.allows_one():
            return first, DecisionType.EXPLORE
        return known[0], DecisionType.EXPLOIT

    def _by_size(self, job: Job) -> tuple[list[str], tuple[str, ...]]:
        if job.gpu_mem_gb is None:
            return list(job.candidates), ()
        sizes = {name: memory_of(name, job.memory_gb) for name in job.candidates}
        small = {name for name, size in sizes.items() if size is not None and size < job.gpu_mem_gb}
        large = [name for name in job.candidates if name not in small]
        if not large:
            raise NoneLargeEnoughError(max(x for x in sizes.values() if x is not None))
        return large, tuple(sorted(small))

    def _slowdowns(self, job: Job) -> dict[str, float]:
        if not self._parameters.enable_interference:
            return {}
        return {x: self._learned.slowdown(job.job_type, x) for x in job.colocated}

    def _candidate(
        self,
        job: Job,
        name: str,
        estimate: Estimate,
        best: float,
        slowdowns: Mapping[str, float],
    ) -> Candidate:
        """One candidate; `best` is the shortest expected run time.

        Of the types that the job has run on, candidates or not; else of the candidates.
        """
        parameters = self._parameters
        penalty = sum(slowdowns.values()) / len(slowdowns) if slowdowns else 0.0
        unit = parameters.prior_mean / best
        scaled = Estimate(estimate.mu * unit, estimate.sigma * unit)
        fit = fit_of(job.gpu_mem_gb, memory_of(name, job.memory_gb))
        return Candidate(
            gpu_type=name,
            estimate=estimate,
            information_gain=information_gain(estimate.sigma, parameters.tau_squared),
            penalty=penalty,
            cost=cost_of(estimate, penalty, parameters),
            relative_cost=cost_of(scaled, penalty * scaled.mu, parameters)
            + parameters.prior_mean * (1 / fit - 1),
            speed=speed_of(estimate.mu, best),
            certainty=certainty_of(estimate.spread, parameters.prior_spread),
            quiet=quiet_of(penalty, parameters.gamma_interference),
            fit=fit,
            runs=self._runs(job.job_type, name, job.image).weight,
        )

    # --- what is expected

    def _runs(self, job_type: str, gpu_type: str, image: str) -> Moments:
        row = self._learned.of_job(job_type).get(gpu_type)
        return NO_RUNS if row is None else row.runs(image)

    def _location(self, job_type: str, gpu_type: str, image: str) -> float | None:
        """Where the job's runs on other types let its run time on this one lie."""
        total = weights = 0.0
        for name, row in self._learned.of_job(job_type).items():
            runs = row.runs(image)
            if name != gpu_type and runs.weight:
                weight = runs.weight / (runs.weight + 1)
                total += weight * (runs.mean + self._difference(name, gpu_type, job_type))
                weights += weight
        return total / weights if weights else None

    def _difference(self, known: str, wanted: str, besides: str) -> float:
        """How much longer jobs run on `wanted`, as a logarithm.

        By other jobs that ran on both, and as if one more had run as the models let expect.
        """
        here, there = self._learned.on_gpu(known), self._learned.on_gpu(wanted)
        few, many = sorted((here, there), key=len)
        both = (
            (here[name].runs(), there[name].runs(here[name].image))
            for name in few
            if name in many and name != besides
        )
        ran = ((x, y) for x, y in both if x.weight and y.weight)
        differences = [y.mean - x.mean for x, y in islice(ran, _COMPARED)]
        expected = math.log(relative_slowness(wanted, known))
        return (expected + math.fsum(differences)) / (1 + len(differences))
