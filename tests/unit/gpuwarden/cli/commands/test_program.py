"""`version` and `completion`."""

import json
import shutil
import subprocess

import pytest

from gpuwarden import __version__
from tests.unit.gpuwarden.cli.conftest import Cli


def test_version(cli: Cli) -> None:
    assert cli("version").out == f"gpuwarden {__version__}, protocol 1\n"
    assert cli("version", "-o", "name").out == f"{__version__}\n"
    assert json.loads(cli("version", "-o", "json").out) == {
        "version": __version__,
        "protocol": 1,
    }


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(cli: Cli, shell: str) -> None:
    script = cli("completion", shell).out
    assert "explain" in script
    assert "--output" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_takes_its_completion(cli: Cli) -> None:
    script = cli("completion", "bash").out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)  # noqa: S607 - the shell of the person
