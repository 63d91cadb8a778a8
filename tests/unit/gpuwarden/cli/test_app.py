"""The command tree: help names every command, command lines that are wrong say why."""

import shlex

import pytest

from gpuwarden.cli.app import COMMANDS, build
from gpuwarden.cli.exit_codes import MEANING, ExitCode
from tests.unit.gpuwarden.cli.conftest import Cli


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("audit verify", 2, "audit verify needs a file or folder"),
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


MISSING = "/nowhere/at-all"


@pytest.mark.parametrize(
    "arguments",
    [
        f"audit verify {MISSING}",
        f"audit verify . --checkpoint {MISSING}",
        f"audit verify . --key {MISSING}",
        f"audit prove 1 {MISSING}",
        f"audit consistency 1 2 {MISSING}",
        f"audit reverify abcd --store {MISSING}",
        f"audit reverify abcd --store . --bundle {MISSING}",
        f"fit -f {MISSING}",
        f"config print --process agent --config {MISSING}",
        f"config validate --process controller --config {MISSING}",
        f"nodes --server h:1 --svid {MISSING} --key {MISSING} --bundle {MISSING}",
    ],
)
def test_a_file_that_is_missing_is_a_wrong_argument(cli: Cli, arguments: str) -> None:
    ran = cli(*shlex.split(arguments))
    assert (ran.code, ran.out) == (2, "")
    assert MISSING in ran.err


def test_help_names_every_command_and_exit_code(cli: Cli) -> None:
    ran = cli("--help")
    assert ran.code == 0
    assert "audit: Verify audit logs; needs no controller." in ran.out
    assert all(f"{int(code)} " in ran.out for code in ExitCode)
    assert set(MEANING) == set(ExitCode)
    assert "diff: Show where two classes differ" in cli("class", "--help").out


@pytest.mark.parametrize("words", ["", *COMMANDS, *(x.partition(" ")[0] for x in COMMANDS)])
def test_help_fits_a_terminal_and_has_an_example(cli: Cli, words: str) -> None:
    lines = cli(*words.split(), "--help").lines
    assert [x for x in lines if len(x.rstrip()) > 80] == []
    assert any(x.startswith(("Example: gpuwarden", "Example: source")) for x in lines)


def test_further_lines_of_an_entry_are_indented(cli: Cli) -> None:
    lines = cli("gpus", "--help").lines
    at = next(n for n, x in enumerate(lines) if x.startswith("  --state"))
    assert lines[at + 1].startswith("      ")


@pytest.mark.parametrize("words", COMMANDS)
def test_help_of_each_command_has_an_example_that_parses(cli: Cli, words: str) -> None:
    example = COMMANDS[words].example
    assert f"Example: {example}" in " ".join(cli(*words.split(), "--help").out.split())
    line = example.removeprefix("source <(").removesuffix(")")
    assert line.startswith(f"gpuwarden {words}")
    build().parse_args(shlex.split(line)[1:], exit_on_error=False, print_error=False)


def test_summaries_begin_with_a_verb() -> None:
    verbs = {command.summary.partition(" ")[0] for command in COMMANDS.values()}
    assert verbs <= {
        *("List", "Show", "Explain", "Print", "Check", "Collect"),
        *("Accept", "Quarantine", "Release", "Replay", "Verify", "Prove"),
    }
