"""From the binding's answers to facts, one small function each.

Each takes what pynvml returned and gives the fact in the spelling of the inventory;
null where the answer is that there is none. Raises ValueError for an answer that
cannot be read. Pure; knows pynvml's shapes but does not import it.
"""

import math
import uuid
from typing import Any, Final

from agent.gpu.facts import PciAddress, Platform
from gpuwarden.evidence.model import Fabric

_NO_SERIAL: Final = frozenset({"", "0", "N/A"})
_VIRT: Final = ("none", "passthrough", "vgpu", "host-vgpu", "host-vsga")
_COMPUTE: Final = ("default", "exclusive-thread", "prohibited", "exclusive-process")
_ARCHITECTURE: Final = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}
_FABRIC_ABSENT: Final = 0
_FABRIC_COMPLETED: Final = 3
_PLATFORM_WITH_CHASSIS: Final = 2


def identifier(text: str) -> str | None:
    """A serial or part number; what means "none" is null."""
    stripped = text.strip()
    return None if stripped.upper() in _NO_SERIAL else stripped


def name(text: str) -> str | None:
    """The driver's own string; empty is null."""
    return text or None


def gsp(version: bytes) -> str | None:
    """GSP firmware version, which the binding leaves as bytes."""
    return version.decode("ascii") or None


def current(modes: list[int]) -> bool:
    """The current one of [current, pending]."""
    return modes[0] == 1


def flag(value: int) -> bool:
    """NVML's enable state."""
    return value == 1


def total(memory: Any) -> int | None:  # noqa: ANN401 - either memory struct
    """Bytes in all; GPUs with unified memory report 0, which is null."""
    return int(memory.total) or None


def pci(info: Any) -> PciAddress:  # noqa: ANN401 - nvmlPciInfo_t
    """Place and ids; the device is in the high half of NVML's word."""
    return PciAddress(bus(info), _ids(info.pciDeviceId), _ids(info.pciSubSystemId))


def bus(info: Any) -> str:  # noqa: ANN401 - nvmlPciInfo_t
    """PCI bus id, `00000000:1B:00.0`."""
    text = str(info.busId)
    bus_order(text)
    return text


def bus_order(bus_id: str) -> tuple[int, int, int, int]:
    """Where a PCI bus id comes in bus order: domain, bus, device, function."""
    domain, number, place = bus_id.split(":")
    device, function = place.split(".")
    return int(domain, 16), int(number, 16), int(device, 16), int(function, 16)


def _ids(word: int) -> str:
    return f"{word & 0xFFFF:04x}:{word >> 16:04x}"


def cuda(version: int) -> str | None:
    """12080 is 12.8."""
    return f"{version // 1000}.{version % 1000 // 10}" if version else None


def cc(feature: int, dev_tools: int, multi_gpu: int) -> str:
    """The system's confidential-compute mode, the least trustworthy first."""
    if dev_tools:
        return "devtools"
    if multi_gpu:
        return {1: "ppcie", 2: "nvle"}[multi_gpu]
    return "on" if feature else "off"


def capability(version: tuple[int, int]) -> str:
    """CUDA compute capability, `9.0`."""
    return f"{version[0]}.{version[1]}"


def architecture(number: int) -> str | None:
    """`hopper` for 9; one that is newer than this table is `arch-N`."""
    known = number < 1 << 16
    return _ARCHITECTURE.get(number, f"arch-{number}") if known else None


def virtualization(number: int) -> str:
    """Virtualisation mode as the class document spells it."""
    return _at(_VIRT, number)


def compute_mode(number: int) -> str:
    """Compute mode."""
    return _at(_COMPUTE, number)


def _at(names: tuple[str, ...], number: int) -> str:
    if number >= len(names):
        raise ValueError(number)
    return names[number]


def fabric(info: Any) -> Fabric | None:  # noqa: ANN401 - any fabric struct
    """What the driver reports of the NVLink fabric; null where it knows none.

    One that is not joined (yet, or with an error) has neither cluster nor clique.
    """
    if info.state == _FABRIC_ABSENT:
        return None
    if info.state != _FABRIC_COMPLETED or info.status != 0:
        return Fabric(kind="nvswitch", cluster_uuid=None, clique=None)
    cluster = bytes(info.clusterUuid)
    if not any(cluster):
        return Fabric(kind="nvswitch", cluster_uuid=None, clique=info.cliqueId)
    return Fabric(kind="mnnvl", cluster_uuid=str(uuid.UUID(bytes=cluster)), clique=info.cliqueId)


def platform(info: Any) -> Platform:  # noqa: ANN401 - either platform struct
    """Chassis and module; version 1 has no chassis serial. Single bytes are numbers, not text."""
    module = bytes(info)[type(info).moduleId.offset]
    if info.version >> 24 < _PLATFORM_WITH_CHASSIS:
        return Platform(None, module or None)
    return Platform(identifier(info.chassisSerialNumber), module or None)


def profile(device_name: str) -> str | None:
    """`1g.10gb` from `NVIDIA H100 80GB HBM3 MIG 1g.10gb`."""
    _, found, text = device_name.rpartition(" MIG ")
    return text.strip() or None if found else None


def attributes_profile(attributes: Any) -> str | None:  # noqa: ANN401 - device attributes struct
    """The same, made from slices and memory where the name does not show them."""
    gpu, compute = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    if not gpu or not attributes.memorySizeMB:
        return None
    size = f"{gpu}g.{math.ceil(attributes.memorySizeMB / 1024)}gb"
    return size if compute in {0, gpu} else f"{compute}c.{size}"


def pids(processes: list[Any]) -> tuple[int, ...]:
    """Process ids of a list of running processes."""
    return tuple(process.pid for process in processes)
