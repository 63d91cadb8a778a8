"""How costs grow with the fleet: /filter, memory and rounds at 100 to 15,000 nodes."""

import sys
from contextlib import ExitStack
from pathlib import Path

from sandbox.laptop import Pace
from tests.bench.bodies import by_name
from tests.bench.child import LOAD_CORE, pin
from tests.bench.cluster import Cluster, NotHeldError
from tests.bench.filter_rows import Tls, alternate, our_extender
from tests.bench.ingest_rows import Cost, measured
from tests.bench.results import Curve, Point

SIZES = (100, 1_000, 5_000, 15_000)
_PACE = Pace(interval_s=40.0, challenge_ttl_s=10.0, lease_s=90.0)
"""The slowest that the settings allow: 15,000 agents need more than a core at 25 s."""
_RATE = 60
"""Agents started per second; both cores are shared by the controller and all agents."""


def growth(folder: Path, peers: Path, sizes: tuple[int, ...] = SIZES) -> list[Curve]:
    """Measure every size once; /filter in memory of the size, streams over real TLS.

    A size whose agents this machine cannot hold has no point in the curves about streams.
    """
    filters, rounds, memory = list[Point](), list[Point](), list[Point]()
    tls = Tls.make(folder)
    for nodes in sizes:
        pin(LOAD_CORE)
        with ExitStack() as stack:
            ours = our_extender(stack, tls, nodes, "--audit", folder / f"growth-{nodes}")
            body = by_name(nodes, ours.hello["rare"])
            filters.append(Point(nodes, alternate([ours], body, rounds=7, calls=9)[0].latency))
        try:
            cost, held_mib = _streams(folder / f"growth-streams-{nodes}", peers, nodes)
        except NotHeldError as error:
            sys.stderr.write(f"growth: no streams at {nodes} nodes: {error}\n")
            continue
        rounds.append(Point(nodes, cost.round_ms))
        memory.append(Point(nodes, held_mib))
    return [
        Curve("/filter by name, median", "ms", tuple(filters)),
        Curve("Controller memory, all streams open", "MiB", tuple(memory)),
        Curve("CPU for one verified round", "ms", tuple(rounds)),
        Curve("CPU for the fleet, a round each 25 s", "cores", tuple(map(_cores, rounds))),
    ]


def _streams(folder: Path, peers: Path, nodes: int) -> tuple[Cost, float]:
    cluster = Cluster(folder, _PACE)
    try:
        with ExitStack() as stack:
            controller = cluster.controller(stack, "c0")
            agents = cluster.agents(stack, peers, controller.agents, nodes, rate=_RATE)
            cost = measured(controller.child, agents, nodes, window_s=40.0)
            return cost, controller.child.rss_mib()
    finally:
        cluster.close()


def _cores(point: Point) -> Point:
    return Point(point.nodes, point.nodes / 25 * point.value / 1000)
