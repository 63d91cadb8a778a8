"""Commands that need no controller, and how command lines that are wrong end."""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from gpuwarden import __version__
from gpuwarden.audit.record import FORMAT, GENESIS
from gpuwarden.cli.outcome import MEANING, ExitCode
from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from tests.unit.cli.conftest import Cli


def log(count: int) -> bytes:
    """A whole log of `count` records."""
    lines, prev = [], GENESIS
    for seq in range(1, count + 1):
        line = canonical_json(
            {
                "v": FORMAT,
                "seq": seq,
                "ts": "2026-11-27T20:00:00.000Z",
                "boot": "b",
                "origin": "prod/0",
                "instance": "i",
                "kind": "log.start" if seq == 1 else "config.change",
                "actor": "a",
                "subject": "s",
                "decision": "allowed",
                "codes": [],
                "refs": {},
                "prev": prev,
            }
        )
        prev = sha256_hex(line)
        lines.append(line + b"\n")
    return b"".join(lines)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "audit-00000000000000000001.jsonl").write_bytes(log(3))
    return tmp_path


def test_a_whole_log_is_verified(cli: Cli, folder: Path) -> None:
    ran = cli("audit", "verify", str(folder))
    assert ran.code == 0
    assert "Log:          prod/0\nResult:       verified\nRecords:      3\n" in ran.out
    [found] = json.loads(cli("audit", "verify", str(folder), "-o", "json").out)
    assert found["records"] == 3
    assert found["torn"] is None
    head = cli("audit", "verify", str(folder), "-o", "name").out.strip()
    assert head == found["head"]
    assert cli("audit", "verify", str(folder), "--expect", head).code == 0


def test_a_flipped_byte_is_found(cli: Cli, folder: Path) -> None:
    [path] = folder.iterdir()
    path.write_bytes(path.read_bytes().replace(b'"actor":"a"', b'"actor":"b"', 1))
    ran = cli("audit", "verify", str(path))
    assert ran.code == 3
    assert "Result:  broken\nRecord:  1\n" in ran.out
    assert f"Where:   {path}:1\n" in ran.out


def test_a_cut_log_does_not_have_the_expected_head(cli: Cli, folder: Path) -> None:
    [path] = folder.iterdir()
    head = cli("audit", "verify", str(path), "-o", "name").out.strip()
    path.write_bytes(log(2))
    assert cli("audit", "verify", str(path)).code == 0
    assert cli("audit", "verify", str(path), "--expect", head).code == 3


def test_a_torn_tail_is_told(cli: Cli, folder: Path) -> None:
    [path] = folder.iterdir()
    path.write_bytes(log(2) + b'{"v":')
    ran = cli("audit", "verify", str(path))
    assert ran.code == 0
    assert "Torn:         5 bytes of an unfinished line at the end" in ran.out


def test_records_among_other_lines(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "collected.log"
    path.write_bytes(b"starting\n" + log(2) + b"{}\n")
    ran = cli("audit", "verify", "--collected", str(path))
    assert ran.code == 0
    assert "Log:          prod/0\n" in ran.out
    path.write_bytes(b"nothing here\n")
    ran = cli("audit", "verify", "--collected", str(path))
    assert (ran.code, ran.err) == (3, "gpuwarden: no audit records found\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("audit verify", 2, "audit verify needs a file or folder"),
        ("audit verify /nowhere", 1, "/nowhere: no such file or folder"),
        ("audit verify /nowhere --expect 1", 2, "--expect: expected SEQ:DIGEST"),
        ("nope", 2, 'Unknown command "nope"'),
        ("nodes --nope", 2, "Unknown option: --nope."),
        ("nodes -o xml", 2, "xml"),
        ("node show", 2, "requires an argument"),
        ("nodes --timeout soon", 2, "soon"),
        ("nodes --server nowhere", 2, "--server: expected unix:PATH or HOST:PORT, got 'nowhere'"),
        ("nodes --server :1", 2, "--server: expected unix:PATH or HOST:PORT"),
        ("nodes --server h:70000", 2, "--server: port 70000 is not between 1 and 65535"),
        ("nodes --server h:1", 2, "no SVID: give --svid, --key and --bundle, or --workload-api"),
        ("nodes --server h:1 --svid x", 2, "--key and --bundle missing; all three go together"),
        ("nodes --server unix:/nowhere", 5, "no controller listens at unix:/nowhere"),
        ("fit -f \x1b", 2, "--file: \\x1b: No such file or directory"),
    ],
)
def test_wrong_command_lines(cli: Cli, arguments: str, code: int, message: str) -> None:
    ran = cli(*shlex.split(arguments))
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err
    assert ran.err.startswith("gpuwarden: ")


def test_a_socket_that_nobody_serves(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "fleet.sock"
    path.touch()
    ran = cli("nodes", "--server", f"unix:{path}")
    assert ran.code == 5


def test_version(cli: Cli) -> None:
    assert cli("version").out == f"gpuwarden {__version__}, protocol 1\n"
    assert cli("version", "-o", "name").out == f"{__version__}\n"
    assert json.loads(cli("version", "-o", "json").out) == {
        "version": __version__,
        "protocol": 1,
    }


def test_help_names_every_command_and_exit_code(cli: Cli) -> None:
    ran = cli("--help")
    assert ran.code == 0
    assert "audit: Audit logs; needs no controller." in ran.out
    assert all(f"{int(code)} " in ran.out for code in ExitCode)
    assert set(MEANING) == set(ExitCode)
    assert "diff: Show where two classes differ" in cli("class", "--help").out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(cli: Cli, shell: str) -> None:
    script = cli("completion", shell).out
    assert "explain" in script
    assert "--output" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_takes_its_completion(cli: Cli) -> None:
    script = cli("completion", "bash").out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)  # noqa: S607 - the shell of the person


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


def test_the_environment_counts_unless_told_otherwise(
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
