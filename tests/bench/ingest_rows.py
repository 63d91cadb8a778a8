"""Attestation streams: what a verified round and a stream cost, against the Go floor.

Both servers run alone on one core, the Go agents on the other. Cost is CPU time per
accepted round at the same offered load, so that a busy machine disturbs it little.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from sandbox.laptop import Pace
from tests.bench.child import SERVER_CORE, Child
from tests.bench.cluster import Agents, Cluster
from tests.bench.results import Bound, Goal, Row

GROUP = "Attestation streams, mTLS, evidence verified"
STREAMS = 1_000
_PACE = Pace(interval_s=8.0, challenge_ttl_s=15.0, lease_s=60.0)
_ROUNDS = 3
_WINDOW_S = 12.0
_CALM_S = 3.0
_CONNECT_S = 120.0
_FLEET = 15_000
_INTERVAL_S = 25.0
_GO = "Go floor"


@dataclass(frozen=True)
class Cost:
    """One run of one server."""

    round_ms: float
    """CPU per accepted round."""
    opening_ms: float
    """CPU per stream from TCP to its first acceptance."""
    kib: float
    """Memory per stream that is accepted and open."""
    p50_ms: float
    p99_ms: float


def ingest_rows(folder: Path, peers: Path) -> list[Row]:
    """All rows about ingest."""
    cluster = Cluster(folder / "ingest", _PACE)
    try:
        ours, floor = list[Cost](), list[Cost]()
        for number in range(_ROUNDS):
            ours.append(_ours(cluster, peers, f"c{number}"))
            floor.append(_floor(cluster, peers))
        return _rows(_middle(ours), _middle(floor), cluster.evidence_bytes)
    finally:
        cluster.close()


def _ours(cluster: Cluster, peers: Path, name: str) -> Cost:
    with ExitStack() as stack:
        controller = cluster.controller(stack, name, core=SERVER_CORE)
        agents = cluster.agents(stack, peers, controller.agents, STREAMS, rate=100)
        return measured(controller.child, agents, STREAMS)


def _floor(cluster: Cluster, peers: Path) -> Cost:
    with ExitStack() as stack:
        child, address = cluster.floor(stack, peers, core=SERVER_CORE)
        agents = cluster.agents(stack, peers, address, STREAMS, rate=100)
        return measured(child, agents, STREAMS)


def measured(server: Child, agents: Agents, streams: int, window_s: float = _WINDOW_S) -> Cost:
    """Connect all agents, let things calm down, then watch for a while."""
    time.sleep(1)
    idle_mib, idle_s = server.rss_mib(), server.cpu_s()
    agents.start()
    opened = agents.until_accepted(_CONNECT_S + streams / 50)
    opening_s = server.cpu_s() - idle_s
    time.sleep(_CALM_S)
    begin, begin_s = agents.report(), server.cpu_s()
    time.sleep(window_s)
    end, end_s = agents.report(), server.cpu_s()
    rounds = end["accepted"] - begin["accepted"]
    round_s = (end_s - begin_s) / rounds
    further = opened["accepted"] - streams
    return Cost(
        round_ms=1000 * round_s,
        opening_ms=1000 * max(0.0, opening_s - further * round_s) / streams,
        kib=1024 * (server.rss_mib() - idle_mib) / streams,
        p50_ms=end["p50_ms"],
        p99_ms=end["p99_ms"],
    )


def _middle(costs: list[Cost]) -> Cost:
    """The median of each number."""
    return Cost(
        median(x.round_ms for x in costs),
        median(x.opening_ms for x in costs),
        median(x.kib for x in costs),
        median(x.p50_ms for x in costs),
        median(x.p99_ms for x in costs),
    )


def _rows(ours: Cost, floor: Cost, evidence_bytes: int) -> list[Row]:
    at_least = Goal(Bound.AT_LEAST, 0.45)
    return [
        Row(
            GROUP,
            "rounds per core-second, 1,000 streams",
            "/s",
            1000 / ours.round_ms,
            1000 / floor.round_ms,
            _GO,
            at_least,
            f"Evidence of eight GPUs, {evidence_bytes / 1000:.1f} kB. The floor checks"
            " signature, challenge, sequence and shape; the controller also checks chain, node,"
            " enrollment and policy, and keeps the log.",
        ),
        Row(
            GROUP,
            "streams opened and accepted per core-second",
            "/s",
            1000 / ours.opening_ms,
            1000 / floor.opening_ms,
            _GO,
        ),
        Row(
            GROUP,
            "memory per open stream",
            "KiB",
            ours.kib,
            floor.kib,
            _GO,
            Goal(Bound.AT_MOST, 110, of_ratio=False),
        ),
        Row(
            GROUP,
            "cores for 15,000 agents at 25 s",
            "",
            _FLEET / _INTERVAL_S * ours.round_ms / 1000,
            goal=Goal(Bound.AT_MOST, 1.0, of_ratio=False),
            note="From the cost of a round at 1,000 streams.",
        ),
        Row(GROUP, "evidence to verdict, median", "ms", ours.p50_ms, floor.p50_ms, _GO),
        Row(GROUP, "evidence to verdict, 99th percentile", "ms", ours.p99_ms, floor.p99_ms, _GO),
    ]
