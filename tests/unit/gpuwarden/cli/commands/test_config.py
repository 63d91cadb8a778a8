"""`config print|validate|schema`: what the processes would start with."""

import json
from pathlib import Path

import pytest
import yaml

from tests.unit.gpuwarden.cli.conftest import Cli

AGENT = ("--process", "agent", "--set", "trustDomain=example.org", "--set", "cluster=prod")
MORE = ("--set", "workloadApi=unix:///x", "--set", "agent.nodeName=n1")


def test_a_configuration_is_printed_with_its_sources(cli: Cli) -> None:
    ran = cli("config", "print", *AGENT, *MORE)
    assert 'trustDomain: "example.org"  # flag --set trustDomain\n' in ran.out
    found = json.loads(cli("config", "print", *AGENT, *MORE, "-o", "json").out)
    assert found["agent.nodeName"] == {"value": "n1", "source": "flag --set agent.nodeName"}
    assert "agent.nodeName\n" in cli("config", "print", *AGENT, *MORE, "-o", "name").out


def test_a_valid_configuration(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(cli("config", "print", *AGENT, *MORE).out)
    ran = cli("config", "validate", "--process", "agent", "--config", str(path))
    assert (ran.code, ran.out) == (0, "AgentConfig: valid\n")


def test_a_wrong_configuration_names_every_finding(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text("apiVersion: config.gpuwarden.dev/v1alpha1\nkind: AgentConfig\nnope: 1\n")
    ran = cli("config", "validate", "-f", str(path), *AGENT, "--no-environment")
    assert ran.code == 2
    assert "nope" in ran.err
    assert "agent.nodeName: got nothing" in ran.err
    assert cli("config", "validate", *AGENT, "--set", "x").code == 2
    assert cli("config", "validate", *AGENT, "-f", "/nowhere").code == 2


def test_the_environment_counts_unless_switched_off(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUWARDEN_CLUSTER", "from-environment")
    monkeypatch.setenv("GPUWARDEN_SERVER", "unix:/x")
    base = ("config", "print", "--process", "agent", "--set", "trustDomain=a", *MORE, "-o", "json")
    assert json.loads(cli(*base).out)["cluster"]["value"] == "from-environment"
    ran = cli(*base, "--no-environment")
    assert ran.code == 2
    assert "cluster: got nothing" in ran.err


@pytest.mark.parametrize("process", ["agent", "controller"])
def test_the_schema_of_a_configuration(cli: Cli, process: str) -> None:
    found = json.loads(cli("config", "schema", "--process", process).out)
    assert found["properties"]["kind"]["const"].lower() == f"{process}config"
    assert yaml.safe_load(cli("config", "schema", "--process", process, "-o", "yaml").out) == found
