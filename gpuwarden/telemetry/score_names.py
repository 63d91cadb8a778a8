"""The metrics that `gpuwarden-score` alone has, each once; docs are made from here. Pure."""

from typing import Final

from gpuwarden.telemetry.names import FAST_BUCKETS, PREFIX, Metric, MetricType, Process

_S: Final = Process.SCORE


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}_total", MetricType.COUNTER, _S, text, labels)


def _gauge(name: str, text: str) -> Metric:
    return Metric(PREFIX + name, MetricType.GAUGE, _S, text)


SCORE_DECISIONS = Metric(
    "scheduler_decisions_total",
    MetricType.COUNTER,
    _S,
    "Decisions by GPU type (those of the first 64, then `other`) and how it was chosen (exploit,"
    " explore, forced); the name is radix's, as the next five.",
    ("gpu_type", "decision_type"),
)
SCORE_EXPLORATION = Metric(
    "scheduler_exploration_ratio",
    MetricType.GAUGE,
    _S,
    "Share of explorations among the last decisions.",
)
SCORE_UNCERTAINTY = Metric(
    "scheduler_avg_uncertainty",
    MetricType.GAUGE,
    _S,
    "Mean uncertainty (sigma / mu) of the chosen types in the last decisions.",
)
SCORE_REGRET = Metric(
    "scheduler_regret_estimate",
    MetricType.GAUGE,
    _S,
    "How much longer the last decisions let jobs run than the best candidate, as expected then; 0.1"
    " is 10 %.",
)
SCORE_OBSERVATIONS = Metric(
    "scheduler_observe_events_total",
    MetricType.COUNTER,
    _S,
    "Runs that were reported, by job type and GPU type (those of the first 256 pairs, then"
    " `other`).",
    ("job_type", "gpu_type"),
)
SCORE_SECONDS = Metric(
    "scheduler_scoring_duration_seconds",
    MetricType.HISTOGRAM,
    _S,
    "Time to score one job.",
    (),
    FAST_BUCKETS,
)
SCORE_REQUESTS = _counter(
    "score_requests",
    "Requests to the scoring service, by path and HTTP status.",
    "path",
    "status",
)
SCORE_RUNS = _counter(
    "score_runs",
    "Runs that were reported, by result (learned; failed: counted and not learned as a run time;"
    " repeated: known by its `run_id`).",
    "result",
)
SCORE_STORED = _gauge("score_store_available", "1 while what is learned is durable, else 0.")
SCORE_UNSAVED = _gauge(
    "score_unsaved_rows", "Rows in memory that the database has not, or has older."
)
SCORE_ROWS = _gauge("score_rows", "Pairs that are remembered.")
SCORE_FORGOTTEN = _counter("score_forgotten_rows", "Pairs that went because there were too many.")
