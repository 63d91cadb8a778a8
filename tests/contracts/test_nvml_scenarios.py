"""Hardware as it is found and as it goes wrong, through pynvml and the stand-in library."""

import asyncio
import ctypes
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.gpu.facts import DriverReloadedError
from agent.gpu.inventory import MAX_PROCESSES, KnownGpu
from agent.gpu.reading import EventKind, GpuEvent, InventoryReading, NvmlState
from agent.gpu.source import MAX_WAITING_EVENTS, NvmlInventorySource
from agent.gpu.worker import Deadlines
from gpuwarden.evidence.inventory_rules import inventory_findings
from gpuwarden.evidence.model import Fabric, FailedRead, GpuProcess, LostGpu, MigDevice, NvLink
from sandbox.nvml.models import (
    A100_1G,
    A100_3G,
    a100_mig,
    bus_id,
    gb10,
    gb200,
    geforce,
    h100_sxm,
    h200_passthrough,
    made_uuid,
)
from sandbox.nvml.scenario import CALLS, FakeLink, FakeMig
from tests.fakes.nvml_node import SHORT, NvmlNode
from tests.hang import HANG_S

NOT_SUPPORTED, NO_PERMISSION, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 3, 4, 12, 13
DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED, MISMATCH, UNKNOWN = 9, 15, 16, 18, 999
UNAVAILABLE_EVENT = 0x4000


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[NvmlNode]:
    node = NvmlNode(tmp_path / "scenario")
    yield node
    await node.aclose()


async def read(node: NvmlNode) -> InventoryReading:
    return await node.source().read()


async def until_ready(source: NvmlInventorySource) -> InventoryReading:
    """A busy source refuses at once; the driver does not announce that it is back."""
    async with asyncio.timeout(HANG_S):
        reading = await source.read()
        while reading.state is not NvmlState.READY:
            await asyncio.sleep(0.02)
            reading = await source.read()
    return reading


class Listener:
    """Hears everything a source tells from now on."""

    def __init__(self, source: NvmlInventorySource) -> None:
        self.heard: asyncio.Queue[GpuEvent] = asyncio.Queue()
        self._task = asyncio.create_task(self._listen(source))

    async def _listen(self, source: NvmlInventorySource) -> None:
        async for event in source.events():
            self.heard.put_nowait(event)

    async def next(self) -> GpuEvent:
        async with asyncio.timeout(HANG_S):
            return await self.heard.get()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture
async def listen() -> AsyncIterator[Callable[[NvmlInventorySource], Listener]]:
    listeners: list[Listener] = []

    def start(source: NvmlInventorySource) -> Listener:
        listeners.append(Listener(source))
        return listeners[-1]

    yield start
    for listener in listeners:
        await listener.stop()


def failed(fact: str, gpu: str | None, call: str, error: str) -> FailedRead:
    return FailedRead(fact=fact, gpu=gpu, call=call, error=error)


# --- what is found ---------------------------------------------------------------------


async def test_pynvml_loads_the_stand_in(node: NvmlNode) -> None:
    by_soname = ctypes.CDLL("libnvidia-ml.so.1")
    assert by_soname._handle == node.library._handle
    for call in CALLS:
        assert getattr(by_soname, call)


async def test_an_h100_board(node: NvmlNode) -> None:
    node.shows(*(h100_sxm(i) for i in range(8)), cuda=12080)
    reading = await read(node)
    host, gpu = reading.inventory.host, reading.inventory.gpus[7]
    assert (host.driver, host.cuda, host.cc) == ("570.86.10", "12.8", "off")
    assert (gpu.index, gpu.pci_bus_id) == (7, bus_id(7))
    assert (gpu.pci, gpu.subsystem) == ("10de:2330", "10de:16c1")
    assert (gpu.vbios, gpu.gsp) == ("96.00.74.00.11", "570.86.10")
    assert (gpu.memory_bytes, gpu.ecc, gpu.mig) == (str(81559 << 20), True, False)
    assert (gpu.virt, gpu.compute_capability, gpu.architecture) == ("none", "9.0", "hopper")
    assert (gpu.compute_mode, gpu.persistence_mode, gpu.module_id) == ("default", True, 8)
    assert gpu.nvlinks[17] == NvLink(link=17, active=True, peer="00000000:C1:00.0")
    assert gpu.fabric == Fabric(kind="nvswitch", cluster_uuid=None, clique=0)
    assert gpu.chassis_serial is None
    assert reading.failed_reads == ()
    assert (reading.state, reading.processes) == (NvmlState.READY, ())


async def test_a_gpu_in_a_virtual_machine_as_real_hardware_showed_one(node: NvmlNode) -> None:
    node.shows(h200_passthrough(0), driver="580.159.04", cuda=13000)
    reading = await read(node)
    host, (gpu,) = reading.inventory.host, reading.inventory.gpus
    assert (host.driver, host.cuda, host.cc) == ("580.159.04", "13.0", "off")
    assert (gpu.pci_bus_id, gpu.pci, gpu.subsystem) == (
        "00000000:00:06.0",
        "10de:2335",
        "10de:18bf",
    )
    assert (gpu.memory_bytes, gpu.virt, gpu.nvlinks) == ("150754820096", "passthrough", ())
    assert gpu.fabric == Fabric(kind="none", cluster_uuid=None, clique=None)
    assert (gpu.chassis_serial, gpu.module_id) == (None, 6)
    assert reading.failed_reads == ()


async def test_order_is_that_of_the_bus_whatever_nvml_says(node: NvmlNode) -> None:
    node.shows(h100_sxm(2), h100_sxm(0), h100_sxm(1))
    gpus = (await read(node)).inventory.gpus
    assert [gpu.pci_bus_id for gpu in gpus] == [bus_id(0), bus_id(1), bus_id(2)]
    assert [gpu.index for gpu in gpus] == [0, 1, 2]


@pytest.mark.parametrize("serial", [None, "N/A", "0", "", "n/a"])
async def test_a_card_without_a_serial_has_none(node: NvmlNode, serial: str | None) -> None:
    node.shows(geforce(0, serial=serial), geforce(1, serial=serial), cc_feature=None)
    reading = await read(node)
    assert [gpu.serial for gpu in reading.inventory.gpus] == [None, None]
    gpu = reading.inventory.gpus[0]
    assert (gpu.ecc, gpu.mig, gpu.gsp, gpu.board_part_number) == (None, None, None, None)
    assert gpu.fabric == Fabric(kind="none", cluster_uuid=None, clique=None)
    assert (reading.inventory.host.cc, reading.inventory.host.cuda) == (None, None)
    assert reading.failed_reads == ()


async def test_boards_share_serials_and_gpus_are_never_merged(node: NvmlNode) -> None:
    node.shows(*(gb200(i) for i in range(4)))
    gpus = (await read(node)).inventory.gpus
    assert len({gpu.uuid for gpu in gpus}) == 4
    assert [gpu.serial for gpu in gpus[:2]] == [gpus[0].serial] * 2
    assert len({gpu.serial for gpu in gpus}) == 2
    assert {gpu.chassis_serial for gpu in gpus} == {"1821000000001"}
    assert [gpu.module_id for gpu in gpus] == [1, 2, 3, 4]
    fabric = gpus[0].fabric
    assert fabric
    assert (fabric.kind, fabric.clique) == ("mnnvl", 32766)
    assert fabric.cluster_uuid


@pytest.mark.parametrize("fields", [{"fabric_version": 2}, {"fabric_version": 1}])
async def test_older_fabric_structs_say_the_same(node: NvmlNode, fields: dict[str, int]) -> None:
    node.shows(gb200(0))
    newest = (await read(node)).inventory.gpus[0].fabric
    node.shows(gb200(0), **fields)
    assert (await read(node)).inventory.gpus[0].fabric == newest


async def test_a_driver_with_the_older_platform_struct_has_no_chassis_serial(
    node: NvmlNode,
) -> None:
    gpu = gb200(2)
    node.shows(gpu, platform_version=1)
    node.change(0, module_id=None)
    shown = (await read(node)).inventory.gpus[0]
    assert (shown.chassis_serial, shown.module_id) == (None, 3)


@pytest.mark.parametrize(
    ("state", "status", "fabric"),
    [
        (0, 0, Fabric(kind="nvswitch", cluster_uuid=None, clique=None)),
        (2, 0, Fabric(kind="nvswitch", cluster_uuid=None, clique=None)),
        (3, 999, Fabric(kind="nvswitch", cluster_uuid=None, clique=None)),
    ],
)
async def test_a_fabric_that_is_not_joined(
    node: NvmlNode, state: int, status: int, fabric: Fabric
) -> None:
    node.shows(h100_sxm(0))
    node.change(0, fabric_state=state, fabric_status=status)
    assert (await read(node)).inventory.gpus[0].fabric == fabric


async def test_links_between_gpus_without_switches(node: NvmlNode) -> None:
    links = (FakeLink(peer=bus_id(1), peer_type=0), FakeLink(active=False))
    node.shows(h100_sxm(0))
    node.change(0, links=links, fabric_state=None)
    gpu = (await read(node)).inventory.gpus[0]
    assert gpu.nvlinks == (
        NvLink(link=0, active=True, peer=bus_id(1)),
        NvLink(link=1, active=False, peer=None),
    )
    assert gpu.fabric == Fabric(kind="nvlink", cluster_uuid=None, clique=None)


async def test_mig_devices_with_profile_uuid_and_memory(node: NvmlNode) -> None:
    gpu = a100_mig(0, "a", A100_3G, A100_1G)
    node.shows(gpu, a100_mig(1, "b"))
    first, second = (await read(node)).inventory.gpus
    assert first.mig is True
    assert first.mig_devices == (
        MigDevice(uuid=gpu.mig[0].uuid, profile="3g.20gb", memory_mib=19968),
        MigDevice(uuid=gpu.mig[1].uuid, profile="1g.5gb", memory_mib=4864),
    )
    assert first.memory_bytes == str(40960 << 20)
    assert (second.mig, second.mig_devices) == (True, ())


@pytest.mark.parametrize(
    ("compute", "profile"), [(3, "3g.20gb"), (1, "1c.3g.20gb"), (None, "3g.20gb")]
)
async def test_a_mig_profile_from_attributes(
    node: NvmlNode, compute: int | None, profile: str
) -> None:
    device = FakeMig(
        uuid=made_uuid("MIG", "m", 1), gpu_slices=3, compute_slices=compute, memory_mb=19968
    )
    node.shows(a100_mig(0))
    node.change(0, mig=(device,))
    found = (await read(node)).inventory.gpus[0].mig_devices
    assert found == (MigDevice(uuid=made_uuid("MIG", "m", 1), profile=profile, memory_mib=None),)


@pytest.mark.parametrize(
    "device",
    [
        FakeMig(uuid="", name="NVIDIA A100 MIG 1g.5gb"),
        FakeMig(uuid="", gpu_slices=1, memory_mb=4864),
    ],
)
async def test_a_mig_device_without_a_uuid_cannot_be_spoken_of(
    node: NvmlNode, device: FakeMig
) -> None:
    node.shows(a100_mig(0))
    node.change(0, mig=(device, FakeMig(uuid=made_uuid("MIG", "m", 2))))
    found = (await read(node)).inventory.gpus[0].mig_devices
    assert found == (MigDevice(uuid=made_uuid("MIG", "m", 2), profile=None, memory_mib=None),)


async def test_unified_memory_has_no_total(node: NvmlNode) -> None:
    node.shows(gb10())
    reading = await read(node)
    assert reading.inventory.gpus[0].memory_bytes is None
    assert reading.failed_reads == ()
    node.change(0, memory_bytes=0)
    assert (await read(node)).inventory.gpus[0].memory_bytes is None


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({"cc_feature": 1}, "on"),
        ({"cc_feature": 1, "cc_dev_tools": 1, "cc_multi_gpu": 1}, "devtools"),
        ({"cc_feature": 1, "cc_multi_gpu": 1}, "ppcie"),
        ({"cc_feature": 1, "cc_multi_gpu": 2}, "nvle"),
    ],
)
async def test_confidential_compute_mode(
    node: NvmlNode, fields: dict[str, object], mode: str
) -> None:
    node.shows(h100_sxm(0), **fields)
    assert (await read(node)).inventory.host.cc == mode
    node.host_breaks(rc={"nvmlSystemGetConfComputeSettings": FUNCTION_NOT_FOUND})
    older = "on" if mode in {"ppcie", "nvle"} else mode
    assert (await read(node)).inventory.host.cc == older


async def test_an_older_driver_lacks_functions_and_facts_are_null(node: NvmlNode) -> None:
    node.shows(gb200(0), cuda=12080)
    lacking = (
        *("DeviceGetMemoryInfo_v2", "DeviceGetModuleId", "DeviceGetPlatformInfo"),
        *("DeviceGetGpuFabricInfoV", "DeviceGetGpuFabricInfo", "DeviceGetMigMode"),
        *("DeviceGetComputeRunningProcesses_v3", "DeviceGetGraphicsRunningProcesses_v3"),
        "DeviceGetGspFirmwareMode",
    )
    node.breaks(0, rc={f"nvml{name}": FUNCTION_NOT_FOUND for name in lacking})
    reading = await read(node)
    gpu = reading.inventory.gpus[0]
    assert reading.failed_reads == ()
    assert gpu.memory_bytes == str(189471 << 20)
    assert (gpu.module_id, gpu.chassis_serial, gpu.mig) == (None, None, None)
    assert gpu.gsp == "570.86.10"
    assert gpu.fabric == Fabric(kind="nvswitch", cluster_uuid=None, clique=None)
    assert reading.processes == ()


async def test_processes_with_their_pods(node: NvmlNode) -> None:
    gpu = h100_sxm(0)
    node.shows(gpu, geforce(1))
    node.change(0, compute_pids=(77, 12), graphics_pids=(77,))
    node.change(1, compute_pids=None, graphics_pids=None)
    source = node.source(pod_of={77: "pod-a"}.get)
    assert (await source.read()).processes == (
        GpuProcess(gpu=gpu.uuid, pid=12, pod_uid=None),
        GpuProcess(gpu=gpu.uuid, pid=77, pod_uid="pod-a"),
    )


async def test_processes_that_cannot_be_listed_are_null(node: NvmlNode) -> None:
    node.shows(geforce(0))
    node.change(0, compute_pids=None, graphics_pids=None)
    assert (await read(node)).processes is None


async def test_a_node_without_gpus(node: NvmlNode) -> None:
    node.shows()
    reading = await read(node)
    assert (reading.inventory.gpus, reading.failed_reads) == ((), ())
    assert (reading.state, reading.processes) == (NvmlState.READY, ())


# --- reads that fail -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "fact", "shown"),
    [
        ("DeviceGetSerial", "serial", "nvmlDeviceGetSerial"),
        ("DeviceGetBoardPartNumber", "boardPartNumber", "nvmlDeviceGetBoardPartNumber"),
        ("DeviceGetName", "product", "nvmlDeviceGetName"),
        ("DeviceGetVbiosVersion", "vbios", "nvmlDeviceGetVbiosVersion"),
        ("DeviceGetGspFirmwareVersion", "gsp", "nvmlDeviceGetGspFirmwareVersion"),
        ("DeviceGetGspFirmwareMode", "gsp", "nvmlDeviceGetGspFirmwareMode"),
        ("DeviceGetMemoryInfo_v2", "memoryBytes", "nvmlDeviceGetMemoryInfo"),
        ("DeviceGetEccMode", "ecc", "nvmlDeviceGetEccMode"),
        ("DeviceGetMigMode", "mig", "nvmlDeviceGetMigMode"),
        ("DeviceGetVirtualizationMode", "virt", "nvmlDeviceGetVirtualizationMode"),
        (
            "DeviceGetCudaComputeCapability",
            "computeCapability",
            "nvmlDeviceGetCudaComputeCapability",
        ),
        ("DeviceGetArchitecture", "architecture", "nvmlDeviceGetArchitecture"),
        ("DeviceGetComputeMode", "computeMode", "nvmlDeviceGetComputeMode"),
        ("DeviceGetPersistenceMode", "persistenceMode", "nvmlDeviceGetPersistenceMode"),
        ("DeviceGetGpuFabricInfoV", "fabric", "nvmlDeviceGetGpuFabricInfoV"),
        ("DeviceGetPlatformInfo", "chassisSerial", "nvmlDeviceGetPlatformInfo"),
        ("DeviceGetModuleId", "moduleId", "nvmlDeviceGetModuleId"),
        (
            "DeviceGetComputeRunningProcesses_v3",
            "processes",
            "nvmlDeviceGetComputeRunningProcesses_v3",
        ),
        (
            "DeviceGetGraphicsRunningProcesses_v3",
            "processes",
            "nvmlDeviceGetGraphicsRunningProcesses_v3",
        ),
    ],
)
async def test_a_failed_read_is_listed_under_its_fact(
    node: NvmlNode, call: str, fact: str, shown: str
) -> None:
    gpus = (gb200(0), gb200(1))
    node.shows(*gpus)
    node.breaks(1, rc={f"nvml{call}": NO_PERMISSION})
    reading = await read(node)
    assert reading.failed_reads == (failed(fact, gpus[1].uuid, shown, "NO_PERMISSION"),)
    assert [gpu.uuid for gpu in reading.inventory.gpus] == [gpu.uuid for gpu in gpus]


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        ("nvmlSystemGetDriverVersion", "driver"),
        ("nvmlSystemGetCudaDriverVersion_v2", "cuda"),
        ("nvmlSystemGetConfComputeSettings", "cc"),
    ],
)
async def test_a_failed_read_of_the_host(node: NvmlNode, call: str, fact: str) -> None:
    node.shows(h100_sxm(0))
    node.host_breaks(rc={call: UNKNOWN})
    assert (await read(node)).failed_reads == (failed(fact, None, call, "UNKNOWN"),)


async def test_a_missing_libcuda_is_no_failure(node: NvmlNode) -> None:
    node.shows(h100_sxm(0), cuda=12080)
    node.host_breaks(rc={"nvmlSystemGetCudaDriverVersion_v2": LIBRARY_NOT_FOUND})
    reading = await read(node)
    assert (reading.inventory.host.cuda, reading.failed_reads) == (None, ())


async def test_gpus_that_cannot_be_counted(node: NvmlNode) -> None:
    node.shows(h100_sxm(0))
    source = node.source()
    await source.read()
    node.host_breaks(rc={"nvmlDeviceGetCount_v2": UNKNOWN})
    reading = await source.read()
    assert reading.failed_reads == (failed("gpus", None, "nvmlDeviceGetCount", "UNKNOWN"),)
    assert (reading.inventory.gpus, reading.inventory.lost) == ((), ())


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetHandleByIndex_v2"]
)
@pytest.mark.parametrize(
    ("code", "error"), [(UNKNOWN, "UNKNOWN"), (NOT_SUPPORTED, "NOT_SUPPORTED")]
)
async def test_a_gpu_without_place_or_uuid_is_lost_under_its_last_name(
    node: NvmlNode, call: str, code: int, error: str
) -> None:
    gpus = [h100_sxm(i) for i in range(3)]
    node.shows(*gpus)
    source = node.source()
    await source.read()
    node.breaks(1, rc={call: code})
    reading = await source.read()
    assert reading.failed_reads == ()
    assert [gpu.uuid for gpu in reading.inventory.gpus] == [gpus[0].uuid, gpus[2].uuid]
    assert reading.inventory.lost == (
        LostGpu(uuid=gpus[1].uuid, index=1, pci_bus_id=gpus[1].pci_bus_id, error=error),
    )
    node.shows(*gpus)
    assert len((await source.read()).inventory.gpus) == 3


@pytest.mark.parametrize(
    ("call", "fact", "name"),
    [
        ("nvmlDeviceGetUUID", "uuid", h100_sxm(1).pci_bus_id),
        ("nvmlDeviceGetPciInfo_v3", "pciBusId", h100_sxm(1).uuid),
        ("nvmlDeviceGetHandleByIndex", "pciBusId", None),
    ],
)
async def test_a_gpu_that_nobody_knows_by_name_is_a_failed_read(
    node: NvmlNode, call: str, fact: str, name: str | None
) -> None:
    gpus = [h100_sxm(i) for i in range(2)]
    node.shows(*gpus)
    library = {"nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2"}.get(call, call)
    node.breaks(1, rc={library: UNKNOWN})
    reading = await read(node)
    assert reading.failed_reads == (failed(fact, name, call, "UNKNOWN"),)
    assert [gpu.uuid for gpu in reading.inventory.gpus] == [gpus[0].uuid]
    assert reading.inventory.lost == ()


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"name": "NVIDIA H100\u2122"}, "product"),
        ({"name": "\udcff"}, "product"),
        ({"board_part_number": "\x01"}, "boardPartNumber"),
        ({"serial": "16\u2122"}, "serial"),
        ({"vbios": "96 00"}, "vbios"),
        ({"gsp": "570.86\u2122"}, "gsp"),
        ({"memory_bytes": 2**64 - 1}, "memoryBytes"),
        ({"compute_capability": 99999}, "computeCapability"),
        ({"virtualization": 77}, "virt"),
        ({"compute_mode": 4294967295}, "computeMode"),
        ({"chassis_serial": "\x02"}, "chassisSerial"),
        ({"compute_pids": (0, 4294967295, 12)}, "processes"),
        ({"graphics_pids": (0,) * 16}, "processes"),
    ],
)
async def test_garbage_costs_its_fact_and_breaks_no_rule(
    node: NvmlNode, fields: dict[str, object], fact: str
) -> None:
    gpus = (gb200(0), gb200(1))
    node.shows(*gpus)
    node.change(1, **fields)
    reading = await read(node)
    [found] = reading.failed_reads
    assert (found.fact, found.gpu, found.error) == (fact, gpus[1].uuid, "INVALID_VALUE")
    assert inventory_findings(reading.inventory) == ()
    assert [x.pid for x in reading.processes or ()] == [12] * ("compute_pids" in fields)
    assert len(reading.inventory.gpus) == 2


async def test_a_mode_that_nobody_knows_yet_is_a_failed_read_and_no_fault(node: NvmlNode) -> None:
    node.shows(h100_sxm(0), cc_feature=1, cc_multi_gpu=7)
    reading = await read(node)
    call = "nvmlSystemGetConfComputeSettings"
    assert reading.failed_reads == (failed("cc", None, call, "INVALID_VALUE"),)


async def test_mig_devices_of_an_older_spelling_cannot_be_spoken_of(node: NvmlNode) -> None:
    gpu = a100_mig(0)
    node.shows(gpu)
    node.change(
        0, mig=(FakeMig(uuid=f"MIG-{gpu.uuid}/1/0"), FakeMig(uuid=made_uuid("MIG", "m", 1)))
    )
    reading = await read(node)
    assert [x.uuid for x in reading.inventory.gpus[0].mig_devices] == [made_uuid("MIG", "m", 1)]
    assert [(x.fact, x.gpu) for x in reading.failed_reads] == [("migDevices", gpu.uuid)]


async def test_mig_devices_that_cannot_be_read(node: NvmlNode) -> None:
    gpu = a100_mig(0, "a", A100_1G)
    node.shows(gpu)
    node.breaks(0, rc={"nvmlDeviceGetMigDeviceHandleByIndex": NO_PERMISSION})
    reading = await read(node)
    assert {(x.fact, x.gpu, x.error) for x in reading.failed_reads} == {
        ("migDevices", gpu.uuid, "NO_PERMISSION")
    }
    node.breaks(0, rc={"nvmlDeviceGetMaxMigDeviceCount": UNKNOWN})
    reading = await read(node)
    assert reading.inventory.gpus[0].mig_devices == ()
    call = "nvmlDeviceGetMaxMigDeviceCount"
    assert reading.failed_reads == (failed("migDevices", gpu.uuid, call, "UNKNOWN"),)


async def test_links_that_cannot_be_read(node: NvmlNode) -> None:
    gpu = h100_sxm(0)
    node.shows(gpu)
    node.breaks(0, rc={"nvmlDeviceGetNvLinkRemotePciInfo_v2": UNKNOWN})
    reading = await read(node)
    assert {(x.fact, x.gpu) for x in reading.failed_reads} == {("nvlinks", gpu.uuid)}
    assert len(reading.inventory.gpus[0].nvlinks) == 18
    node.breaks(0, rc={"nvmlDeviceGetNvLinkState": UNKNOWN})
    assert (await read(node)).inventory.gpus[0].nvlinks == ()


@pytest.mark.parametrize("vbios", ["\udcff\udcfe"])
async def test_text_that_is_no_text_is_a_failed_read(node: NvmlNode, vbios: str) -> None:
    gpu = h100_sxm(0)
    node.shows(gpu)
    node.change(0, vbios=vbios)
    reading = await read(node)
    call = "nvmlDeviceGetVbiosVersion"
    assert reading.failed_reads == (failed("vbios", gpu.uuid, call, "INVALID_VALUE"),)


async def test_an_unknown_return_code_has_a_name(node: NvmlNode) -> None:
    node.shows(h100_sxm(0))
    node.breaks(0, rc={"nvmlDeviceGetSerial": 77})
    assert [x.error for x in (await read(node)).failed_reads] == ["ERROR_77"]


# --- GPUs that go and come -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ({"*": GPU_IS_LOST}, "GPU_IS_LOST"),
        ({"nvmlDeviceGetUUID": RESET_REQUIRED}, "RESET_REQUIRED"),
        ({"nvmlDeviceGetSerial": GPU_IS_LOST}, "GPU_IS_LOST"),
        ({"nvmlDeviceGetPciInfo_v3": 28}, "GPU_NOT_FOUND"),
    ],
)
async def test_one_lost_gpu_hides_no_other_and_comes_back(
    node: NvmlNode, faults: dict[str, int], error: str
) -> None:
    gpus = [h100_sxm(i) for i in range(4)]
    node.shows(*gpus)
    source = node.source()
    await source.read()
    node.breaks(1, rc=faults)
    for _ in range(2):
        reading = await source.read()
        assert reading.inventory.lost == (
            LostGpu(uuid=gpus[1].uuid, index=1, pci_bus_id=gpus[1].pci_bus_id, error=error),
        )
        assert [gpu.index for gpu in reading.inventory.gpus] == [0, 2, 3]
        assert reading.failed_reads == ()
    node.shows(*gpus)
    reading = await source.read()
    assert reading.inventory.lost == ()
    assert [gpu.uuid for gpu in reading.inventory.gpus] == [gpu.uuid for gpu in gpus]


async def test_hot_unplug_is_lost_under_the_last_uuid_until_it_is_back(
    node: NvmlNode, listen: Callable[[NvmlInventorySource], Listener]
) -> None:
    gpus = [h100_sxm(i) for i in range(3)]
    node.shows(*gpus)
    source = node.source()
    listener = listen(source)
    await source.read()
    node.shows(gpus[0], gpus[2])
    reading = await source.read()
    assert reading.inventory.lost == (
        LostGpu(uuid=gpus[1].uuid, index=1, pci_bus_id=bus_id(1), error="GPU_NOT_FOUND"),
    )
    assert [gpu.index for gpu in reading.inventory.gpus] == [0, 2]
    assert await listener.next() == GpuEvent(
        EventKind.GPU_LOST, gpus[1].uuid, None, "GPU_NOT_FOUND"
    )
    node.shows(*gpus)
    back = await source.read()
    assert (len(back.inventory.gpus), back.inventory.lost) == (3, ())
    assert listener.heard.empty()


async def test_a_swapped_gpu_shows_its_new_uuid(node: NvmlNode) -> None:
    gpus = [h100_sxm(i) for i in range(3)]
    node.shows(*gpus)
    source = node.source()
    await source.read()
    new = h100_sxm(1, seed="spare")
    node.shows(gpus[0], new, gpus[2])
    reading = await source.read()
    assert [gpu.uuid for gpu in reading.inventory.gpus] == [gpus[0].uuid, new.uuid, gpus[2].uuid]
    assert reading.inventory.lost == ()


async def test_a_gpu_that_is_added_is_seen(node: NvmlNode) -> None:
    node.shows(h100_sxm(0))
    source = node.source()
    await source.read()
    node.shows(h100_sxm(0), h100_sxm(1))
    assert len((await source.read()).inventory.gpus) == 2


async def test_a_lost_gpu_that_this_process_never_saw_is_a_failed_read(node: NvmlNode) -> None:
    gpus = [h100_sxm(i) for i in range(2)]
    node.shows(*gpus)
    node.breaks(1, rc={"*": GPU_IS_LOST})
    reading = await read(node)
    call = "nvmlDeviceGetHandleByIndex"
    assert reading.failed_reads == (failed("pciBusId", None, call, "GPU_IS_LOST"),)
    known = (KnownGpu(gpus[1].uuid, gpus[1].pci_bus_id, 1),)
    source = node.source(known=known)
    reading = await source.read()
    assert [gpu.uuid for gpu in reading.inventory.lost] == [gpus[1].uuid]
    assert reading.failed_reads == ()
    assert {gpu.uuid for gpu in source.known} == {gpu.uuid for gpu in gpus}


# --- library, driver and calls that do not come back --------------------------------------------


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (DRIVER_NOT_LOADED, "DRIVER_NOT_LOADED"),
        (MISMATCH, "LIB_RM_VERSION_MISMATCH"),
        (UNKNOWN, "UNKNOWN"),
    ],
)
async def test_a_missing_driver_is_a_state_that_ends(
    node: NvmlNode,
    code: int,
    error: str,
    listen: Callable[[NvmlInventorySource], Listener],
) -> None:
    node.shows(h100_sxm(0))
    node.host_breaks(rc={"nvmlInitWithFlags": code})
    source = node.source()
    listener = listen(source)
    for _ in range(2):
        reading = await source.read()
        assert reading.state is NvmlState.UNAVAILABLE
        assert reading.detail == f"nvmlInitWithFlags: {error}"
        assert reading.failed_reads == (failed("gpus", None, "nvmlInitWithFlags", error),)
    node.shows(h100_sxm(0))
    assert (await source.read()).state is NvmlState.READY
    assert listener.heard.empty()


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("*", DRIVER_NOT_LOADED),
        ("nvmlDeviceGetCount_v2", MISMATCH),
        ("nvmlSystemGetConfComputeSettings", MISMATCH),
    ],
)
async def test_a_driver_reload_under_a_running_process_ends_it(
    node: NvmlNode,
    call: str,
    code: int,
    listen: Callable[[NvmlInventorySource], Listener],
) -> None:
    node.shows(h100_sxm(0))
    source = node.source()
    listener = listen(source)
    await source.read()
    node.host_breaks(rc={call: code})
    with pytest.raises(DriverReloadedError):
        await source.read()
    assert (await listener.next()).kind is EventKind.DRIVER_RELOAD


async def test_a_driver_that_goes_away_while_a_gpu_is_lost_ends_the_process(
    node: NvmlNode,
) -> None:
    node.shows(h100_sxm(0), h100_sxm(1))
    source = node.source()
    await source.read()
    node.shows(h100_sxm(0))
    await source.read()
    node.host_breaks(rc={"nvmlInitWithFlags": MISMATCH})
    with pytest.raises(DriverReloadedError):
        await source.read()


async def test_a_driver_that_comes_in_another_version_ends_the_process(node: NvmlNode) -> None:
    node.shows(h100_sxm(0))
    node.host_breaks(rc={"nvmlInitWithFlags": DRIVER_NOT_LOADED})
    source = node.source()
    await source.read()
    node.host_breaks(rc={"nvmlInitWithFlags": MISMATCH})
    with pytest.raises(DriverReloadedError):
        await source.read()


async def test_no_scenario_is_no_driver(node: NvmlNode) -> None:
    reading = await read(node)
    assert reading.failed_reads[0].error == "DRIVER_NOT_LOADED"


async def test_a_call_that_hangs_is_reported_within_its_deadline_and_found_stuck(
    node: NvmlNode, listen: Callable[[NvmlInventorySource], Listener]
) -> None:
    node.shows(h100_sxm(0))
    source = node.source(SHORT)
    listener = listen(source)
    await source.read()
    assert source.stuck(time.monotonic()) is None
    node.breaks(0, hang=("nvmlDeviceGetSerial",))
    for _ in range(2):
        reading = await source.read()
        assert reading.state is NvmlState.UNAVAILABLE
        assert reading.failed_reads == (failed("gpus", None, "nvmlDeviceGetSerial", "TIMEOUT"),)
        assert reading.detail.startswith("nvmlDeviceGetSerial has not returned for ")
    assert (await listener.next()).kind is EventKind.NVML_UNAVAILABLE
    assert listener.heard.empty()
    assert source.stuck(time.monotonic()) is None
    stuck = source.stuck(time.monotonic() + 3 * SHORT.call_s)
    assert stuck
    assert stuck.call == "nvmlDeviceGetSerial"
    assert stuck.seconds > 3 * SHORT.call_s
    node.shows(h100_sxm(0))
    assert len((await until_ready(source)).inventory.gpus) == 1
    assert source.stuck(time.monotonic()) is None


async def test_many_slow_calls_do_not_outlast_the_pass(node: NvmlNode) -> None:
    node.shows(*(h100_sxm(i) for i in range(8)))
    source = node.source(Deadlines(call_s=5.0, pass_s=0.3, wait_s=0.02))
    for i in range(8):
        node.breaks(i, delay_ms={"nvmlDeviceGetSerial": 150})
    reading = await source.read()
    assert reading.state is NvmlState.UNAVAILABLE
    assert reading.failed_reads[0].error == "TIMEOUT"
    node.shows(h100_sxm(0))
    assert len((await until_ready(source)).inventory.gpus) == 1


async def test_slow_is_not_failed(node: NvmlNode) -> None:
    node.shows(h100_sxm(0))
    node.breaks(0, delay_ms={"nvmlDeviceGetSerial": 50})
    reading = await node.source(Deadlines(call_s=5.0, pass_s=5.0, wait_s=0.02)).read()
    assert (reading.state, reading.failed_reads) == (NvmlState.READY, ())


async def test_init_that_hangs_and_closing_meanwhile(node: NvmlNode) -> None:
    node.shows(h100_sxm(0))
    node.host_breaks(hang=("nvmlInitWithFlags",))
    source = node.source(SHORT)
    reading = await source.read()
    assert reading.failed_reads == (failed("gpus", None, "nvmlInitWithFlags", "TIMEOUT"),)
    node.shows(h100_sxm(0))
    await until_ready(source)


async def test_closing_during_a_reading_waits_for_its_call_and_complains_of_nothing(
    node: NvmlNode,
) -> None:
    node.shows(h100_sxm(0))
    source = node.source(Deadlines(call_s=HANG_S, pass_s=HANG_S, wait_s=0.02))
    await source.read()
    node.breaks(0, delay_ms={"nvmlDeviceGetSerial": 200})
    with capture_logs() as lines:
        reading = asyncio.create_task(source.read())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await node.end(source)
    assert lines == []


async def test_closing_while_a_call_hangs_or_the_driver_is_gone(node: NvmlNode) -> None:
    node.shows(h100_sxm(0))
    hanging, orphaned = node.source(SHORT), node.source(SHORT)
    await orphaned.read()
    node.host_breaks(rc={"*": DRIVER_NOT_LOADED})
    await orphaned.aclose()
    node.host_breaks(hang=("nvmlInitWithFlags",))
    assert (await hanging.read()).state is NvmlState.UNAVAILABLE
    await hanging.aclose()
    assert hanging.stuck(time.monotonic() + 100)


async def test_a_shutdown_that_fails_ends_nothing(node: NvmlNode) -> None:
    node.shows(h100_sxm(0), h100_sxm(1))
    source = node.source()
    await source.read()
    node.shows(h100_sxm(0))
    node.host_breaks(rc={"nvmlShutdown": UNKNOWN})
    assert len((await source.read()).inventory.lost) == 1


async def test_waits_for_events_are_short_while_a_gpu_is_missing(node: NvmlNode) -> None:
    """Each reading begins a new session then, and has to wait for the end of such a wait."""
    node.shows(h100_sxm(0), h100_sxm(1))
    usual = Deadlines()
    source = node.source(usual)
    await source.read()
    assert source._pump._wait_s == usual.wait_s
    node.shows(h100_sxm(0))
    await source.read()
    assert source._pump._wait_s == usual.brief_wait_s
    node.shows(h100_sxm(0), h100_sxm(1))
    await source.read()
    assert source._pump._wait_s == usual.wait_s


def test_an_event_after_the_loop_has_ended_is_dropped(tmp_path: Path) -> None:
    node = NvmlNode(tmp_path / "scenario")
    node.shows(h100_sxm(0))
    source = node.source()
    asyncio.run(source.read())
    node.happens(0, 48)
    node.happens(0, 31)
    pump = source._pump._thread
    assert pump
    asyncio.run(node.aclose())
    pump.join(5)
    assert not pump.is_alive()


async def test_a_listener_that_does_not_listen_loses_the_oldest(node: NvmlNode) -> None:
    node.shows(*(h100_sxm(i) for i in range(2)))
    source = node.source()
    events = source.events()
    waiting = asyncio.ensure_future(anext(events))
    await source.read()
    node.happens(0, 48)
    assert (await waiting).xid == 48
    for number in range(MAX_WAITING_EVENTS + 1):
        source._notify(GpuEvent(EventKind.XID, None, number, ""))
    assert (await anext(events)).xid == 1


async def test_more_processes_than_fit_are_said_to_be(node: NvmlNode) -> None:
    node.shows(*(h100_sxm(i) for i in range(12)))
    for index in range(12):
        node.change(index, compute_pids=tuple(range(1000, 1090)))
    reading = await read(node)
    assert reading.processes
    assert len(reading.processes) == MAX_PROCESSES
    assert [(x.fact, x.error) for x in reading.failed_reads] == [("processes", "TOO_MANY")]


# --- events ------------------------------------------------------------------------------------


async def test_an_xid_is_reported_at_once(
    node: NvmlNode, listen: Callable[[NvmlInventorySource], Listener]
) -> None:
    gpus = [h100_sxm(i) for i in range(2)]
    node.shows(*gpus)
    source = node.source()
    first, second = listen(source), listen(source)
    await source.read()
    node.happens(1, 13)
    node.happens(1, 48)
    for xid in (13, 48):
        expected = GpuEvent(EventKind.XID, gpus[1].uuid, xid, f"XID {xid}")
        assert await first.next() == expected
        assert await second.next() == expected


@pytest.mark.parametrize(("xid", "kind"), [(79, 8), (0, UNAVAILABLE_EVENT)])
async def test_a_gpu_off_the_bus_is_lost(
    node: NvmlNode,
    xid: int,
    kind: int,
    listen: Callable[[NvmlInventorySource], Listener],
) -> None:
    gpu = h100_sxm(0)
    node.shows(gpu)
    source = node.source()
    listener = listen(source)
    await source.read()
    node.happens(0, xid, kind)
    event = await listener.next()
    assert (event.kind, event.gpu) == (EventKind.GPU_LOST, gpu.uuid)


async def test_events_go_on_in_a_new_session(
    node: NvmlNode, listen: Callable[[NvmlInventorySource], Listener]
) -> None:
    node.shows(h100_sxm(0))
    source = node.source()
    listener = listen(source)
    await source.read()
    node.shows(h100_sxm(0), h100_sxm(1))
    await source.read()
    node.happens(1, 94)
    event = await listener.next()
    assert (event.xid, event.gpu) == (94, h100_sxm(1).uuid)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (GPU_IS_LOST, EventKind.GPU_LOST),
        (MISMATCH, EventKind.DRIVER_RELOAD),
        (UNKNOWN, EventKind.NVML_UNAVAILABLE),
    ],
)
async def test_a_wait_that_fails_is_reported_once(
    node: NvmlNode,
    code: int,
    kind: EventKind,
    listen: Callable[[NvmlInventorySource], Listener],
) -> None:
    node.shows(h100_sxm(0))
    source = node.source()
    listener = listen(source)
    await source.read()
    node.host_breaks(rc={"nvmlEventSetWait_v2": code})
    assert (await listener.next()).kind is kind
    assert not source._pump.armed
    for _ in range(3):
        await source.read()
    node.shows(h100_sxm(0))
    await source.read()
    node.happens(0, 48)
    assert (await listener.next()).xid == 48


async def test_a_wait_that_hangs_is_found_stuck_and_blocks_no_reading_for_long(
    node: NvmlNode,
) -> None:
    node.shows(h100_sxm(0), h100_sxm(1))
    source = node.source(SHORT)
    node.host_breaks(hang=("nvmlEventSetWait_v2",))
    await source.read()
    node.shows(h100_sxm(0))
    node.host_breaks(hang=("nvmlEventSetWait_v2",))
    reading = await source.read()
    assert reading.failed_reads == (failed("gpus", None, "nvmlEventSetWait_v2", "TIMEOUT"),)
    stuck = source.stuck(time.monotonic() + 100)
    assert stuck
    assert stuck.call == "nvmlEventSetWait_v2"
    node.shows(h100_sxm(0))
    await until_ready(source)


@pytest.mark.parametrize(
    ("faults", "fields"),
    [
        ({"nvmlEventSetCreate": UNKNOWN}, {}),
        ({"nvmlEventSetCreate": NOT_SUPPORTED}, {}),
        ({}, {"event_types": None}),
        ({}, {"event_types": 1}),
    ],
)
async def test_readings_need_no_events(
    node: NvmlNode, faults: dict[str, int], fields: dict[str, object]
) -> None:
    node.shows(h100_sxm(0))
    node.change(0, **fields)
    node.host_breaks(rc=faults)
    reading = await read(node)
    assert (reading.state, reading.failed_reads) == (NvmlState.READY, ())
