"""Which way to a controller counts where several are possible."""

from pathlib import Path
from typing import Any

import pytest

from gpuwarden.cli.connection import options
from gpuwarden.cli.connection.options import DEFAULT_SERVER, Connection, chosen_server
from gpuwarden.cli.exit_codes import CliError, ExitCode


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workstation: no socket, and a kubeconfig."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(options, "DEFAULT_SERVER", f"unix:{tmp_path / 'fleet.sock'}")
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("{}")
    return tmp_path


def chosen(**given: Any) -> str:
    return chosen_server(Connection(**given))


def test_a_server_that_is_named_counts() -> None:
    assert chosen(server="unix:/x") == "unix:/x"
    assert chosen(server="c:9443", workload_api="unix:///w") == "c:9443"


def test_a_kubeconfig_is_taken_where_nothing_else_is_there() -> None:
    assert chosen() == ""


def test_a_kubeconfig_that_is_named_counts_more_than_the_socket(machine: Path) -> None:
    (machine / "fleet.sock").touch()
    assert chosen() == options.DEFAULT_SERVER
    assert chosen(context="home") == ""
    assert chosen(kubeconfig=Path("x")) == ""


@pytest.mark.parametrize(
    "given",
    [
        {"svid": Path("x")},
        {"key": Path("x")},
        {"bundle": Path("x")},
        {"workload_api": "unix:///w"},
    ],
)
def test_with_a_spiffe_setting_the_kubeconfig_does_not_count(given: Any) -> None:
    assert chosen(**given) == options.DEFAULT_SERVER


def test_without_a_kubeconfig_it_is_the_socket(machine: Path) -> None:
    (machine / ".kube" / "config").unlink()
    assert chosen() == options.DEFAULT_SERVER
    assert DEFAULT_SERVER == "unix:/run/gpuwarden/fleet.sock"


@pytest.mark.parametrize("given", [{"context": "home"}, {"kubeconfig": Path("x")}])
def test_two_ways_at_once_are_an_error(given: Any) -> None:
    with pytest.raises(CliError, match="give one of --server") as found:
        chosen(server="c:9443", **given)
    assert found.value.code is ExitCode.USAGE
