"""The command tree: help names every command, command lines that are wrong say why."""

import shlex

import pytest

from gpuwarden.cli.app import COMMANDS, build, program_of, run
from gpuwarden.cli.exit_codes import MEANING, ExitCode
from tests.builders.console_commands import typed
from tests.unit.gpuwarden.cli.conftest import Cli, Terminal


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("audit verify", 2, "audit verify needs a file or folder"),
        ("audit begin-new /nowhere", 2, "/nowhere: no such file or folder"),
        ("audit verify /nowhere --expect 1", 2, "--expect: expected SEQ:DIGEST"),
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


ONLY_OPTIONS = "unexpected argument '/x'; expected only options such as"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("frobnicate", "unknown command 'frobnicate'"),
        ("ndoes", "unknown command 'ndoes'; did you mean nodes?"),
        ("explain pdo", "unknown command 'pdo'; did you mean pod?"),
        ("nodes --nope", "unknown option '--nope'"),
        ("nodes --sttae stale", "unknown option '--sttae'; did you mean --state?"),
        ("nodes -o xml", "-o: expected one of table, wide, json, yaml, name, got 'xml'"),
        ("nodes --timeout soon", "--timeout: expected a number, got 'soon'"),
        ("events --last x", "--last: expected a whole number, got 'x'"),
        ("nodes --watch=3", "--watch: expected no value, got '3'"),
        (
            "export replay ftp --reason x",
            "EXPORTER: expected one of stdout, http, postgres, s3, got 'ftp'",
        ),
        ("node show", "NODE is required"),
        ("node accept a", "--reason is required"),
        ("nodes --state", "--state: expected a value"),
        ("events --last 3 --last 4", "--last: expected once, got more"),
        (
            "node show a b",
            "unexpected argument 'b'; expected only NODE and options such as --output",
        ),
        (
            "config validate /x",
            f"{ONLY_OPTIONS} --process, --config, --set, --environment",
        ),
    ],
)
def test_wrong_arguments_are_named_with_what_was_expected(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str
) -> None:
    """On one line, and within a terminal."""
    ran = cli(*shlex.split(arguments))
    fault, see = ran.err.splitlines()
    assert (ran.code, ran.out, fault) == (2, "", f"gpuwarden: {message}")
    words = [x for x in arguments.split()[:2] if x in see]
    assert see == f"See {' '.join(('gpuwarden', *words))} --help."
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", terminal)
        cli(*shlex.split(arguments))
    assert max(map(len, terminal.getvalue().splitlines())) <= 80
    assert " ".join(terminal.getvalue().split()) == " ".join(ran.err.split())


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
    assert "audit: Verify audit logs, or begin a new one; needs no controller." in ran.out
    assert all(f"{int(code)} " in ran.out for code in ExitCode)
    assert set(MEANING) == set(ExitCode)
    assert "diff: Show where two classes differ" in cli("class", "--help").out


@pytest.mark.parametrize("words", ["", *COMMANDS, *(x.partition(" ")[0] for x in COMMANDS)])
def test_help_fits_a_terminal_and_has_an_example(cli: Cli, words: str) -> None:
    lines = cli(*words.split(), "--help").lines
    assert [x for x in lines if len(x.rstrip()) > 80] == []
    assert any(x.startswith(("Example: gpuwarden", "Example: source")) for x in lines)


@pytest.mark.parametrize(
    ("started", "program"),
    [
        ("/home/me/.local/bin/kubectl-gpuwarden", "kubectl gpuwarden"),
        ("C:/bin/kubectl-gpuwarden.exe", "kubectl gpuwarden"),
        ("/usr/bin/gpuwarden", "gpuwarden"),
    ],
)
def test_a_plugin_is_called_as_it_was_started(
    capsys: pytest.CaptureFixture[str], started: str, program: str
) -> None:
    name = program_of(started)
    for words, usage in (("", ""), ("node", " node"), ("node show", " node show")):
        assert run([*words.split(), "--help"], program=name) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"Usage: {program}{usage} ")
        assert any(x.startswith(f"Example: {program} node") for x in lines)
        assert [x for x in lines if len(x) > 80] == []
    assert run(["node", "show"], program=name) == 2
    assert f"See {program} node show --help." in capsys.readouterr().err


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


def test_the_commands_of_the_page_parse() -> None:
    page = "docs/reference/cli.md"
    (completion,) = typed(page, "source")
    asked = [completion.strip("<()").removeprefix("gpuwarden "), *typed(page, "gpuwarden")]
    assert len(asked) > len(COMMANDS)
    for line in asked:
        build().parse_args(shlex.split(line), exit_on_error=False, print_error=False)


def test_summaries_begin_with_a_verb() -> None:
    verbs = {command.summary.partition(" ")[0] for command in COMMANDS.values()}
    assert verbs <= {
        *("List", "Show", "Explain", "Print", "Check", "Collect", "Run"),
        *("Accept", "Quarantine", "Release", "Replay", "Verify", "Prove", "Begin"),
    }
