"""A fleet fits below the limit of open files, or says what would; the soft limit is raised."""

import resource
import subprocess
import sys

import pytest

from sandbox.fleet.process import (
    MAX_NODES,
    PER_NODE,
    SPARE,
    TooFewDescriptorsError,
    processes_for,
)
from sandbox.laptop import ROOT
from tests.hang import HANG_S

PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
from sandbox.__main__ import main
sys.exit(main(sys.argv[3:]))
"""
RAISED = """
import resource
from sandbox.fleet.process import raise_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("nodes", "limit", "processes"),
    [(1, 20_000, 1), (2000, 20_000, 1), (2001, 20_000, 2), (5000, 20_000, 3), (5000, 1 << 20, 3)],
)
def test_a_high_limit_leaves_the_event_loops_to_decide(
    nodes: int, limit: int, processes: int
) -> None:
    assert processes_for(nodes, limit) == processes


def test_below_a_low_limit_no_process_gets_more_nodes_than_it_can_open() -> None:
    processes = processes_for(1000, 4096)
    most = -(-1000 // processes)
    assert most * PER_NODE + SPARE <= 4096
    assert most < MAX_NODES


def test_what_does_not_fit_names_the_limit_and_what_would() -> None:
    with pytest.raises(TooFewDescriptorsError, match=r"5000 nodes .* allows 4096 .* most 1920 "):
        processes_for(5000, 4096)
    assert processes_for(1920, 4096)


def test_the_program_ends_at_once_where_the_limit_is_too_low() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "256", "512", "fleet", "--nodes", "500"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("fleet: FAILED: 500 nodes need 1256 open files")


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RAISED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert done.stdout.split() == ["300", "300", "300"]
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 300
