"""`python -m sandbox demo [--keep] [--only CHECK]`: the laptop cluster for a person."""

import argparse
import asyncio
import sys

from sandbox.demo.run import CHECKS, run


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m sandbox")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="the trust path, step by step, each step checked")
    demo.add_argument("--keep", action="store_true", help="leave it running afterwards")
    demo.add_argument(
        "--only",
        action="append",
        default=[],
        choices=[check.name for check in CHECKS],
        help="run this check only; may be given several times",
    )
    parsed = parser.parse_args(arguments)
    return asyncio.run(run(keep=parsed.keep, only=parsed.only))


if __name__ == "__main__":
    sys.exit(main())
