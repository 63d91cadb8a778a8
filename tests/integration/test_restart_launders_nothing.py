"""Pins and denials outlive the controller: real programs, a card swapped while none looks."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from sandbox.demo.stage import Stage
from sandbox.laptop import Laptop
from sandbox.nodes import AMPERE, SimulatedNode, simulated_nodes
from sandbox.nvml.models import made_uuid
from tests.hang import HANG_S

NODE = next(x for x in simulated_nodes() if x.name == AMPERE)
SWAPPED = replace(
    NODE.scenario,
    gpus=(
        NODE.scenario.gpus[0],
        replace(NODE.scenario.gpus[1], uuid=made_uuid("GPU", "other", 1), serial="1659999999999"),
    ),
)
WAIT_S = HANG_S


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    laptop = Laptop(tmp_path)
    try:
        await laptop.start_controller((AMPERE,))
        stage = Stage(laptop)
        yield stage
        await stage.close()
    finally:
        await laptop.close()


async def test_a_restart_launders_nothing(stage: Stage) -> None:
    laptop = stage.laptop
    await laptop.start_agent(NODE)
    assert (await state(stage, "eligible")) == ("eligible", "")

    await laptop.stop_controller()
    laptop.show(AMPERE, SWAPPED)
    await laptop.stop_agent(AMPERE)
    await laptop.start_controller((AMPERE,))
    await laptop.start_agent(SimulatedNode(AMPERE, SWAPPED))
    assert await state(stage, "quarantined") == ("quarantined", "INVENTORY_CHANGED")

    laptop.show(AMPERE, NODE.scenario)
    await laptop.stop_controller()
    await laptop.start_controller((AMPERE,))
    node = await stage.node(AMPERE)
    assert (node.state, node.code) == ("quarantined", "INVENTORY_CHANGED")
    assert made_uuid("GPU", "other", 1) in node.detail
    status, refused = await stage.cli("explain", "node", AMPERE, "--server", laptop.server)
    assert status == 0
    assert f"{AMPERE} is quarantined: INVENTORY_CHANGED, " in refused
    assert "ago by the controller" in " ".join(refused.split())


async def state(stage: Stage, wanted: str) -> tuple[str, str]:
    node = await stage.until(AMPERE, lambda x: x.state == wanted, timeout_s=WAIT_S)
    return node.state, node.code
