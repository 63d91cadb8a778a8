"""Every NVML call with every return code: what it costs is what the table says, and no more.

The stand-in answers with the code, the agent reads, the Verifier appraises. One bad card is one
bad card: whatever it answers, the other GPUs of the node stay placeable.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import msgspec
import pynvml
import pytest

from agent.gpu.consequences import ROWS, Consequence, consequence
from agent.gpu.facts import DriverReloadedError
from agent.gpu.nvml import error_name
from agent.gpu.reading import InventoryReading
from agent.gpu.source import NvmlInventorySource
from controller.fleet.attestation_result import Accepted, Refused
from gpuwarden.evidence.model import Gpu
from gpuwarden.reasons import ReasonCode
from sandbox.nvml.models import A100_1G, a100_mig, gb200, h100_sxm
from sandbox.nvml.scenario import CALLS, FakeGpu, FakeLink
from tests.builders.ca import SpiffeCa
from tests.builders.evidence import WALL, Scene
from tests.fakes.nvml_node import NvmlNode

BAD: Final = 1
"""Which of the two GPUs answers with the code."""

CODES: Final = sorted(
    {
        value
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_ERROR_") and isinstance(value, int)
    }
    | {77}
)
"""All of the binding, and one that it does not know."""

BINDING: Final = {
    "nvmlDeviceGetCount_v2": "nvmlDeviceGetCount",
    "nvmlDeviceGetHandleByIndex_v2": "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2": "nvmlDeviceGetNvLinkRemotePciInfo",
}
"""The binding's name of a call, where the library's is another."""

NOT_ASKED: Final = {"nvmlSystemGetNVMLVersion", "nvmlDeviceGetIndex"}
"""Calls of the stand-in that the agent does not make."""

OF_THE_HOST: Final = {
    "nvmlInitWithFlags",
    "nvmlShutdown",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlSystemGetConfComputeState",
    "nvmlSystemGetConfComputeSettings",
    "nvmlDeviceGetCount_v2",
    "nvmlEventSetCreate",
    "nvmlEventSetWait_v2",
    "nvmlEventSetFree",
}
OF_A_GPU: Final = sorted(CALLS - OF_THE_HOST - NOT_ASKED)

OLDER: Final = {
    "nvmlSystemGetConfComputeState": "nvmlSystemGetConfComputeSettings",
    "nvmlDeviceGetMemoryInfo": "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetGpuFabricInfo": "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetComputeRunningProcesses_v2": "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v2": "nvmlDeviceGetGraphicsRunningProcesses_v3",
}
"""Calls that are made only where a newer one is not there."""

FUNCTION_NOT_FOUND: Final = 13
CA: Final = SpiffeCa(at=WALL)


def few_links(gpu: FakeGpu) -> FakeGpu:
    """Fewer calls, so that a table of some thousand readings is soon through."""
    links = (FakeLink(peer="00000000:C0:00.0", peer_type=2), FakeLink(active=False))
    return msgspec.structs.replace(gpu, links=links)


def board(call: str) -> tuple[FakeGpu, ...]:
    """Two GPUs of one kind that has what the call asks for."""
    if "Mig" in call or "Attributes" in call:
        gpus = tuple(a100_mig(i, f"a{i}", A100_1G) for i in range(2))
        if "Attributes" in call:  # asked where the name shows no profile
            gpus = tuple(
                msgspec.structs.replace(
                    gpu, mig=tuple(msgspec.structs.replace(x, name=None) for x in gpu.mig)
                )
                for gpu in gpus
            )
        return tuple(few_links(x) for x in gpus)
    make = gb200 if "Platform" in call else h100_sxm
    return tuple(few_links(make(i)) for i in range(2))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NvmlNode]:
    node = NvmlNode(tmp_path / "scenario")
    yield node
    await node.aclose()


def appraise(scene: Scene, reading: InventoryReading) -> Accepted | Refused:
    scene.evidence = {
        "inventory": reading.inventory,
        "failed_reads": reading.failed_reads,
        "processes": reading.processes,
    }
    result = scene.run()
    assert isinstance(result, Accepted | Refused)
    return result


async def enrolled(node: NvmlNode, source: NvmlInventorySource, call: str) -> Scene:
    """The node as it was accepted while all was well."""
    node.shows(*board(call), cuda=12080)
    scene = Scene(ca=CA)
    first = appraise(scene, await source.read())
    assert isinstance(first, Accepted), first
    assert (first.lost, first.warnings) == ((), ())
    scene.remember(first)
    return scene


def observed(healthy: tuple[Gpu, ...], result: Accepted | Refused) -> Consequence:
    """What the answer did to the node."""
    if isinstance(result, Refused):
        assert result.code is ReasonCode.INVENTORY_INCOMPLETE, result
        return Consequence.NODE
    placeable = {x.uuid for x in result.evidence.inventory.gpus}
    others = {x.uuid for x in healthy} - {healthy[BAD].uuid}
    assert placeable >= others, "a GPU suffers for another"
    if healthy[BAD].uuid not in placeable:
        [lost] = result.lost
        assert lost.uuid == healthy[BAD].uuid
        return Consequence.GPU_LOST if ":" not in lost.error else Consequence.GPU_UNHEALTHY
    return Consequence.FACT if result.warnings else Consequence.NO_SUCH_FACT


SAME: Final = {
    Consequence.NO_EVENTS: Consequence.NO_SUCH_FACT,
    Consequence.READ_AGAIN: Consequence.NO_SUCH_FACT,
    Consequence.NOTHING: Consequence.NO_SUCH_FACT,
}
"""What costs nothing of the inventory."""


def expected(call: str, code: int) -> Consequence:
    found = consequence(BINDING.get(call, call), error_name(code))
    if call == "nvmlDeviceGetSerial" and found is Consequence.NO_SUCH_FACT:
        return Consequence.GPU_UNHEALTHY  # one is enrolled
    return SAME.get(found, found)


def test_the_table_has_every_call_that_the_stand_in_knows() -> None:
    assert {BINDING.get(x, x) for x in CALLS - NOT_ASKED} == set(ROWS)


@pytest.mark.parametrize("call", OF_A_GPU)
async def test_one_bad_card_is_one_bad_card(node: NvmlNode, call: str) -> None:
    source = node.source()
    scene = await enrolled(node, source, call)
    healthy = (await source.read()).inventory.gpus
    newer = {OLDER[call]: FUNCTION_NOT_FOUND} if call in OLDER else {}
    for code in CODES:
        node.breaks(BAD, rc={call: code, **newer})
        reading = await source.read()
        found = observed(healthy, appraise(scene, reading))
        assert found is expected(call, code), error_name(code)
        assert found not in {Consequence.NODE, Consequence.PROCESS}
    node.breaks(BAD)
    well = appraise(scene, await source.read())
    assert isinstance(well, Accepted), well
    assert (well.lost, well.warnings) == ((), ())


@pytest.mark.parametrize("call", OF_A_GPU)
@pytest.mark.parametrize("code", [999, 2, 15])
async def test_it_is_so_for_an_agent_that_never_saw_the_card_well(
    node: NvmlNode, call: str, code: int
) -> None:
    """As after a restart without state: the enrollment knows which GPU is missing."""
    before = node.source()
    scene = await enrolled(node, before, call)
    healthy = (await before.read()).inventory.gpus
    node.breaks(BAD, rc={call: code})
    result = appraise(scene, await node.source().read())
    assert isinstance(result, Accepted), result
    observed(healthy, result)


@pytest.mark.parametrize("call", sorted(OF_THE_HOST - {"nvmlInitWithFlags"}))
async def test_what_is_the_nodes(node: NvmlNode, call: str) -> None:
    newer = {OLDER[call]: FUNCTION_NOT_FOUND} if call in OLDER else {}
    for code in CODES:
        source = node.source()
        scene = await enrolled(node, source, call)
        healthy = (await source.read()).inventory.gpus
        node.host_breaks(rc={call: code, **newer})
        source._any_lost = True  # so that the session is ended and begun within the reading
        wanted = expected(call, code)
        if wanted is Consequence.PROCESS:
            with pytest.raises(DriverReloadedError):
                await source.read()
        else:
            found = observed(healthy, appraise(scene, await source.read()))
            assert found is wanted, error_name(code)
        node.shows(*board(call), cuda=12080)
        await node.end(source)


async def test_a_library_that_cannot_be_initialised_is_the_nodes(node: NvmlNode) -> None:
    scene = await enrolled(node, node.source(), "nvmlInitWithFlags")
    for code in CODES:
        node.host_breaks(rc={"nvmlInitWithFlags": code})
        result = appraise(scene, await node.source().read())
        assert isinstance(result, Refused)
        assert result.code is ReasonCode.INVENTORY_INCOMPLETE
        assert expected("nvmlInitWithFlags", code) is Consequence.NODE


async def test_a_card_that_says_the_driver_is_gone_is_believed_when_the_library_says_so_too(
    node: NvmlNode,
) -> None:
    source = node.source()
    await enrolled(node, source, "")
    node.breaks(BAD, rc={"nvmlDeviceGetSerial": 9})
    broken = msgspec.structs.replace(node.scenario.faults, rc={"nvmlInitWithFlags": 9})
    node._write(msgspec.structs.replace(node.scenario, faults=broken))
    with pytest.raises(DriverReloadedError):
        await source.read()


async def test_at_first_use_a_card_without_a_name_keeps_the_node_out(node: NvmlNode) -> None:
    """Enrolled without it, the node would be in quarantine as soon as the card answers."""
    node.shows(*board(""))
    node.breaks(BAD, rc={"nvmlDeviceGetUUID": 999})
    result = appraise(Scene(ca=CA), await node.source().read())
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.INVENTORY_INCOMPLETE
    assert "uuid of" in result.detail


async def test_a_card_too_many_without_a_name_is_undecidable(node: NvmlNode) -> None:
    source = node.source()
    scene = await enrolled(node, source, "")
    node.shows(*board(""), few_links(h100_sxm(2)))
    node.breaks(2, rc={"nvmlDeviceGetUUID": 999})
    result = appraise(scene, await source.read())
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.INVENTORY_INCOMPLETE


async def test_a_new_card_is_a_change_even_where_a_fact_of_it_is_unread(node: NvmlNode) -> None:
    source = node.source()
    scene = await enrolled(node, source, "")
    node.shows(*board(""), few_links(h100_sxm(2)))
    node.breaks(2, rc={"nvmlDeviceGetEccMode": 999})
    result = appraise(scene, await source.read())
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.INVENTORY_CHANGED


async def test_where_no_card_can_be_read_whole_the_text_says_what_is_unread(
    node: NvmlNode,
) -> None:
    source = node.source()
    scene = await enrolled(node, source, "")
    for index in range(2):
        node.breaks(index, rc={"nvmlDeviceGetEccMode": 999})
    result = appraise(scene, await source.read())
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.INVENTORY_INCOMPLETE
    assert "ecc of" in result.detail


async def test_events_that_cannot_be_had_of_one_card_are_said_to_be(
    node: NvmlNode, capsys: pytest.CaptureFixture[str]
) -> None:
    node.shows(*board(""))
    node.breaks(BAD, rc={"nvmlDeviceRegisterEvents": 999})
    await node.source().read()
    await asyncio.sleep(0)
    assert "nvmlDeviceRegisterEvents" in capsys.readouterr().out
