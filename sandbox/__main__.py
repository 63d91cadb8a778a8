"""`python -m sandbox demo|fleet`: the laptop cluster for a person."""

import argparse
import asyncio
import sys

import gpuwarden.telemetry.grpc_core  # noqa: F401 -- before anything imports grpc

# isort: split
from sandbox.demo.run import CHECKS
from sandbox.demo.run import run as run_demo
from sandbox.fleet.plan import Rates
from sandbox.fleet.run import FleetOptions
from sandbox.fleet.run import run as run_fleet

DEFAULT_RATES = Rates(drop=0.05, restart=0.02, rotate=0.05, upgrade=0.1)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m sandbox")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_demo(commands.add_parser("demo", help="the trust path, step by step, each step checked"))
    _add_fleet(commands.add_parser("fleet", help="thousands of simulated agents, one controller"))
    parsed = parser.parse_args(arguments)
    if parsed.command == "demo":
        return asyncio.run(run_demo(keep=parsed.keep, only=parsed.only))
    return run_fleet(_fleet_options(parsed))


def _add_demo(demo: argparse.ArgumentParser) -> None:
    demo.add_argument("--keep", action="store_true", help="leave it running afterwards")
    demo.add_argument(
        "--only",
        action="append",
        default=[],
        choices=[check.name for check in CHECKS],
        help="run this check only; may be given several times",
    )


def _add_fleet(fleet: argparse.ArgumentParser) -> None:
    fleet.add_argument("--nodes", type=int, default=500, help="agents (500)")
    fleet.add_argument("--seed", type=int, default=1, help="same seed, same fleet and plan (1)")
    fleet.add_argument("--seconds", type=float, default=60, help="how long things happen (60)")
    fleet.add_argument("--interval", type=float, default=25, help="between challenges, s (25)")
    fleet.add_argument("--start-rate", type=float, default=100, help="agents a second (100)")
    shares = "share of the fleet per minute"
    fleet.add_argument("--drop", type=float, default=DEFAULT_RATES.drop, help=shares)
    fleet.add_argument("--restart", type=float, default=DEFAULT_RATES.restart, help=shares)
    fleet.add_argument("--rotate", type=float, default=DEFAULT_RATES.rotate, help=shares)
    fleet.add_argument(
        "--upgrade", type=float, default=DEFAULT_RATES.upgrade, help="part that gets a new driver"
    )


def _fleet_options(parsed: argparse.Namespace) -> FleetOptions:
    return FleetOptions(
        nodes=parsed.nodes,
        seed=parsed.seed,
        seconds=parsed.seconds,
        start_rate=parsed.start_rate,
        interval_s=parsed.interval,
        rates=Rates(parsed.drop, parsed.restart, parsed.rotate, parsed.upgrade),
    )


if __name__ == "__main__":
    sys.exit(main())
