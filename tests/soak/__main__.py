"""`python -m tests.soak [--minutes N …]`: run a cluster for long, and look for what that shows.

Writes FOLDER/report.json, and the logs of all programs beside it. Exit status 0 where there was
no fault. It ends in bounded time: what hangs or breaks is a fault of the report.
"""

import argparse
import faulthandler
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import gpuwarden.telemetry.grpc_core  # noqa: F401 -- before anything imports grpc

# isort: split
from sandbox.fleet.process import ShareProcess, raise_limit
from tests.builders.allocator import environment_as_in
from tests.e2e.product.controller import ROOT
from tests.soak.cluster import KeptLogs, forked_fleet, new_workload_api, pace_of, running
from tests.soak.log_lines import PLAIN_FORMAT
from tests.soak.report import Shape, Stuck, document, faults, stuck_fault, table, unfinished
from tests.soak.run import Soak
from tests.soak.watch import CLEAN_UP, Watch
from tests.soak.workers import Workers


def main() -> int:
    """Run one."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    for name, default, meaning in (
        ("minutes", 30.0, "how long"),
        ("nodes", 200.0, "how many nodes"),
        ("pods", 60.0, "pods created each minute"),
        ("rotate", 60.0, "seconds between rotations of all certificates"),
        ("kill", 120.0, "seconds from a replica's return to the next kill"),
        ("interval", 25.0, "attestation.interval in seconds"),
        ("flat", 300.0, "growth of memory in KiB per minute that is still flat"),
    ):
        told = f"{meaning} ({default:g})"
        parser.add_argument(f"--{name}", type=float, default=default, metavar="N", help=told)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "soak")
    asked = parser.parse_args()
    start_as_agents_do()
    shape = Shape(
        asked.minutes,
        int(asked.nodes),
        asked.pods,
        asked.rotate,
        asked.kill,
        limit_kib_per_min=asked.flat,
    )
    return soaked(shape, asked.interval, asked.folder)


def start_as_agents_do() -> None:
    """Start again where malloc is not set as in the agent's image."""
    wanted = environment_as_in("agent", os.environ)
    if wanted != os.environ:
        os.execve(sys.executable, sys.orig_argv, wanted)  # noqa: S606 - itself, without a shell


def soaked(shape: Shape, interval_s: float, folder: Path) -> int:
    """All of it, from nothing to nothing; the exit status."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    own_log = folder / "agents.log"
    logging.basicConfig(filename=own_log, level=logging.WARNING, format=PLAIN_FORMAT)
    raise_limit()
    kept = KeptLogs(folder / "logs")
    with tempfile.TemporaryDirectory(prefix="gpuwarden-soak-") as sockets:
        api = new_workload_api(Path(sockets))
        fleet = forked_fleet(shape.nodes, api)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # not in the agents' process
        watch = Watch(_say, partial(give_up, folder, kept, fleet))
        workers = Workers()
        workers.start("agents' reports", partial(followed, fleet))
        watch.start()
        _say(f"starts a cluster with {shape.nodes} nodes, then runs {shape.minutes:g} minutes")
        status = 1
        try:
            with running(
                fleet, api, shape.nodes, pace_of(interval_s), kept=kept, note=watch.note
            ) as cluster:
                _say("everything stands")
                try:
                    report = Soak(cluster, shape, own_log, workers, watch).run()
                    write(folder, document(report))
                    sys.stdout.write(table(report))
                    status = 1 if faults(report) else 0
                except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - told before the clean-up, whatever it is
                    broke(folder, watch, error)
                watch.enter(CLEAN_UP)
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the report has to tell it
            broke(folder, watch, error)
            status = 1
        finally:
            watch.enter(CLEAN_UP)
            fleet.close()
    return status


def followed(fleet: ShareProcess) -> NoReturn:
    """Read what the agents report from the first moment to the last: their pipe must not fill."""
    fleet.follow()
    raise RuntimeError("the agents' process ended by itself")


def broke(folder: Path, watch: Watch, error: BaseException) -> None:
    """There will be no whole report."""
    traceback.print_exception(error)
    told(folder, watch.stuck(repr(error)))


def give_up(folder: Path, kept: KeptLogs, fleet: ShareProcess, stuck: Stuck) -> NoReturn:
    """Called by the watch, while another thread hangs: nothing here may wait for that one.

    The lab's keeper ends its programs when this process is gone.
    """
    told(folder, stuck)
    with (folder / "threads.txt").open("w") as threads:
        faulthandler.dump_traceback(threads)
    fleet.close()
    try:
        kept.copy()
    finally:
        os._exit(1)


def told(folder: Path, stuck: Stuck) -> None:
    """Say it, and add it to the report, or make one of it."""
    file = folder / "report.json"
    found = unfinished(stuck)
    if file.exists():
        written = json.loads(file.read_text())
        found = {**written, **{name: written[name] + more for name, more in found.items()}}
    write(folder, found)
    sys.stdout.write(f"soak: FAILED\n  {stuck_fault(stuck)}\n")
    sys.stdout.flush()


def write(folder: Path, found: dict[str, Any]) -> None:
    """The report."""
    (folder / "report.json").write_text(json.dumps(found, indent=1) + "\n")


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} soak: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
