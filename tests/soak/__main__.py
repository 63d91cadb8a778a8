"""`python -m tests.soak [--minutes N …]`: run a cluster for long, and look for what that shows.

Writes FOLDER/report.json, and the logs of all programs beside it. Exit status 0 where there was
no fault.
"""

import argparse
import asyncio
import json
import logging
import shutil
import sys
import tempfile
from pathlib import Path

import gpuwarden.telemetry.grpc_core  # noqa: F401 -- before anything imports grpc

# isort: split
from sandbox.fleet.process import raise_limit
from tests.e2e.product.controller import ROOT
from tests.soak.cluster import forked_fleet, new_workload_api, pace_of, running
from tests.soak.report import Report, Shape, document, faults, table
from tests.soak.run import Soak


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
        ("flat", 100.0, "growth of memory in KiB per minute that is still flat"),
    ):
        told = f"{meaning} ({default:g})"
        parser.add_argument(f"--{name}", type=float, default=default, metavar="N", help=told)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "soak")
    asked = parser.parse_args()
    shape = Shape(
        asked.minutes,
        int(asked.nodes),
        asked.pods,
        asked.rotate,
        asked.kill,
        limit_kib_per_min=asked.flat,
    )
    report = soaked(shape, asked.interval, asked.folder)
    (asked.folder / "report.json").write_text(json.dumps(document(report), indent=1) + "\n")
    sys.stdout.write(table(report))
    return 1 if faults(report) else 0


def soaked(shape: Shape, interval_s: float, folder: Path) -> Report:
    """All of it, from nothing to nothing."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    own_log = folder / "agents.log"
    logging.basicConfig(
        filename=own_log, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    raise_limit()
    with tempfile.TemporaryDirectory(prefix="gpuwarden-soak-") as sockets:
        api = new_workload_api(Path(sockets))
        fleet = forked_fleet(shape.nodes, api)
        try:
            _say(f"starts a cluster with {shape.nodes} nodes, then runs {shape.minutes:g} minutes")
            with running(fleet, api, shape.nodes, pace_of(interval_s)) as cluster:
                _say("everything stands")
                return asyncio.run(Soak(cluster, shape, own_log, folder / "logs").run())
        finally:
            fleet.close()


def _say(text: str) -> None:
    sys.stderr.write(f"soak: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
