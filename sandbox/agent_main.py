"""`python -m sandbox.agent_main`: the real agent of a simulated node.

Takes the agent's own flags, and `--proc FOLDER` in the place of `/proc`: which pod a process is of.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import gpuwarden.telemetry.grpc_core  # noqa: F401 -- before anything imports grpc

# isort: split
from agent.__main__ import main as agent_main
from agent.app import real_parts

PROGRAM: Final = "sandbox-agent"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit status."""
    parser = argparse.ArgumentParser(prog=PROGRAM, allow_abbrev=False, add_help=False)
    parser.add_argument("--proc", type=Path, required=True, metavar="FOLDER")
    own, rest = parser.parse_known_args(sys.argv[1:] if argv is None else list(argv))
    return agent_main(rest, parts=partial(real_parts, proc=own.proc))


if __name__ == "__main__":
    sys.exit(main())
