"""A fleet on a unix socket, and the CLI run inside this process against it."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.cli.app import run
from gpuwarden.cli.text import screen
from tests.fakes.fleet_server import FakeFleetServer

NOW_S = datetime(2026, 11, 27, 20, 2, tzinfo=UTC).timestamp()
"""Two minutes after the messages of the tests."""
REVOKED: dict[str, Any] = {
    "state": "revoked",
    "code": "INVENTORY_CHANGED",
    "detail": "a card was swapped",
    "fresh_for_ms": 0,
    "lost_gpu_count": 1,
    "warnings": ["clock is 40 s ahead"],
}
"""A node that was swapped, for `node_message`."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Cli = Callable[..., Ran]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FakeFleetServer]:
    with FakeFleetServer().on_socket(tmp_path / "fleet.sock") as server:
        yield server


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command line; gives exit code and both outputs."""
    for name in ("GPUWARDEN_SERVER", "GPUWARDEN_CONTROLLER_ID", "GPUWARDEN_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SPIFFE_ENDPOINT_SOCKET", raising=False)
    monkeypatch.setattr(screen, "wall_s", lambda: NOW_S)

    def ran(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run(arguments)
        written = capsys.readouterr()
        return Ran(int(code), written.out, written.err)

    return ran


@pytest.fixture
def ask(cli: Cli, fleet: FakeFleetServer) -> Cli:
    """As `cli`, against the fleet of the test."""

    def ran(*arguments: str) -> Ran:
        return cli(*arguments, "--server", fleet.target)

    return ran
