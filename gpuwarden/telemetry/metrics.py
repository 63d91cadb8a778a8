"""Metrics of one process on a registry of its own, made from the list in `every_metric`.

A module gets an `Instruments` from its composition root and asks for the metrics it
moves; asking twice gives the same one. Must not decide anything, nor hold state of
the domain.
"""

import platform
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics import MetricWrapperBase, disable_created_metrics
from prometheus_client.openmetrics import exposition as open_metrics
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from gpuwarden.telemetry import names
from gpuwarden.telemetry.every_metric import METRICS, is_of
from gpuwarden.telemetry.names import Metric, MetricType, Process

M = TypeVar("M", bound=MetricWrapperBase)

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
"""Of what `render` returns; every Prometheus reads it."""
OPEN_METRICS_TYPE = open_metrics.CONTENT_TYPE_LATEST
"""Of what it returns as OpenMetrics: with exemplars, for who asks for it."""
_OPEN_METRICS = "application/openmetrics-text"

# Else every counter brings a gauge that `names` does not know.
disable_created_metrics()  # type: ignore[no-untyped-call] # the library's


class Instruments:
    """The metrics of this process; every metric of `process` exists from the start."""

    def __init__(self, process: Process, version: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._made = {
            metric.name: _make(metric, self.registry)
            for metric in METRICS
            if is_of(metric, process) and metric.page == names.PAGE
        }
        self.gauge(names.BUILD_INFO).labels(version, platform.python_version()).set(1)

    def counter(self, metric: Metric) -> Counter:
        """Return the counter; raises LookupError if this process does not export it."""
        return self._get(metric, Counter)

    def gauge(self, metric: Metric) -> Gauge:
        """Return the gauge; raises LookupError if this process does not export it."""
        return self._get(metric, Gauge)

    def histogram(self, metric: Metric) -> Histogram:
        """Return the histogram; raises LookupError if this process does not export it."""
        return self._get(metric, Histogram)

    def render(self, *, exemplars: bool = False) -> bytes:
        """Return the text exposition of all metrics; as OpenMetrics with exemplars."""
        if exemplars:
            page: bytes = open_metrics.generate_latest(self.registry)  # type: ignore[no-untyped-call] # the library's
            return page
        return generate_latest(self.registry)

    def _get(self, metric: Metric, wanted: type[M]) -> M:
        made = self._made.get(metric.name)
        if not isinstance(made, wanted):
            raise LookupError(  # noqa: TRY004 -- asked for under the wrong name, not a wrong value
                f"no {wanted.__name__} {metric.name} in this process"
            )
        return made


def takes_exemplars(accept: str) -> bool:
    """Whether a scraper's Accept header asks for OpenMetrics, as Prometheus does."""
    return _OPEN_METRICS in accept


def _make(metric: Metric, registry: CollectorRegistry) -> MetricWrapperBase:
    if metric.type is MetricType.HISTOGRAM:
        return Histogram(
            metric.name, metric.help, metric.labels, registry=registry, buckets=metric.buckets
        )
    make = Counter if metric.type is MetricType.COUNTER else Gauge
    return make(metric.name, metric.help, metric.labels, registry=registry)
