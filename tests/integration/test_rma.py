"""The walk through a replaced card and a rebuilt node, as docs/operations-rma.md has it.

The page is run: its commands against the real programs, in its order, and what they print
is compared with what the page says. A line `…` stands for any lines; times, digests and users
differ from run to run, and with them where long lines are broken.
"""

import os
import re
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from sandbox.demo.stage import Stage
from sandbox.laptop import ROOT, Laptop
from sandbox.nodes import LEGACY, SimulatedNode, simulated_nodes
from sandbox.nvml.models import made_uuid
from tests.builders.console_commands import typed
from tests.hang import HANG_S

PAGE = ROOT / "docs" / "operations-rma.md"
HONEST = next(x for x in simulated_nodes() if x.name == LEGACY)
NEW_CARD = replace(HONEST.scenario.gpus[1], uuid=made_uuid("GPU", "new", 1), serial="1659999999999")
REPLACED = replace(HONEST.scenario, gpus=(HONEST.scenario.gpus[0], NEW_CARD))
WAIT_S = HANG_S

_VOLATILE = re.compile(
    r"v1:sha256:[0-9a-f]{64}|\d{4}-\d\d-\d\dT[\d:.]+Z|\b[0-9a-f]{16}\b|local uid \d+"
    r"|\b\d+[smhd] ago"
)
_BROKEN = re.compile(r"\n {4,}")


@dataclass(frozen=True)
class Step:
    """One command of the page with what it prints, and the heading above it."""

    section: str
    command: str
    expected: tuple[str, ...]


def steps() -> list[Step]:
    found: list[Step] = []
    section, inside = "", False
    lines: list[str] = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ") if not inside else section
        if line.startswith("```"):
            inside = line == "```console"
        elif inside and line.startswith("$ "):
            lines = []
            found.append(Step(section, line[2:], ()))
        elif inside:
            lines.append(line)
            found[-1] = Step(found[-1].section, found[-1].command, tuple(lines))
    return found


def matches(printed: str, expected: tuple[str, ...]) -> bool:
    whole = _BROKEN.sub(" ", "\n".join(expected)).split("\n")
    parts = [re.escape(_VOLATILE.sub("#", line)) if line != "…" else "…" for line in whole]
    pattern = "\n".join(parts).replace("…\n", "(?:.*\n)*?").replace("\n…", "(?:\n.*)*?")
    told = _VOLATILE.sub("#", _BROKEN.sub(" ", printed)).rstrip("\n")
    return re.fullmatch(pattern, told) is not None


class Walk:
    """The cluster of the page: one node whose hardware and Node object the test changes."""

    def __init__(self, laptop: Laptop) -> None:
        self.laptop = laptop
        self.stage = Stage(laptop)

    async def until(self, state: str, code: str = "") -> None:
        node = await self.stage.until(
            LEGACY, lambda x: (x.state, x.code) == (state, code), timeout_s=WAIT_S
        )
        assert (node.state, node.code) == (state, code), node.detail

    async def card_is_replaced(self) -> None:
        """The node is switched off, one card is replaced, and it comes back."""
        await self.until("eligible")
        await self.laptop.stop_agent(LEGACY)
        await self.laptop.start_agent(SimulatedNode(LEGACY, REPLACED))
        await self.until("quarantined", "INVENTORY_CHANGED")

    async def old_card_is_back_for_a_moment(self) -> None:
        await self.until("eligible")
        await self.laptop.stop_agent(LEGACY)
        await self.laptop.start_agent(HONEST)
        await self.until("quarantined", "INVENTORY_CHANGED")
        await self.laptop.stop_agent(LEGACY)
        await self.laptop.start_agent(SimulatedNode(LEGACY, REPLACED))

    async def node_is_made_again(self) -> None:
        """The Node object has another UID; the directory of this laptop is read at start."""
        await self.until("eligible")
        await self.laptop.stop_agent(LEGACY)
        await self.laptop.stop_controller()
        await self.laptop.start_controller((f"{LEGACY}=uid-2",))
        await self.laptop.start_agent(SimulatedNode(LEGACY, REPLACED))
        await self.until("quarantined", "NODE_UID_CHANGED")

    async def nothing(self) -> None:
        await self.until("eligible")


BEFORE: dict[str, Callable[[Walk], Awaitable[None]]] = {
    "A card was replaced": Walk.card_is_replaced,
    "The old hardware is back": Walk.old_card_is_back_for_a_moment,
    "A node was rebuilt": Walk.node_is_made_again,
    "Quarantine a node by hand": Walk.nothing,
}


@pytest.fixture
async def walk(tmp_path: Path) -> AsyncIterator[Walk]:
    laptop = Laptop(tmp_path)
    try:
        await laptop.start_controller((f"{LEGACY}=uid-1",))
        await laptop.start_agent(HONEST)
        walk = Walk(laptop)
        yield walk
        await walk.stage.close()
    finally:
        await laptop.close()


async def test_the_page_does_what_it_says(walk: Walk) -> None:
    section = ""
    for step in steps():
        if step.section != section:
            section = step.section
            await BEFORE[section](walk)
        if step.command.startswith("gpuwarden node show"):
            # After an act the page shows the node once it is back.
            await _settled(walk, step)
        status, printed = await _run(walk, step.command)
        if os.environ.get("SHOW_PAGE"):
            print(f"$ {step.command}\n{printed}")  # noqa: T201 - to write the page by
        else:
            assert matches(printed, step.expected), f"$ {step.command}\n{printed}"
            assert (status != 0) == printed.startswith("gpuwarden: "), printed
    assert {step.section for step in steps()} == set(BEFORE)
    await walk.until("eligible")
    status, printed = await walk.stage.cli("audit", "verify", str(walk.laptop.audit_folder))
    assert status == 0, printed


async def _settled(walk: Walk, step: Step) -> None:
    state = next((x.split()[1] for x in step.expected if x.startswith("State:")), None)
    if state is not None:
        node = await walk.stage.until(LEGACY, lambda x: x.state == state, timeout_s=WAIT_S)
        assert node.state == state, node.detail


async def _run(walk: Walk, command: str) -> tuple[int, str]:
    program, *arguments = shlex.split(command)
    assert program == "gpuwarden"
    return await walk.stage.cli(*arguments, "--server", walk.laptop.server)


def test_the_page_is_read_as_it_is_meant() -> None:
    assert matches("a\nb 2026-11-27T20:01:00.000Z\nc\n", ("…", "b 2020-01-01T00:00:00.000Z", "…"))
    assert matches("a 3s ago b\n    c\nd\n", ("a 12m ago", "     b c", "d"))
    assert matches("a\nb\n", ("a", "…", "b"))
    assert matches("a\nx\ny\nb\n", ("a", "…", "b"))
    assert not matches("a\nb\n", ("a",))
    assert not matches("a\nc\n", ("a", "…", "b"))
    commands = typed("docs/operations-rma.md", "gpuwarden")
    assert [x.command for x in steps()] == [f"gpuwarden {x}" for x in commands]
    assert len(commands) > 8
