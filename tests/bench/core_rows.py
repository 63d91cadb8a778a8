"""The filter core without HTTP: against a scan over records, and how it grows."""

import time
from collections.abc import Callable, Sequence
from statistics import median

from controller.fleet.registry import FleetRegistry
from controller.fleet.view import FleetSnapshot, NodeView
from controller.placement.filter_and_score import filter_nodes
from controller.placement.requirements import Requirements
from controller.placement.snapshot import Scene, placement_policy
from controller.placement.verdict_cache import PlacementMemory
from controller.policy import DEFAULT_POLICY
from gpuwarden.clock import SystemClock, moment_of
from tests.bench.fleet_of import node_name, registry_of
from tests.bench.results import Bound, Goal, Row

GROUP = "Filter core, in memory"
_ROUNDS = 15
_POLICY = placement_policy(DEFAULT_POLICY)


def core_rows() -> list[Row]:
    """Ours against the scan at 15,000 nodes, and 15,000 against 5,000."""
    large, small = _Core(15_000), _Core(5_000)
    scans, filters, smaller = list[float](), list[float](), list[float]()
    for _ in range(_ROUNDS):
        scans.append(_ms(large.scan, large.fresh_names()))
        filters.append(_ms(large.filter, large.fresh_names()))
        smaller.append(_ms(small.filter, small.fresh_names()))
    if large.filter(large.fresh_names()) != large.scan(large.fresh_names()):
        raise RuntimeError("filter and scan disagree")
    return [
        Row(
            GROUP,
            "15,000 names, 150 pass",
            "ms",
            median(filters),
            median(scans),
            "scan",
            Goal(Bound.AT_MOST, 0.333),
            "The scan looks at each name's record in turn.",
        ),
        Row(
            GROUP,
            "15,000 names over 5,000 names",
            "ms",
            median(filters),
            median(smaller),
            "5,000",
            Goal(Bound.AT_MOST, 3.6),
        ),
    ]


class _Core:
    """One fleet and one question."""

    def __init__(self, nodes: int) -> None:
        registry: FleetRegistry
        registry, rare, _ = registry_of(nodes)
        self._snapshot: FleetSnapshot = registry.snapshot()
        self._needs = Requirements(managed=True, hashes=frozenset({rare}))
        self._memory = PlacementMemory()
        self._wanted = rare
        self._text = "\n".join(node_name(number) for number in range(nodes))

    def fresh_names(self) -> list[str]:
        """As a parser leaves them: strings whose hash nobody has worked out yet."""
        return self._text.split("\n")

    def filter(self, names: Sequence[str]) -> list[str]:
        """The product's decision, reasons for the first hundred included."""
        clock = SystemClock()
        scene = Scene(
            fleet=self._snapshot,
            policy=_POLICY,
            now=moment_of(clock),
            memory=self._memory,
        )
        return filter_nodes(names, self._needs, scene).passed

    def scan(self, names: Sequence[str]) -> list[str]:
        """What one writes first."""
        nodes, now_ns = self._snapshot.nodes, SystemClock().boottime_ns()
        return [name for name in names if self._fits(nodes.get(name), now_ns)]

    def _fits(self, node: NodeView | None, now_ns: int) -> bool:
        if node is None or node.acceptance is None or node.blocked is not None:
            return False
        acceptance = node.acceptance
        if now_ns >= acceptance.fresh_until_ns or acceptance.attestation_hash != self._wanted:
            return False
        return any(gpu.lost is None and gpu.unhealthy is None for gpu in acceptance.gpus)


def _ms(work: Callable[[Sequence[str]], object], names: Sequence[str]) -> float:
    """CPU time of one call."""
    begin = time.thread_time()
    work(names)
    return (time.thread_time() - begin) * 1000
