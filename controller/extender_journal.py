"""Tells log and metrics what the extender answers. Must not decide anything."""

from collections.abc import Mapping

from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

_BAD = frozenset({"bad", "too_large", "busy", "slow"})


class ExtenderJournal:
    """Implements the extender's `ExtenderMetrics`, and counts nodes per code."""

    def __init__(self, instruments: Instruments) -> None:
        self._log = logger("extender")
        self._requests = instruments.counter(names.EXTENDER_REQUESTS)
        self._seconds = instruments.histogram(names.EXTENDER_SECONDS)
        self._nodes = instruments.counter(names.EXTENDER_NODES)
        self._refused = instruments.counter(names.TLS_MATERIAL_REFUSED).labels("extender")

    def answered(self, verb: str, result: str, seconds: float) -> None:
        """One answer."""
        self._requests.labels(verb, result).inc()
        self._seconds.labels(verb).observe(seconds)
        if result in _BAD:
            self._log.warning(Event.EXTENDER_BAD_REQUEST, verb=verb, result=result)
        else:
            self._log.debug(Event.FILTER_DECIDED, verb=verb, result=result)

    def certificate_changed(self, error: str | None) -> None:
        """The extender's certificate files changed."""
        if error is None:
            self._log.info(Event.LISTENER_OPEN, listener="extender", certificate="renewed")
        else:
            self._refused.inc()
            self._log.error(Event.TLS_MATERIAL_REFUSED, listener="extender", reason=error)

    def count_nodes(self, totals: Mapping[ReasonCode, int]) -> None:
        """Nodes judged by one decision."""
        for code, count in totals.items():
            if count:
                self._nodes.labels(code.value).inc(count)
