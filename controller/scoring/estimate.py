"""What runs tell about the run time of a job: sums that add up, and the posterior from them.

The logarithm of a run time is taken as normal, with unknown mean and variance. The prior is
normal-inverse-gamma, which is conjugate: count, mean and squared deviations of the runs are all
that has to be remembered.
"""

import math
from dataclasses import dataclass

_SHAPE = 2.0
"""Of the prior for the variance: the smallest whole number with which its mean is finite."""
_MOST_VARIANCE = 4.0
"""Keeps expected run times finite and sane when runs contradict each other by orders."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of logarithms of run times."""

    weight: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    def with_one(self, value: float, weight: float = 1.0) -> "Moments":
        """One more."""
        return self.with_all(Moments(weight, value))

    def with_all(self, other: "Moments") -> "Moments":
        """Both together; the order does not matter."""
        weight = self.weight + other.weight
        if not weight:
            return self
        apart = other.mean - self.mean
        share = other.weight / weight
        return Moments(
            weight,
            self.mean + apart * share,
            self.squares + other.squares + apart * apart * self.weight * share,
        )

    def at_most(self, weight: float) -> "Moments":
        """The same as if it came from `weight` runs, where it came from more."""
        if self.weight <= weight:
            return self
        return Moments(weight, self.mean, self.squares * weight / self.weight)


NO_RUNS = Moments()


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed before the first run: the variance, and perhaps where the mean lies."""

    variance: float
    """Of the logarithm; both of a single run and of the mean."""
    location: float | None = None
    """From runs of the same job elsewhere, worth one run; None: this job's runs alone tell."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A run time in seconds: expected, and how uncertain that expectation is."""

    mu: float
    sigma: float

    @property
    def spread(self) -> float:
        """Share of the uncertainty in the expectation."""
        return self.sigma / self.mu


def log_variance(mean: float, sigma: float) -> float:
    """Variance of the logarithm of what has this mean and standard deviation."""
    return math.log1p((sigma / mean) ** 2)


def from_logarithm(location: float, variance: float) -> Estimate:
    """Mean and standard deviation of what is log-normal."""
    mu = math.exp(location + variance / 2)
    return Estimate(mu, mu * math.sqrt(math.expm1(variance)))


def posterior(runs: Moments, prior: Prior) -> Estimate:
    """The estimate after `runs`; there must be some, or a location in the prior."""
    base = 0.0 if prior.location is None else 1.0
    before = runs.mean if prior.location is None else prior.location
    weight = base + runs.weight
    location = (base * before + runs.weight * runs.mean) / weight
    shape = _SHAPE + (max(0.0, runs.weight - 1.0 + base)) / 2
    scale = (
        prior.variance * (_SHAPE - 1)
        + runs.squares / 2
        + base * runs.weight / weight * (runs.mean - before) ** 2 / 2
    )
    return from_logarithm(location, min(_MOST_VARIANCE, scale / ((shape - 1) * weight)))
