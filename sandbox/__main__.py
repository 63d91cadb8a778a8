"""`gpuwarden-sandbox`, or `python -m sandbox`: the laptop cluster for a person.

`demo` and `fleet` start one; the other commands act on a demo that stays up.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Final

import gpuwarden.telemetry.grpc_core  # noqa: F401 -- before anything imports grpc

# isort: split
from gpuwarden import __version__
from sandbox.demo.checks import CHECKS
from sandbox.demo.control import COMMANDS, NoDemoError, running_demo
from sandbox.demo.output import say
from sandbox.demo.run import run as run_demo
from sandbox.fleet.plan import Rates
from sandbox.fleet.run import EXIT_INTERRUPTED, MAX_INTERVAL_S, FleetOptions
from sandbox.fleet.run import run as run_fleet
from sandbox.nodes import simulated_nodes
from sandbox.spiffe.control import ControlError, ask

_ABOUT: Final = (
    "gpuwarden on this machine, with made-up hardware and identities. For laptops and tests:"
    " never part of an installation."
)
_DEMO: Final = "the trust path, step by step, each step checked"
_FLEET: Final = "thousands of simulated agents against one controller, and what happens to nodes"
_MIN_INTERVAL_S: Final = 0.1
_MAX_NODES: Final = 100_000
DEFAULT_RATES = Rates(drop=0.05, restart=0.02, rotate=0.05, upgrade=0.1)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parsed = parser().parse_args(arguments)
    if parsed.command in COMMANDS:
        return _act(parsed)
    try:
        if parsed.command == "demo":
            return asyncio.run(run_demo(keep=parsed.keep, only=parsed.only))
        return run_fleet(_fleet_options(parsed))
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """The arguments of all commands."""
    found = argparse.ArgumentParser(prog="gpuwarden-sandbox", description=_ABOUT)
    found.add_argument("--version", action="version", version=f"gpuwarden-sandbox {__version__}")
    commands = found.add_subparsers(dest="command", required=True)
    _add_demo(commands.add_parser("demo", help=_DEMO, description=_DEMO))
    _add_fleet(commands.add_parser("fleet", help=_FLEET, description=_FLEET))
    _add_acts(commands)
    return found


def _add_demo(demo: argparse.ArgumentParser) -> None:
    demo.add_argument("--keep", action="store_true", help="leave it running afterwards")
    demo.add_argument(
        "--only",
        action="append",
        default=[],
        choices=[check.name for check in CHECKS],
        help="run this check only; may be given several times",
    )


def _add_acts(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    for name, command in COMMANDS.items():
        about = f"{command.about}, in a demo that stays up (make demo KEEP=1)"
        added = commands.add_parser(name, help=command.about, description=about)
        if command.takes_node:
            names = [node.name for node in simulated_nodes()]
            added.add_argument("node", choices=names, help=f"one of {', '.join(names)}")
        added.add_argument("--demo", type=Path, metavar="FOLDER", help="where several stay up")


def _act(parsed: argparse.Namespace) -> int:
    node = {"node": parsed.node} if COMMANDS[parsed.command].takes_node else {}
    try:
        say(ask(running_demo(parsed.demo), parsed.command, **node))
    except (NoDemoError, ControlError, OSError) as error:
        sys.stderr.write(f"gpuwarden-sandbox: {error}\n")
        return 1
    return 0


def _add_fleet(fleet: argparse.ArgumentParser) -> None:
    fleet.add_argument("--nodes", type=_positive, default=500, help="agents (500)")
    fleet.add_argument("--seed", type=int, default=1, help="same seed, same fleet and plan (1)")
    fleet.add_argument("--seconds", type=float, default=60, help="how long things happen (60)")
    fleet.add_argument(
        "--interval",
        type=_interval,
        default=25,
        help=f"between challenges, s, at most {MAX_INTERVAL_S:g}: longer is less work (25)",
    )
    fleet.add_argument(
        "--start-rate", type=float, default=100, help="agents started a second, at most (100)"
    )
    for name, default, text in (
        ("--drop", DEFAULT_RATES.drop, "share that loses its connections per minute"),
        ("--restart", DEFAULT_RATES.restart, "share whose agent dies and starts again per minute"),
        ("--rotate", DEFAULT_RATES.rotate, "share that gets a new SVID per minute"),
        ("--upgrade", DEFAULT_RATES.upgrade, "part that gets a new driver, over the whole time"),
    ):
        fleet.add_argument(name, type=float, default=default, help=f"{text} ({default:g})")


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text[:7]) <= _MAX_NODES:
        expected = f"expected a number from 1 to {_MAX_NODES}"
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: {expected}")
    return int(text)


def _interval(text: str) -> float:
    seconds = float(text)
    if not _MIN_INTERVAL_S <= seconds <= MAX_INTERVAL_S:
        expected = f"expected seconds from {_MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g}"
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: {expected}")
    return seconds


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
