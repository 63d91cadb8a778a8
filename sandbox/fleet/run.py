"""`gpuwarden-sandbox fleet`: thousands of simulated agents against one real controller.

First the whole fleet starts and has to become eligible, then the plan is carried out,
then the whole fleet has to be eligible again. Prints a line of numbers every few seconds.
"""

import asyncio
import logging
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuwarden.reasons import ReasonCode
from gpuwarden.settings.values import Address
from sandbox.fleet.hardware import fleet_hardware
from sandbox.fleet.plan import Rates, plan
from sandbox.fleet.process import (
    Live,
    ShareProcess,
    Start,
    Stop,
    TooFewDescriptorsError,
    processes_for,
    raise_limit,
)
from sandbox.fleet.tally import ControllerLook, Tally, look_at, percentile, total
from sandbox.laptop import Laptop, Pace

ELIGIBLE: Final = "eligible"
EXIT_INTERRUPTED: Final = 130
"""Ended by Ctrl-C, which is no fault."""
EXPECTED: Final = frozenset({ReasonCode.STREAM_SUPERSEDED.value})
"""Codes that a healthy fleet gets: of two streams of an agent the older one ends."""
_LINE_S: Final = 5.0
_POLL_S: Final = 0.5
_STALL_S: Final = 60.0
_TTL_S: Final = 15.0
_LEASE_S: Final = 90.0
"""No lease is longer, and it has to outlast two intervals and an answer."""
MAX_INTERVAL_S: Final = (_LEASE_S - _TTL_S) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """What to simulate; times in seconds."""

    nodes: int
    seed: int = 1
    seconds: float = 60.0
    """How long things happen once the fleet stands."""
    start_rate: float = 150.0
    """Agents started per second."""
    interval_s: float = 25.0
    rates: Rates = field(default_factory=Rates)


def run(options: FleetOptions) -> int:
    """Simulate; exit status 0 only if every node was eligible before and after."""
    try:
        processes = processes_for(options.nodes, raise_limit())
    except TooFewDescriptorsError as error:
        print(f"fleet: FAILED: {error}")
        return 1
    folder = Path(tempfile.mkdtemp(prefix="gpuwarden-"))
    interval_s = options.interval_s
    pace = Pace(interval_s, min(_TTL_S, interval_s), min(_LEASE_S, 3 * interval_s))
    logging.getLogger("gpuwarden").setLevel(logging.ERROR)  # dials that fail are counted
    status = 1
    try:
        laptop = Laptop(folder, pace)
        shares = _fork(options, laptop, processes)
        try:
            status = asyncio.run(_Simulation(options, laptop, shares).run())
        finally:
            for share in shares:
                share.close()
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    finally:
        if status in {0, EXIT_INTERRUPTED}:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"logs are kept in {folder}")
    return status


def _fork(options: FleetOptions, laptop: Laptop, processes: int) -> list[ShareProcess]:
    """Before gRPC and threads start in this process."""
    hardware = dict(enumerate(fleet_hardware(options.seed, options.nodes)))
    return [
        ShareProcess(
            {number: one for number, one in hardware.items() if number % processes == position},
            laptop.workload_api.ca,
            options.seed,
        )
        for position in range(processes)
    ]


class _Simulation:
    def __init__(self, options: FleetOptions, laptop: Laptop, shares: list[ShareProcess]) -> None:
        self._options = options
        self._laptop = laptop
        self._shares = shares
        self._begun = time.monotonic()
        self._lost = ""
        self._before = Tally()
        self._line_at = 0.0

    async def run(self) -> int:
        try:
            await self._laptop.start_controller(("*",))
            for share in self._shares:
                share.listen(self._share_lost)
            return await self._scenes()
        finally:
            for share in self._shares:
                share.tell(Stop())
            await self._laptop.close()

    async def _scenes(self) -> int:
        options = self._options
        rate = options.start_rate / len(self._shares)
        controllers = (Address.parse(self._laptop.addresses.agents),)
        self._say(f"{options.nodes} agents in {len(self._shares)} processes start")
        for share in self._shares:
            share.tell(Start(controllers, rate))
        if not await self._until(self._stands, _STALL_S, growing=True):
            return self._verdict(f"no further node became eligible in {_STALL_S:g} s")
        self._say("the fleet stands")
        happenings = plan(options.seed, options.nodes, options.seconds, options.rates)
        for share in self._shares:
            share.tell(Live(happenings))
        await self._until(lambda _look: False, options.seconds)
        if not await self._until(self._calm, 60 + 4 * options.interval_s):
            return self._verdict("not every node came back")
        return self._verdict("")

    def _stands(self, look: ControllerLook) -> bool:
        return look.states.get(ELIGIBLE, 0) == self._options.nodes

    def _calm(self, look: ControllerLook) -> bool:
        return self._stands(look) and not any(share.report.alive for share in self._shares)

    async def _until(
        self, holds: Callable[[ControllerLook], bool], seconds: float, *, growing: bool = False
    ) -> bool:
        """`growing`: the time begins again whenever more nodes are eligible than ever before."""
        end, most = time.monotonic() + seconds, 0
        controller = self._laptop.programs["controller"]
        while time.monotonic() < end and not self._lost:
            await asyncio.sleep(_POLL_S)
            if controller.returncode is not None:
                self._lost = f"the controller ended with status {controller.returncode}"
                break
            look = await look_at(self._laptop.addresses.ops, controller.pid)
            self._show(look)
            if holds(look):
                return True
            if growing and look.states.get(ELIGIBLE, 0) > most:
                end, most = time.monotonic() + seconds, look.states[ELIGIBLE]
        return False

    def _share_lost(self) -> None:
        self._lost = "a process of the fleet ended"

    def _show(self, look: ControllerLook) -> None:
        now = time.monotonic()
        if now - self._line_at < _LINE_S:
            return
        tally = total([share.report.tally for share in self._shares])
        latencies = [x for share in self._shares for x in share.take_latencies()]
        rate = (tally.accepted - self._before.accepted) / (now - (self._line_at or self._begun))
        self._line_at, self._before = now, tally
        self._say(
            f"eligible {look.states.get(ELIGIBLE, 0)}  streams {tally.streams}"
            f"  accepted {rate:.0f}/s  round p50 {_ms(latencies, 0.5)} p99 {_ms(latencies, 0.99)}"
            f"  controller {look.cpu_s:.1f} s cpu, {look.rss_mib:.0f} MiB{_counts(tally)}"
        )

    def _verdict(self, fault: str) -> int:
        tally = total([share.report.tally for share in self._shares])
        strange = {code: n for code, n in tally.refused.items() if code not in EXPECTED}
        if (strange or tally.alarms) and not fault:
            fault = "refusals or alarms that a healthy fleet does not get"
        self._say(
            f"{tally.accepted} rounds accepted on {tally.opened} streams"
            f"{_counts(tally)}  stream ends {_listed(tally.ends)}"
        )
        fault = self._lost or fault
        print("fleet: " + (f"FAILED: {fault}" if fault else "all nodes eligible"))
        return 1 if fault else 0

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begun:6.1f} s  {text}", flush=True)


def _ms(latencies: list[float], share: float) -> str:
    value = percentile(latencies, share)
    return "-" if value is None else f"{value:.0f} ms"


def _counts(tally: Tally) -> str:
    shown = {"happened": tally.happened, "refused": tally.refused, "alarms": tally.alarms}
    return "".join(f"  {name} {_listed(counts)}" for name, counts in shown.items() if counts)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))
