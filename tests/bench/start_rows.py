"""The command line from its start to its end, beside Python itself and Python that loads gRPC.

Processor time of the whole process, which other work on the machine changes little. The three take
turns; what counts is the least of each.
"""

import subprocess
import sys
from resource import RUSAGE_CHILDREN, getrusage
from typing import Final

from tests.bench.child import ROOT
from tests.bench.results import Bound, Goal, Row

GROUP: Final = "Command line, from start to end"
_TURNS: Final = 15
_CLI: Final = ("-m", "gpuwarden.cli")
_ALONE: Final = ("-c", "pass")
_GRPC: Final = ("-c", "import grpc.aio")
_COMMANDS: Final = (
    ("`gpuwarden --version`", (*_CLI, "--version"), 2.5),
    ("`gpuwarden nodes --help`", (*_CLI, "nodes", "--help"), 4.5),
    ("`gpuwarden completion bash`", (*_CLI, "completion", "bash"), 9.0),
)
"""And at most how many imports of gRPC each may cost."""


def start_rows() -> list[Row]:
    """Each command beside `python -c pass` and beside the import of gRPC, in one run."""
    rows = []
    for work, arguments, most in _COMMANDS:
        ours, alone, grpc = _least(arguments, _ALONE, _GRPC)
        rows += [
            Row(GROUP, work, "ms CPU", ours, alone, "`python -c pass`"),
            Row(
                GROUP,
                "the same, beside a load of gRPC",
                "ms CPU",
                ours,
                grpc,
                "`import grpc.aio`",
                Goal(Bound.AT_MOST, most),
            ),
        ]
    return rows


def _least(*programs: tuple[str, ...]) -> list[float]:
    """Milliseconds of each program; the first turn, which may compile modules, does not count."""
    turns = [[_milliseconds(x) for x in programs] for _ in range(_TURNS + 1)]
    return [min(x) for x in zip(*turns[1:], strict=True)]


def _milliseconds(arguments: tuple[str, ...]) -> float:
    before = _used_s()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return (_used_s() - before) * 1000


def _used_s() -> float:
    """By children that have ended."""
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
