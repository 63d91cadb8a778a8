"""From the binding's answers to facts, one small function each.

Each takes what pynvml returned and gives the fact in the spelling of the inventory;
null where the answer is that there is none. Raises ValueError for an answer that
cannot be read or would break a rule of the inventory: whatever a driver answers, it costs
no more than that fact. Pure; knows pynvml's shapes but does not import it.
"""

import math
import uuid
from dataclasses import dataclass
from typing import Any, Final

from agent.gpu.facts import PciAddress, Platform
from gpuwarden.evidence import inventory_rules as rules
from gpuwarden.evidence.model import Fabric
from gpuwarden.evidence.use_rules import is_pid

_NO_SERIAL: Final = frozenset({"", "0", "N/A"})
_MOST_MEMORY: Final = 1 << 50
"""A pebibyte: more is no size of a GPU's memory."""
_MULTI_GPU: Final = ("none", "ppcie", "nvle")
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


def identifier(answer: str) -> str | None:
    """A serial or part number; what means "none" is null."""
    stripped = answer.strip()
    if stripped.upper() in _NO_SERIAL:
        return None
    return _such(stripped, known=rules.is_serial(stripped))


def text(answer: str) -> str | None:
    """The driver's own string; empty is null."""
    return _such(answer, known=rules.is_text(answer)) if answer else None


def version(answer: str) -> str | None:
    """A version as the driver spells it; empty is null."""
    return _such(answer, known=rules.is_version(answer)) if answer else None


def gpu_uuid(answer: str) -> str:
    """UUID of a physical GPU: what has none cannot be spoken of."""
    return _such(answer, known=rules.is_gpu_uuid(answer))


def mig_uuid(answer: str) -> str | None:
    """UUID of a MIG device; empty is null."""
    return _such(answer, known=rules.is_mig_uuid(answer)) if answer else None


def _such(answer: str, *, known: bool) -> str:
    if not known:
        raise ValueError(answer)
    return answer


def gsp(answer: bytes) -> str | None:
    """GSP firmware version, which the binding leaves as bytes."""
    return version(answer.decode("ascii"))


def current(modes: list[int]) -> bool:
    """The current one of [current, pending]."""
    return modes[0] == 1


def flag(value: int) -> bool:
    """NVML's enable state."""
    return value == 1


def total(memory: Any) -> int | None:  # noqa: ANN401 - either memory struct
    """Bytes in all; GPUs with unified memory report 0, which is null."""
    count = int(memory.total)
    if count > _MOST_MEMORY:
        raise ValueError(count)
    return count or None


def pci(info: Any) -> PciAddress:  # noqa: ANN401 - nvmlPciInfo_t
    """Place and ids; the device is in the high half of NVML's word."""
    return PciAddress(bus(info), _ids(info.pciDeviceId), _ids(info.pciSubSystemId))


def bus(info: Any) -> str:  # noqa: ANN401 - nvmlPciInfo_t
    """PCI bus id, `00000000:1B:00.0`."""
    found = str(info.busId)
    return _such(found, known=rules.is_bus_id(found))


def bus_order(bus_id: str) -> tuple[int, int, int, int]:
    """Where a PCI bus id comes in bus order: domain, bus, device, function."""
    domain, number, place = bus_id.split(":")
    device, function = place.split(".")
    return int(domain, 16), int(number, 16), int(device, 16), int(function, 16)


def _ids(word: int) -> str:
    return f"{word & 0xFFFF:04x}:{word >> 16:04x}"


def cuda(number: int) -> str | None:
    """12080 is 12.8."""
    if number < 0:
        raise ValueError(number)
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def cc(feature: int, dev_tools: int, multi_gpu: int) -> str:
    """The system's confidential-compute mode, the least trustworthy first."""
    if dev_tools:
        return "devtools"
    if multi_gpu:
        return _at(_MULTI_GPU, multi_gpu)
    return "on" if feature else "off"


def capability(numbers: tuple[int, int]) -> str:
    """CUDA compute capability, `9.0`."""
    found = f"{numbers[0]}.{numbers[1]}"
    return _such(found, known=rules.is_capability(found))


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
    if not 0 <= number < len(names):
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
    _, found, name = device_name.rpartition(" MIG ")
    return version(name.strip()) if found else None


def attributes_profile(attributes: Any) -> str | None:  # noqa: ANN401 - device attributes struct
    """The same, made from slices and memory where the name does not show them."""
    gpu, compute = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    if not gpu or not attributes.memorySizeMB:
        return None
    size = f"{gpu}g.{math.ceil(attributes.memorySizeMB / 1024)}gb"
    return version(size if compute in {0, gpu} else f"{compute}c.{size}")


@dataclass(frozen=True, slots=True)
class Pids:
    """A list of running processes."""

    pids: tuple[int, ...]
    odd: bool
    """Whether it held what is no process id; that is left out."""


def pids(processes: list[Any]) -> Pids:
    """Process ids of a list of running processes."""
    listed = tuple(process.pid for process in processes)
    known = tuple(pid for pid in listed if is_pid(pid))
    return Pids(known, odd=known != listed)
