"""Simulates every seed, load and arm, and writes table and plot into docs/learned-scores.md."""

import asyncio
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from gpuwarden.settings.shared import LogFormat, LogLevel
from gpuwarden.telemetry import logs
from tests.bench.hints.admission import HINT_WEIGHT, WithHints, WithoutHints
from tests.bench.hints.outcome import SEEDS, Arm, Load, Outcome, outcome
from tests.bench.hints.page import page, svg
from tests.bench.hints.placement import Extending, KubeScheduler, Oracle, over_http
from tests.bench.hints.simulation import Ended, simulate
from tests.bench.hints.workload import Workload, workload
from tests.bench.page import merged

JOBS: Final = 1_000
LOADS: Final = {"Busy": 0.6, "Overloaded": 1.2}
PAGE: Final = "learned-scores.md"
PLOT: Final = "learned-scores-simulation.svg"


def write_comparison(docs: Path) -> None:
    """Three minutes' work on all cores, with the same result on every machine."""
    runs = [(load, seed) for load in LOADS.values() for seed in SEEDS]
    with ProcessPoolExecutor() as pool:
        found = dict(zip(runs, pool.map(_outcomes, *zip(*runs, strict=True)), strict=True))
    loads = [
        Load(name, load, {arm: [found[load, seed][arm] for seed in SEEDS] for arm in Arm})
        for name, load in LOADS.items()
    ]
    (docs / PLOT).write_text(svg(loads))
    (docs / PAGE).write_text(merged((docs / PAGE).read_text(), page(loads, PLOT, JOBS)))


def _outcomes(load: float, seed: int) -> dict[Arm, Outcome]:
    """Those of all arms; the first seed's over HTTP."""
    logs.configure(LogLevel.WARN, LogFormat.JSON, service="bench")
    truth, http = workload(seed, jobs=JOBS, load=load), seed == SEEDS[0]
    return {arm: outcome(truth, asyncio.run(simulated(truth, arm, seed, http=http))) for arm in Arm}


async def simulated(truth: Workload, arm: Arm, seed: int, *, http: bool = False) -> list[Ended]:
    """One simulation; `http`: the verbs are asked over their listener."""
    if arm is Arm.ORACLE:
        return await simulate(truth, WithoutHints(), Oracle(truth))
    hints = arm is not Arm.WITHOUT
    extending = Extending(HINT_WEIGHT if hints else 0)
    admission = WithHints() if hints else WithoutHints()
    if not http:
        return await simulate(truth, admission, KubeScheduler(extending, extending.ask, seed))
    async with over_http(extending) as ask:
        return await simulate(truth, admission, KubeScheduler(extending, ask, seed))
