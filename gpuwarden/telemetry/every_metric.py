"""The list of all metrics of the product, and which process exports which. Pure."""

from gpuwarden.telemetry import names, score_names
from gpuwarden.telemetry.names import Metric, Process

METRICS: tuple[Metric, ...] = tuple(
    value
    for module in (names, score_names)
    for value in vars(module).values()
    if isinstance(value, Metric)
)
"""In the order in which the modules have them."""

OF_SCORE_TOO: tuple[Metric, ...] = (
    names.BUILD_INFO,
    names.CONNECTIONS,
    names.CONNECTIONS_CUT,
    names.REQUESTS_MALFORMED,
    names.LOG_LINES_WITHHELD,
    names.READY,
)
"""Metrics of the other processes that the scoring service exports too."""


def is_of(metric: Metric, process: Process) -> bool:
    """Whether a process exports a metric."""
    if process is Process.SCORE:
        return metric.process is process or metric in OF_SCORE_TOO
    return metric.process in {process, Process.BOTH}
