"""What a demo that stays up prints to try, run as printed by a shell, and what comes of it."""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sandbox.demo.control import COMMANDS
from sandbox.demo.output import WIDTH
from sandbox.demo.pods import WAITING
from sandbox.install import write_launchers
from sandbox.nvml.build import ROOT
from tests.builders.console_commands import typed, words
from tests.fakes.kept_demo import RunningDemo, environment, running_demo
from tests.hang import HANG_S

FINDING = 3
LAST = "    gpuwarden.wire"
"""How the last line of the list begins: the method in grpcurl's command."""
GOES_WRONG = {"gpuwarden audit verify": FINDING, "gpuwarden why": FINDING}
"""By beginning; every other command ends well."""
SAYS = {
    "gpuwarden-sandbox swap-gpu": r"legacy-0 shows another .* quarantined \(INVENTORY_CHANGED\)",
    "gpuwarden-sandbox restore-gpu": r"shows its own .* quarantined \(INVENTORY_CHANGED\)",
    "gpuwarden-sandbox ban": r"revoked \(SPIRE_AGENT_BANNED\)",
    "gpuwarden-sandbox unban": r"attested again; .* eligible$",
    "gpuwarden-sandbox stop-agent": r"stale \(NODE_STALE\)",
    "gpuwarden-sandbox start-agent": r"has started; .* eligible$",
    "gpuwarden-sandbox tamper-evidence": r"the verdict: SIG_INVALID$",
    "gpuwarden-sandbox tamper-log": r"one byte of record \d+ is changed",
    "gpuwarden audit verify": "changed after it was written",
    "gpuwarden explain node legacy-0": "INVENTORY_CHANGED",
    "gpuwarden explain node ampere-0": "NODE_STALE",
    "gpuwarden node release": "released from quarantine",
    "gpuwarden top": r"legacy-0 eligible 2 1 1 0 0 0",
    "gpuwarden reservations": r"default notebook Confirmed ampere-0 .* MIG-",
    "gpuwarden use": r"unreserved_use hopper-0 GPU-\S+ \S+ process of the host",
    "gpuwarden explain pod": r"default/notebook",
    "gpuwarden why": r"research/protein-0: waits: 2 of 3 nodes reject it with GPU_NO_MATCH",
    "grep": r'"node": ?"hopper-0"',
    "curl -sk": r'"grouped-by":"class"|"name":"hopper-0"',
    "curl -s -H": r'"NodeNames": ?\["hopper-0"',
}
"""What a command must have said, by its beginning."""


OF_THE_README = {"pod.yaml": "examples/pod.yaml", "team-a/train-0": WAITING}
"""What stands there for one's own."""


@dataclass(frozen=True, slots=True)
class Tried:
    command: str
    status: int
    said: str


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A checkout as `make demo` leaves it: its launchers, and the rest of this one."""
    made = Path(tempfile.mkdtemp(prefix="d"))
    programs = made / "checkout/.venv/bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (programs / "python").chmod(0o755)
    write_launchers(programs)
    for name in ("examples", "proto"):
        (made / "checkout" / name).symlink_to(ROOT / name)
    (made / "tmp").mkdir()
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def demo(folder: Path) -> Iterator[RunningDemo]:
    with running_demo(folder / "tmp", "--keep", "--only=inventory") as running:
        running.until(LAST)
        yield running


def printed(demo: RunningDemo) -> list[str]:
    """The commands, each on one line."""
    lines = demo.lines[demo.lines.index("It stays up until Ctrl-C.") :]
    text = "\n".join(line[2:] for line in lines if line.startswith("  "))
    return re.sub(r"\\\n\s*", "", text).splitlines()


def exports_of(demo: RunningDemo) -> list[str]:
    return [line for line in printed(demo) if line.startswith("export ")]


@pytest.fixture(scope="module")
def tried(demo: RunningDemo, folder: Path) -> list[Tried]:
    """Each printed command in turn, as in one shell."""
    exports = exports_of(demo)
    commands = [line for line in printed(demo) if line not in exports]
    return [
        attempt(command, exports, folder)
        for command in commands
        if shutil.which(command.split()[0]) or command.startswith("gpuwarden")
    ]


def attempt(command: str, exports: list[str], folder: Path) -> Tried:
    run = subprocess.run(
        ["/bin/sh", "-c", "\n".join([*exports, command])],
        cwd=folder / "checkout",
        env={**environment(folder / "tmp"), "PYTHONPATH": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    return Tried(command, run.returncode, run.stdout)


def test_the_list_has_every_command_of_the_sandbox(demo: RunningDemo) -> None:
    names = {x.split()[1] for x in printed(demo) if x.startswith("gpuwarden-sandbox ")}
    assert names == set(COMMANDS)
    assert {"fit", "nodes", "gpus"} <= {x.split()[1] for x in printed(demo)}


def test_the_page_s_commands_are_of_the_list(demo: RunningDemo) -> None:
    """What the page leaves out, `--yes`, answers a question."""
    listed = [words(x) for x in printed(demo) if x.startswith("gpuwarden ")]
    commands = [["gpuwarden", *words(x)] for x in typed("docs/demo.md", "gpuwarden")]
    assert commands
    for command in commands:
        assert any(x[: len(command)] == command for x in listed), command
    exports = [x.partition("=")[0] for x in typed("docs/demo.md", "export")]
    assert exports == [x.split()[1].partition("=")[0] for x in exports_of(demo)]


def test_the_commands_of_the_readme_end_well(
    demo: RunningDemo, tried: list[Tried], folder: Path
) -> None:
    """After the others, which change what is there. That the pod waits is a finding.

    `doctor` needs a cluster.
    """
    del tried
    commands = [x for x in typed("README.md", "gpuwarden") if not x.startswith("doctor")]
    found = [[OF_THE_README.get(x, x) for x in words(y)] for y in commands]
    ends = [
        attempt(shlex.join(("gpuwarden", *command)), exports_of(demo), folder) for command in found
    ]
    assert len(ends) > 3
    wrong = [x for x in ends if x.status != (FINDING if WAITING in x.command else 0)]
    assert wrong == []


def test_every_command_ends_as_it_should(tried: list[Tried]) -> None:
    ends = {x.command: x.status for x in tried}
    assert len(ends) > len(COMMANDS)
    for command, status in ends.items():
        wanted = next((x for name, x in GOES_WRONG.items() if command.startswith(name)), 0)
        assert status == wanted, next(x for x in tried if x.command == command)


@pytest.mark.parametrize("beginning", SAYS)
def test_a_command_says_what_came_of_it(tried: list[Tried], beginning: str) -> None:
    said = [" ".join(x.said.split()) for x in tried if x.command.startswith(beginning)]
    if not said and beginning.startswith("curl") and shutil.which("curl") is None:
        pytest.skip("no curl here")
    assert said
    assert [x for x in said if not re.search(SAYS[beginning], x)] == []


def test_the_examples_pod_fits_two_nodes_and_one_less_in_quarantine(tried: list[Tried]) -> None:
    before, after = (x.said for x in tried if x.command == "gpuwarden fit -f examples/pod.yaml")
    assert re.search(r"^hopper-0 +yes", before, re.MULTILINE)
    assert re.search(r"^legacy-0 +yes", before, re.MULTILINE)
    assert re.search(r"^ampere-0 +no .*NODE_MODE", before, re.MULTILINE)
    assert re.search(r"^hopper-0 +no .*NODE_QUARANTINED", after, re.MULTILINE)
    assert re.search(r"^legacy-0 +yes", after, re.MULTILINE)


@pytest.mark.parametrize(
    ("example", "places"),
    [
        ("statefulset", {"shard-0 hopper-0", "shard-1 legacy-0"}),
        ("deployment", {"hopper-0", "legacy-0"}),
        ("job", {"hopper-0", "legacy-0"}),
        ("reservation", {"ampere-0"}),
    ],
)
def test_every_other_example_fits_where_its_head_says(
    tried: list[Tried], example: str, places: set[str]
) -> None:
    command = f"gpuwarden fit -f examples/{example}.yaml"
    (found,) = (x for x in tried if x.command == command)
    assert found.status == 0
    fitting = re.findall(r"^(\S.*?) +yes", found.said, re.MULTILINE)
    assert {" ".join(x.split()) for x in fitting} == places


def test_nothing_is_wider_than_a_terminal(demo: RunningDemo, tried: list[Tried]) -> None:
    acts = "".join(x.said for x in tried if x.command.startswith("gpuwarden-sandbox"))
    said = acts.splitlines()
    assert said
    assert [line for line in (*demo.lines, *said) if len(line) > WIDTH] == []


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("swap-gpu", "nope-0"), 2, "invalid choice: 'nope-0'"),
        (("start-agent", "hopper-0"), 1, "the agent of hopper-0 runs"),
        (("swap-gpu", "hopper-0", "--demo", "/nowhere"), 1, "no demo stays up in /nowhere"),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(
    demo: RunningDemo, folder: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    del demo
    run = attempt(" ".join((".venv/bin/gpuwarden-sandbox", *arguments)), [], folder)
    assert run.status == status
    assert said in " ".join(run.said.split())
