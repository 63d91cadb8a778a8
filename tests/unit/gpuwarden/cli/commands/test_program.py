"""`version` and `completion`."""

import json
import shlex
import shutil
import subprocess
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
from cyclopts import MissingArgumentError

from gpuwarden import __version__
from gpuwarden.cli.app import COMMANDS, build, run
from gpuwarden.cli.completion import ARGUMENTS, OPTIONS, WHOLE
from tests.unit.gpuwarden.cli.conftest import Cli


@cache
def completion(shell: str) -> str:
    """The script, written once: it takes a second."""
    with redirect_stdout(StringIO()) as said:
        assert run(("completion", shell)) == 0
    return said.getvalue()


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"gpuwarden {__version__}, protocol 1\n"
    assert cli("version").out == f"gpuwarden {__version__}, protocol 1\n"
    assert cli("version", "-o", "name").out == f"{__version__}\n"
    assert json.loads(cli("version", "-o", "json").out) == {
        "version": __version__,
        "protocol": 1,
    }


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_commands(shell: str) -> None:
    script = completion(shell)
    assert "explain" in script
    assert "--output" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_takes_its_completion() -> None:
    subprocess.run(["bash", "-n"], input=completion("bash"), text=True, check=True)  # noqa: S607 - the shell of the person


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("line", "asked", "completed"),
    [
        ("gpuwarden node show gpu-", "nodes", ["gpu-a1", "gpu-b1"]),
        ("gpuwarden node release gpu-b", "nodes", ["gpu-b1"]),
        ("gpuwarden explain node x", "nodes", []),
        ("gpuwarden gpus --node gpu-a", "nodes", ["gpu-a1"]),
        ("gpuwarden nodes --class gpu-a", "classes", ["gpu-a1"]),
        ("gpuwarden class diff gpu-a1 gpu-b", "classes", ["gpu-b1"]),
        ("gpuwarden reservation release gpu-a", "gpus", ["gpu-a1"]),
        ("gpuwarden why gpu-b", "reservations --pods", ["gpu-b1"]),
        ("gpuwarden gpu show gpu-a", "gpus", ["gpu-a1"]),
        ("gpuwarden explain pod gpu-b", "reservations --pods", ["gpu-b1"]),
        ("gpuwarden reservation release --pod gpu-b", "reservations --pods", ["gpu-b1"]),
        ("gpuwarden node show $", "nodes", [r"\$\(touch\ %s\)"]),
        ("gpuwarden node show gpu-a1 gpu-", "", []),
        ("gpuwarden node sh", "", ["show"]),
        ("gpuwarden node show --ser", "", ["--server"]),
    ],
)
def test_bash_completes_names_that_the_controller_knows(
    tmp_path: Path, line: str, asked: str, completed: list[str]
) -> None:
    script, touched, log = completion("bash"), tmp_path / "touched", tmp_path / "log"
    words = line.split(" ")
    names = f"gpu-a1\ngpu-b1\n$(touch {touched})"
    fake = f"""gpuwarden() {{
  echo "$*" | sed 's/ -o name --timeout 2$//' > {log}
  echo trouble >&2
  printf '%s\\n' {shlex.quote(names)}
}}"""
    code = f"""
{script}
{fake}
COMP_WORDS=({" ".join(map(shlex.quote, words))}) COMP_CWORD={len(words) - 1}
$(complete -p gpuwarden | sed 's/.*-F \\([a-z_]*\\).*/\\1/')
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    ran = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)  # noqa: S607 - the shell of the person
    wanted = [x.replace("%s", str(touched)) for x in completed]
    assert ran.stderr == ""
    assert ran.stdout.split("\n")[:-1] == (wanted or [""])
    assert (log.read_text().strip() if log.exists() else "") == asked
    assert not touched.exists()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_ask_the_same_lists(shell: str) -> None:
    script = completion(shell)
    assert "-o name --timeout 2 </dev/null 2>/dev/null" in script
    for words in (*ARGUMENTS, "--node" if shell == "zsh" else "-l node"):
        assert words in script


def test_every_command_that_names_something_is_completed() -> None:
    for words, of in ARGUMENTS.items():
        assert {words, of.partition(" ")[0]} <= COMMANDS.keys()
    for word, of in WHOLE.items():
        assert {word, of.partition(" ")[0]} <= COMMANDS.keys()
        assert " " not in word
    for name, (of, commands) in OPTIONS.items():
        assert of.partition(" ")[0] in COMMANDS
        for words in commands:
            line = [*words.split(), f"--{name}", "x"]
            with suppress(MissingArgumentError):  # of what else the command needs
                build().parse_args(line, exit_on_error=False, print_error=False)
