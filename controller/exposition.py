"""What Prometheus reads of a controller: gauges set as it asks, then everything rendered.

Reads the parts only. Counters are moved where things happen, not here.
"""

from collections.abc import Callable

from controller.composition.parts import Parts
from controller.fleet_gauges import FleetGauges, SvidFacts, count_fleet
from gpuwarden.telemetry import names
from gpuwarden.telemetry.metrics import Instruments


class Exposition:
    """One for the process; `render` for each request."""

    def __init__(
        self, parts: Parts, instruments: Instruments, svid_facts: Callable[[], SvidFacts]
    ) -> None:
        self._parts = parts
        self._instruments = instruments
        self._svid_facts = svid_facts
        self._gauges = FleetGauges(instruments)

    def render(self) -> bytes:
        """The page in Prometheus' text format."""
        parts = self._parts
        self._gauges.set_fleet(count_fleet(parts.registry.snapshot(), parts.clock.boottime_ns()))
        self._gauges.set_svid(self._svid_facts())
        if parts.cluster is not None:
            parts.cluster.set_gauges()
        if parts.binding is not None:
            parts.binding.set_gauges()
        self._instruments.gauge(names.READY).set(parts.conditions.readiness().ready)
        self._instruments.gauge(names.SPIRE_AGE).set(parts.spire.age_s(parts.clock.boottime_ns()))
        self._instruments.gauge(names.AUDIT_QUEUE).set(parts.audit.waiting)
        certified = parts.audit.published
        self._instruments.gauge(names.AUDIT_CHECKPOINT).set(certified.head.size if certified else 0)
        return self._instruments.render()
