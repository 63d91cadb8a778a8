"""What can be set about the score; the names are those of `SCHEDULER_*`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Weights of the score, what is believed at first, and bounds. All checked by the settings."""

    lambda_uncertainty: float = 0.3
    beta_exploration: float = 0.7
    gamma_interference: float = 0.5
    tau_squared: float = 0.15
    """Variance of the noise in the information gain; run times count in units of `prior_mean`."""
    exploration_cap: float = 0.25
    exploration_window: int = 200
    """Decisions over which the cap holds."""
    enable_interference: bool = True
    enable_sinkhorn: bool = False
    avoid_threshold: float = 0.1
    """Slowdown from which a type of job is avoided: 0.1 is 10 %."""
    retention_observations: int = 1000
    """Runs that an estimate weighs at most: older ones fade."""
    max_pairs: int = 10_000
    """Pairs of job type and GPU type, and pairs of job types, that are remembered at most."""
    prior_mean: float = 10.0
    prior_sigma: float = 5.0

    @property
    def prior_spread(self) -> float:
        """How uncertain a run time is of which nothing is known: sigma / mu."""
        return self.prior_sigma / self.prior_mean
