"""An evaluation with real programs: it says so everywhere, and no other takes its agents."""

import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from sandbox.demo.stage import ANNOTATION, Stage, pod
from sandbox.evaluation import scenario
from sandbox.laptop import Laptop
from sandbox.nodes import HOPPER, SimulatedNode, simulated_nodes
from tests.fakes.eventually import eventually
from tests.hang import HANG_S

NODE = SimulatedNode(HOPPER, scenario(HOPPER))
REAL = next(x for x in simulated_nodes() if x.name == HOPPER)
"""The same node with GPUs as production sees them."""
WARNING = (
    "EVALUATION (evaluation.enabled): GPUs may be made up and nothing is proven; every node has"
    " level none; never use this in production"
)
BANNER = f"*** {WARNING} ***\n"


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    laptop = Laptop(tmp_path, confirmed=True, evaluation=True, console=True)
    try:
        await laptop.start_controller((HOPPER,))
        stage = Stage(laptop)
        yield stage
        await stage.close()
    finally:
        await laptop.close()


async def got(address: str, path: str) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}{path}") as answer,
    ):
        return await answer.text()


async def of_the_api(laptop: Laptop, path: str, name: str) -> Any:
    roots = "".join(
        x.certificate.public_bytes(Encoding.PEM).decode() for x in laptop.workload_api.roots
    )
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=roots))
    port = laptop.addresses.api.rpartition(":")[2]
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"https://localhost:{port}{path}") as answer,
    ):
        return (await answer.json())[name]


async def test_it_says_so_everywhere_and_production_refuses_its_agents(stage: Stage) -> None:
    laptop = stage.laptop
    await laptop.start_agent(NODE)
    node = await stage.until(HOPPER, lambda x: x.state == "eligible", timeout_s=HANG_S)
    assert (node.level, node.driver) == ("none", "570.86.10+evaluation")

    async def deciding() -> bool | None:
        return not await stage.not_ready() or None

    await eventually(deciding, "the controller decides")

    for command in (("status",), ("node", "show", HOPPER, "-o", "json")):
        status, printed = await stage.cli(*command, "--server", laptop.server)
        assert status == 0, printed
        assert printed.count(BANNER) == 1, printed
    ops = laptop.addresses.ops
    assert WARNING in json.loads(await got(ops, "/readyz"))["warnings"]
    assert "gpuwarden_evaluation 1.0" in await got(ops, "/metrics")
    assert await of_the_api(laptop, "/v1/status", "evaluation") is True
    passed, _ = await stage.filter(pod({ANNOTATION: node.attestation_hash}))
    assert passed == [HOPPER]
    started = next(x for x in stage.records() if x["subject"] == "settings")
    assert WARNING in started["refs"]["insecure"]

    await laptop.stop_controller()
    laptop.evaluation = False
    await laptop.start_controller((HOPPER,))
    node = await stage.until(
        HOPPER, lambda x: x.code not in {"", "NODE_NO_EVIDENCE"}, timeout_s=HANG_S
    )
    assert (node.state, node.code) == ("refused", "INVENTORY_MADE_UP")
    status, printed = await stage.cli("nodes", "--server", laptop.server)
    assert (status, "***" in printed) == (0, False)

    await laptop.stop_agent(HOPPER)
    laptop.stand_in = False
    await laptop.start_agent(REAL)
    node = await stage.until(HOPPER, lambda x: x.state == "quarantined", timeout_s=HANG_S)
    assert node.code == "INVENTORY_CHANGED", "the evaluation enrolled GPUs that are not there"
