"""A controller dies and comes back: how long until it knows its whole fleet again."""

import time
from contextlib import ExitStack
from pathlib import Path

from sandbox.laptop import Pace
from tests.bench.cluster import Cluster
from tests.bench.results import Bound, Goal, Row

GROUP = "Start to ready"
_PACE = Pace(interval_s=25.0, challenge_ttl_s=15.0, lease_s=90.0)
_AGENTS = 5_000
_LIMIT_S = 240.0


def ready_rows(folder: Path, peers: Path, agents: int = _AGENTS) -> list[Row]:
    """Both cores for all: the controller and the agents that come back to it."""
    cluster = Cluster(folder / "ready", _PACE)
    try:
        with ExitStack() as outer, ExitStack() as first:
            controller = cluster.controller(first, "c0")
            fleet = cluster.agents(outer, peers, controller.agents, agents, rate=150)
            fleet.start()
            fleet.until_accepted(_LIMIT_S)
            first.close()
            begin = time.monotonic()
            again = cluster.controller(outer, "c0", agents=controller.agents)
            while (known := again.eligible()) < agents:
                if time.monotonic() - begin > _LIMIT_S:
                    raise RuntimeError(f"only {known} of {agents} came back: {fleet.report()}")
                time.sleep(0.5)
            seconds, cpu_s = time.monotonic() - begin, again.child.cpu_s()
    finally:
        cluster.close()
    return [
        Row(
            GROUP,
            f"{agents:,} agents reconnect after a restart, all eligible",
            "s",
            seconds,
            goal=Goal(Bound.AT_MOST, 60, of_ratio=False),
            note=(
                f"{cpu_s:.0f} s of CPU time in the controller. The agents come back with the real"
                " agent's back-off (up to 30 s) and use the same two cores."
            ),
        )
    ]
