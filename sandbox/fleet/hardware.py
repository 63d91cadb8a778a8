"""Which hardware each simulated node has, and the reading its agent would make of it.

The reading comes from the same scenario that the fake NVML shows to a real agent, by the
agent's own decoding and conclusions, but without any library; a contract test holds
the two together.
"""

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Final, TypeVar

import msgspec

from agent.claims.host import HostFacts
from agent.gpu import decode
from agent.gpu.facts import DeviceSurvey, GpuFacts, LinkState, MigState, PciAddress, Survey
from agent.gpu.facts import Platform as GpuPlatform
from agent.gpu.inventory import conclude
from agent.gpu.reading import InventoryReading, NvmlState
from gpuwarden.evidence.model import Fabric, MigDevice, NvLink
from sandbox.nvml.models import gb200, geforce, h100_sxm
from sandbox.nvml.scenario import FakeGpu, FakeLink, FakeMig, Scenario

T = TypeVar("T")
V = TypeVar("V")

_NAMES: Final = uuid.UUID("0d5a9d0e-5a5e-4f0e-8f5b-6a3a1f0c2d11")
_SWITCH: Final = 2
DRIVER: Final = "570.86.10"
NEXT_DRIVER: Final = "570.124.06"
_KINDS: Final = ("h100", "h100", "h100", "h100", "h100", "h100", "gb200", "gb200", "geforce")


@dataclass(frozen=True, slots=True)
class NodeHardware:
    """One node's name, host facts and what its NVML shows."""

    name: str
    host: HostFacts
    scenario: Scenario

    def upgraded(self, driver: str = NEXT_DRIVER) -> "NodeHardware":
        """The same node with another driver, which brings the GSP firmware of its version."""
        gpus = tuple(
            msgspec.structs.replace(gpu, gsp=gpu.gsp and driver) for gpu in self.scenario.gpus
        )
        scenario = msgspec.structs.replace(self.scenario, driver=driver, gpus=gpus)
        return NodeHardware(self.name, self.host, scenario)

    def rebooted(self, boot: int) -> "NodeHardware":
        """The same node after its `boot`-th start."""
        host = HostFacts(self.host.arch, _uuid("boot", self.name, boot), self.host.system_uuid)
        return NodeHardware(self.name, host, self.scenario)


def fleet_hardware(seed: int, nodes: int) -> tuple[NodeHardware, ...]:
    """The nodes `sim-00000`, `sim-00001` and so on; equal seeds give equal nodes."""
    draw = random.Random(seed)  # noqa: S311 - the same fleet every time is the point
    return tuple(_node(f"sim-{number:05d}", draw.choice(_KINDS)) for number in range(nodes))


def reading_of(scenario: Scenario, host: HostFacts) -> InventoryReading:
    """What the agent's NVML source reads where a library shows `scenario` without faults."""
    survey = Survey(
        driver=scenario.driver,
        cuda=None if scenario.cuda is None else decode.cuda(scenario.cuda),
        cc=_cc(scenario),
        devices=tuple(_device(index, gpu) for index, gpu in enumerate(scenario.gpus)),
        count=len(scenario.gpus),
    )
    found = conclude(survey, (), host, lambda _pid: None)
    return InventoryReading(found.inventory, found.failed_reads, found.processes, NvmlState.READY)


def _node(name: str, kind: str) -> NodeHardware:
    gpus = {
        "h100": lambda: tuple(h100_sxm(n, name) for n in range(8)),
        "gb200": lambda: tuple(gb200(n, name) for n in range(4)),
        "geforce": lambda: tuple(geforce(n, name) for n in range(4)),
    }[kind]()
    host = HostFacts("x86_64", _uuid("boot", name, 0), _uuid("system", name, 0))
    return NodeHardware(name, host, Scenario(driver=DRIVER, cuda=12080, gpus=gpus))


def _uuid(what: str, name: str, number: int) -> str:
    return str(uuid.uuid5(_NAMES, f"{what} {name} {number}"))


def _cc(scenario: Scenario) -> str | None:
    if scenario.cc_feature is None:
        return None
    return decode.cc(scenario.cc_feature, scenario.cc_dev_tools, scenario.cc_multi_gpu)


def _device(index: int, gpu: FakeGpu) -> DeviceSurvey:
    address = PciAddress(gpu.pci_bus_id, _ids(gpu.pci_device_id), _ids(gpu.pci_subsystem_id))
    return DeviceSurvey(index, address, gpu.uuid, _facts(gpu), None)


def _ids(word: int) -> str:
    return f"{word & 0xFFFF:04x}:{word >> 16:04x}"


def _facts(gpu: FakeGpu) -> GpuFacts:
    links = tuple(_link(number, link) for number, link in enumerate(gpu.links))
    switched = any(link.active and link.peer_type == _SWITCH for link in gpu.links)
    return GpuFacts(
        serial=_decoded(decode.identifier, gpu.serial),
        board_part_number=_decoded(decode.identifier, gpu.board_part_number),
        product=gpu.name,
        vbios=gpu.vbios,
        gsp=gpu.gsp if gpu.gsp_enabled is not False else None,
        memory_bytes=gpu.memory_bytes,
        ecc=gpu.ecc,
        mig=MigState(gpu.mig_mode, tuple(_mig(x) for x in gpu.mig if gpu.mig_mode), ()),
        virt=_decoded(decode.virtualization, gpu.virtualization),
        compute_capability=_decoded(_capability, gpu.compute_capability),
        architecture=_decoded(decode.architecture, gpu.architecture),
        compute_mode=_decoded(decode.compute_mode, gpu.compute_mode),
        persistence_mode=gpu.persistence,
        links=LinkState(links, switched, ()),
        fabric=_fabric(gpu, links, switched=switched),
        platform=GpuPlatform(_decoded(decode.identifier, gpu.chassis_serial), gpu.platform_module),
        module_id=gpu.module_id,
        pids=tuple(sorted({*(gpu.compute_pids or ()), *(gpu.graphics_pids or ())})),
    )


def _decoded(to: Callable[[V], T | None], value: V | None) -> T | None:
    return None if value is None else to(value)


def _capability(number: int) -> str:
    return decode.capability(divmod(number, 10))


def _link(number: int, link: FakeLink) -> NvLink:
    return NvLink(link=number, active=bool(link.active), peer=link.peer if link.active else None)


def _mig(device: FakeMig) -> MigDevice:
    profile = _decoded(decode.profile, device.name)
    if profile is None:
        slices = SimpleNamespace(
            gpuInstanceSliceCount=device.gpu_slices or 0,
            computeInstanceSliceCount=device.compute_slices or 0,
            memorySizeMB=device.memory_mb or 0,
        )
        profile = decode.attributes_profile(slices)
    memory = device.memory_bytes
    return MigDevice(
        uuid=device.uuid, profile=profile, memory_mib=None if memory is None else memory >> 20
    )


def _fabric(gpu: FakeGpu, links: tuple[NvLink, ...], *, switched: bool) -> Fabric | None:
    if not gpu.fabric_state:
        active = any(link.active for link in links)
        kind = "nvswitch" if switched else "nvlink" if active else "none"
        return Fabric(kind=kind, cluster_uuid=None, clique=None)
    cluster = bytes.fromhex(gpu.fabric_cluster) if gpu.fabric_cluster else bytes(16)
    return decode.fabric(
        SimpleNamespace(
            state=gpu.fabric_state,
            status=gpu.fabric_status,
            clusterUuid=cluster,
            cliqueId=gpu.fabric_clique,
        )
    )
