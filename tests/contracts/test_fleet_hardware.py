"""What the simulated fleet attests is what an agent would read from the stand-in library."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from sandbox.fleet.hardware import reading_of
from sandbox.nvml.models import (
    A100_1G,
    A100_3G,
    a100_mig,
    gb10,
    gb200,
    geforce,
    h100_sxm,
    h200_passthrough,
    made_uuid,
)
from sandbox.nvml.scenario import FakeGpu, FakeMig
from tests.fakes.nvml_node import HOST, NvmlNode

NAMELESS_MIG = msgspec.structs.replace(
    a100_mig(0, "n"),
    mig=(FakeMig(uuid=made_uuid("MIG", "m", 1), gpu_slices=2, compute_slices=1, memory_mb=9856),),
)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NvmlNode]:
    node = NvmlNode(tmp_path / "scenario")
    yield node
    await node.aclose()


@pytest.mark.parametrize(
    "gpus",
    [
        tuple(h100_sxm(n) for n in range(8)),
        tuple(gb200(n) for n in range(4)),
        (a100_mig(0, "a", A100_3G, A100_1G), a100_mig(1, "b")),
        (NAMELESS_MIG,),
        (geforce(1), geforce(0, serial="N/A")),
        (gb10(),),
        (h200_passthrough(0),),
        (),
    ],
    ids=["h100", "gb200", "mig", "mig-without-names", "geforce", "gb10", "passthrough", "none"],
)
@pytest.mark.parametrize("fields", [{"cuda": 12080}, {"cc_feature": None}, {"cc_dev_tools": 1}])
async def test_the_reading_is_the_one_that_the_agent_makes(
    node: NvmlNode, gpus: tuple[FakeGpu, ...], fields: dict[str, int | None]
) -> None:
    node.shows(*gpus, **fields)
    assert reading_of(node.scenario, HOST) == await node.source().read()
