"""Runs the demo: starts the laptop cluster, takes the checks in turn, counts those that hold.

However it ends (by itself, by a signal, with its terminal), its programs end with it, and its
folder is removed unless something failed whose logs it holds.
"""

import asyncio
import logging
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox.demo.checks import CHECKS, eligible
from sandbox.demo.control import PREFIX, Control
from sandbox.demo.output import NobodyReadsError, SaidLogs, is_read, say, say_as_it_is
from sandbox.demo.pods import DemoPods
from sandbox.demo.stage import Check, Stage
from sandbox.demo.try_it import things_to_try
from sandbox.laptop import Laptop, directory_of, has_real_nvml, node_uid
from sandbox.nodes import simulated_nodes
from sandbox.nvml.build import BuildError
from sandbox.program import ProgramError

TOTAL: Final = 17
"""How many checks there are; a check that got lost is a failed demo."""
_CHECK_S: Final = 60.0
_POLL_S: Final = 0.1
_READ_POLL_S: Final = 0.5
_INDENT: Final = 12
_ENDED_BY: Final = 128
"""What a shell adds to the number of a signal."""


class PodsError(Exception):
    """The pods of a demo that is to stay up could not be created."""


@dataclass(slots=True)
class _Course:
    """How far the demo came."""

    total: int
    held: int = 0
    failed: int = 0
    ended_by: signal.Signals | None = None

    @property
    def is_complete(self) -> bool:
        return self.held + self.failed == self.total

    def summary(self) -> str:
        if self.ended_by is not None and not self.is_complete:
            return f"demo: ended by {self.ended_by.name}, {self.held} of {self.total} checks passed"
        return f"demo: {self.held} of {self.total} checks passed"

    def status(self) -> int:
        if self.ended_by is not None and not self.is_complete:
            return _ENDED_BY + self.ended_by
        return 0 if self.held == self.total else 1


async def run(*, keep: bool, only: Sequence[str]) -> int:
    """The demo; exit status 0 only if all TOTAL checks hold.

    `only` names the checks to run (all when empty); with it the demo cannot pass as a whole.
    """
    logging.getLogger("sandbox").addHandler(SaidLogs())
    checks = tuple(check for check in CHECKS if not only or check.name in only)
    course = _Course(len(checks) if only else TOTAL)
    begun = time.monotonic()
    work = asyncio.create_task(_in_a_folder(course, checks, keep=keep))
    _end_on_signals(work, course)
    with suppress(NobodyReadsError):
        try:
            await work
        except asyncio.CancelledError:
            if course.ended_by is None:
                raise
        except (BuildError, ProgramError, PodsError) as error:
            course.failed += 1
            say(f"demo: {error}")
        say(f"demo: took {time.monotonic() - begun:.0f} s")
        say(course.summary())
    return course.status()


def _end_on_signals(work: asyncio.Task[None], course: _Course) -> None:
    """The first signal ends `work`; those that come while it cleans up change nothing."""

    def end(number: signal.Signals) -> None:
        if course.ended_by is None:
            course.ended_by = number
            work.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        is_nohup = number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN
        if not is_nohup:
            loop.add_signal_handler(number, end, number)


async def _in_a_folder(course: _Course, checks: Sequence[Check], *, keep: bool) -> None:
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    is_worth_keeping = True
    try:
        laptop = Laptop(folder, confirmed=True, console=keep, kubernetes=keep)
        try:
            await _on_a_cluster(laptop, course, checks, keep=keep)
        finally:
            await laptop.close()
        is_worth_keeping = course.failed > 0
    except (asyncio.CancelledError, NobodyReadsError):
        is_worth_keeping = course.failed > 0
        raise
    finally:
        if is_worth_keeping:
            say(f"logs are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


async def _on_a_cluster(
    laptop: Laptop, course: _Course, checks: Sequence[Check], *, keep: bool
) -> None:
    stage = await _start(laptop)
    try:
        await _take(stage, checks, course)
        if keep:
            await _say_pods(stage)
            await _keep(stage, course)
    finally:
        await stage.close()


async def _start(laptop: Laptop) -> Stage:
    say("demo: starts a controller and three agents with simulated GPUs")
    nodes = simulated_nodes()
    known = tuple(f"{name}={node_uid(name)}" for name in directory_of(nodes))
    await laptop.start_controller(known)
    await asyncio.gather(*(laptop.start_agent(node) for node in nodes))
    if has_real_nvml():
        await laptop.start_real_agent()
    stage = Stage(laptop)
    for node in nodes:
        await stage.until(node.name, eligible, timeout_s=30)
    while await stage.not_ready():  # noqa: ASYNC110 - polls another process; ends by itself
        await asyncio.sleep(_POLL_S)
    await _say_nodes(stage)
    return stage


async def _say_nodes(stage: Stage) -> None:
    say()
    for name in stage.nodes:
        node = await stage.node(name)
        products = ", ".join(sorted({gpu.product for gpu in node.gpus}))
        say(
            f"{name}  {node.state}, level {node.level}, {len(node.gpus)} x {products}",
            indent=_INDENT,
        )
    say()


async def _take(stage: Stage, checks: Sequence[Check], course: _Course) -> None:
    for number, check in enumerate(checks, start=1):
        try:
            async with asyncio.timeout(_CHECK_S):
                seen = await check.run(stage)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, this check does not hold
            course.failed += 1
            said = f"{number:2}  FAILED  {check.name}: {check.claim}"
            seen = str(error) or type(error).__name__
        else:
            course.held += 1
            said = f"{number:2}  ok      {check.claim}"
        say(said, indent=_INDENT)
        say(" " * _INDENT + seen, indent=_INDENT)


async def _say_pods(stage: Stage) -> None:
    cluster = stage.laptop.cluster
    assert cluster is not None, "what stays up has one"  # noqa: S101 - narrows
    say()
    say("demo: creates pods, and plays kube-scheduler and kubelet")
    say()
    try:
        pods = await DemoPods(stage, cluster).fill()
    except Exception as error:  # whatever goes wrong, there are no pods to look at
        raise PodsError(f"pods: {error}") from error
    for pod in pods:
        say(f"{pod.name}  {pod.node or 'Pending'}: {pod.about}", indent=_INDENT)


async def _keep(stage: Stage, course: _Course) -> None:
    """Stay up until a signal comes or nobody reads any more."""
    laptop = stage.laptop
    async with Control(stage):
        say()
        say(course.summary())
        say("It stays up until Ctrl-C.")
        say()
        say_as_it_is(things_to_try(laptop.addresses, laptop.folder))
        while is_read():  # noqa: ASYNC110 - a terminal tells nobody that it is gone
            await asyncio.sleep(_READ_POLL_S)
