"""Sets gauges that are worked out when Prometheus asks: the fleet and the controller's SVID."""

from collections import Counter
from dataclasses import dataclass

from controller.fleet.view import FleetSnapshot, GpuView, NodeState
from gpuwarden.identity.svid_watcher import SvidFacts
from gpuwarden.telemetry import names
from gpuwarden.telemetry.metrics import Instruments

_GPU_STATES = ("usable", "lost", "unhealthy")


@dataclass(frozen=True, slots=True)
class FleetCounts:
    """Nodes and GPUs by state, and how many classes there are."""

    nodes: Counter[str]
    gpus: Counter[str]
    classes: int


def count_fleet(fleet: FleetSnapshot, now_ns: int) -> FleetCounts:
    """Count one snapshot; linear in nodes and GPUs."""
    nodes: Counter[str] = Counter({state.value: 0 for state in NodeState})
    gpus: Counter[str] = Counter(dict.fromkeys(_GPU_STATES, 0))
    for node in fleet.nodes.values():
        nodes[node.state(now_ns).value] += 1
        for gpu in node.acceptance.gpus if node.acceptance else ():
            gpus[_gpu_state(gpu)] += 1
    return FleetCounts(nodes, gpus, len(fleet.nodes_by_hash))


class FleetGauges:
    """Sets the gauges of one process."""

    def __init__(self, instruments: Instruments) -> None:
        self._nodes = instruments.gauge(names.NODES)
        self._gpus = instruments.gauge(names.GPUS)
        self._classes = instruments.gauge(names.CLASSES)
        self._svid = instruments.gauge(names.SVID_EXPIRY)
        self._updates = instruments.counter(names.SVID_UPDATES)
        self._restarts = instruments.counter(names.SVID_SOURCE_RESTARTS)
        self._seen_updates = 0
        self._seen_failures = 0
        self._seen_restarts = 0

    def set_fleet(self, counts: FleetCounts) -> None:
        """Show the fleet."""
        for state, count in counts.nodes.items():
            self._nodes.labels(state).set(count)
        for state, count in counts.gpus.items():
            self._gpus.labels(state).set(count)
        self._classes.set(counts.classes)

    def set_svid(self, facts: SvidFacts) -> None:
        """Show the controller's SVID; counters move by what is new since the last scrape."""
        self._svid.set(facts.svid_expires_seconds)
        restarts = max(0, facts.rebuilds - 1)
        self._updates.labels("taken").inc(facts.generation - self._seen_updates)
        self._updates.labels("failed").inc(facts.failures - self._seen_failures)
        self._restarts.inc(restarts - self._seen_restarts)
        self._seen_updates, self._seen_failures = facts.generation, facts.failures
        self._seen_restarts = restarts


def _gpu_state(gpu: GpuView) -> str:
    if gpu.lost is not None:
        return "lost"
    return "unhealthy" if gpu.unhealthy is not None else "usable"
