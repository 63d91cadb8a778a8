"""Runs the demo: starts the laptop cluster, takes the checks in turn, counts those that hold."""

import asyncio
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sandbox.demo.checks import CHECKS, eligible
from sandbox.demo.stage import Check, Stage
from sandbox.laptop import Laptop, directory_of, has_real_nvml
from sandbox.nodes import HOPPER, simulated_nodes

TOTAL: Final = 17
"""How many checks there are; a check that got lost is a failed demo."""
_CHECK_S: Final = 60.0
_POLL_S: Final = 0.1


async def run(*, keep: bool, only: Sequence[str]) -> int:
    """The demo; exit status 0 only if all TOTAL checks hold.

    `only` names the checks to run (all when empty); with it the demo cannot pass as a whole.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpuwarden-"))
    begun = time.monotonic()
    held = 0
    try:
        laptop = Laptop(folder)
        try:
            stage = await _start(laptop)
            try:
                held = await _take(stage, _chosen(only))
                if keep:
                    await _keep(stage)
            finally:
                await stage.close()
        finally:
            await laptop.close()
    finally:
        if held == TOTAL or only:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"logs are kept in {folder}")
    total = len(_chosen(only)) if only else TOTAL
    print(f"demo: took {time.monotonic() - begun:.0f} s")
    print(f"demo: {held} of {total} checks passed")
    return 0 if held == total else 1


def _chosen(only: Sequence[str]) -> tuple[Check, ...]:
    return tuple(check for check in CHECKS if not only or check.name in only)


async def _start(laptop: Laptop) -> Stage:
    nodes = simulated_nodes()
    await laptop.start_controller(directory_of(nodes))
    await asyncio.gather(*(laptop.start_agent(node) for node in nodes))
    if has_real_nvml():
        await laptop.start_real_agent()
    stage = Stage(laptop)
    for node in nodes:
        await stage.until(node.name, eligible, timeout_s=30)
    while await stage.not_ready():  # noqa: ASYNC110 - polls another process; ends by itself
        await asyncio.sleep(_POLL_S)
    _, table = await stage.cli("nodes", "--server", laptop.server)
    print(table)
    return stage


async def _take(stage: Stage, checks: Sequence[Check]) -> int:
    held = 0
    for number, check in enumerate(checks, start=1):
        try:
            async with asyncio.timeout(_CHECK_S):
                seen = await check.run(stage)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, this check does not hold
            what = str(error) or type(error).__name__
            print(
                f"{number:2}  FAILED  {check.name}: {check.claim}\n            {what}", flush=True
            )
        else:
            held += 1
            print(f"{number:2}  ok      {check.claim}\n            {seen}", flush=True)
    return held


async def _keep(stage: Stage) -> None:
    laptop = stage.laptop
    print(
        f"\nStill running; Ctrl-C ends it. From another terminal:\n\n"
        f"  .venv/bin/gpuwarden nodes --server {laptop.server}\n"
        f"  .venv/bin/gpuwarden gpus --server {laptop.server}\n"
        f"  .venv/bin/gpuwarden explain node {HOPPER} --server {laptop.server}\n"
        f"  .venv/bin/gpuwarden audit verify {laptop.audit_folder}\n"
        f"  curl -s http://{laptop.addresses.ops}/readyz\n"
        f"  curl -s http://{laptop.addresses.ops}/metrics\n"
        f"  curl -s http://{laptop.addresses.extender}/filter "
        f"-H 'Content-Type: application/json' \\\n"
        f'    -d \'{{"Pod":{{"metadata":{{"name":"p","annotations":'
        f'{{"gpuwarden.dev/min-level":"L0"}}}},"spec":{{}}}},"NodeNames":["{HOPPER}"]}}\'\n'
        f"  grpcurl -plaintext -unix {laptop.addresses.local} "
        f"-import-path proto -proto gpuwarden/wire/v1/fleet.proto "
        f"gpuwarden.wire.v1.FleetService/ListNodes\n",
        flush=True,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()
