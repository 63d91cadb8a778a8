"""What the command line loads at its start: shells wait for completion, people for help."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hang import HANG_S

ROOT = Path(__file__).resolve().parents[4]
NEVER = (
    "agent",
    "aiohttp",
    "controller",
    "grpc",
    "kubernetes",
    "opentelemetry",
    "sandbox",
    "spiffe",
    "structlog",
)
"""Not where no controller is asked."""
LIGHT = (*NEVER, "asyncio", "cryptography", "google", "yaml")
"""Not where no command is run either."""
SCRIPT = """
import sys
from gpuwarden.cli.__main__ import main
try:
    main()
except SystemExit as end:
    found = {name.partition(".")[0] for name in sys.modules}
    print(end.code, *sorted(found), file=sys.stderr)
"""


def loaded(*arguments: str) -> set[str]:
    """Top-level modules after a command line that succeeds and prints something."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    code, *found = done.stderr.split()
    assert (code, bool(done.stdout)) == ("0", True)
    return set(found)


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_load_no_command(option: str) -> None:
    assert loaded(option).isdisjoint(LIGHT)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_loads_what_every_command_takes_but_nothing_that_asks(shell: str) -> None:
    assert loaded("completion", shell).isdisjoint(NEVER)


@pytest.mark.parametrize("command", ["nodes", "gpu show", "events", "doctor", "top", "version"])
def test_the_help_of_a_command_loads_nothing_that_asks(command: str) -> None:
    assert loaded(*command.split(), "--help").isdisjoint(NEVER)
