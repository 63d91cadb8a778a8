"""What a well-formed inventory is: patterns, enumerations, bounds and no duplicates.

Pure, and only about one inventory: whether reads failed, whether GPUs are enrolled or
claimed elsewhere and whether versions are acceptable is decided by the Verifier.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

import msgspec

from gpuwarden.evidence.model import Fabric, Gpu, Host, Inventory, LostGpu, MigDevice
from gpuwarden.evidence.strict_json import MAX_INT, quote

MAX_GPUS: Final = 64
"""GPUs of a node, those that answer and those that are lost, each."""
MAX_MIG_DEVICES: Final = 56
"""MIG devices of a GPU: 7 GPU instances of 7 compute instances, rounded up to 8."""
MAX_NVLINKS: Final = 64
_KINDS: Final = 64
"""Kinds of GPU whose findings are remembered; few, because a peer can make each one large."""

CC_MODES: Final = frozenset({"devtools", "ppcie", "nvle", "on", "off"})
VIRT_MODES: Final = frozenset({"none", "passthrough", "vgpu", "host-vgpu", "host-vsga"})
FABRIC_KINDS: Final = frozenset({"none", "nvlink", "nvswitch", "mnnvl"})

_HEX_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_GPU_UUID: Final = re.compile(f"GPU-{_HEX_UUID}")
_MIG_UUID: Final = re.compile(f"MIG-{_HEX_UUID}")
_ANY_UUID: Final = re.compile(_HEX_UUID, re.IGNORECASE)
_PCI: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}")
_BUS_ID: Final = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")
_VERSION: Final = re.compile(r"[\x21-\x7e]{1,80}")
_TEXT: Final = re.compile(r"[\x20-\x7e]{1,128}")
_SERIAL: Final = re.compile(r"[\x20-\x7e]{0,64}")
_ARCH: Final = re.compile(r"[a-z0-9_]{2,32}")
_CAPABILITY: Final = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_BYTES: Final = re.compile(r"0|[1-9][0-9]{0,18}")

_VERSION_TEXT: Final = "1 to 80 printable ASCII characters without blanks"
_PLAIN_TEXT: Final = "1 to 128 printable ASCII characters"
_PCI_TEXT: Final = "vendor:device, four lower-case hex digits each"
_BUS_TEXT: Final = "domain:bus:device.function in hex"


def inventory_findings(inventory: Inventory) -> tuple[str, ...]:
    """Everything that is wrong with `inventory`, one line each; empty when it is well-formed."""
    return tuple(_findings(inventory))


def is_gpu_uuid(text: str) -> bool:
    """Whether `text` names a physical GPU: `GPU-` and a lower-case UUID."""
    return _GPU_UUID.fullmatch(text) is not None


def is_mig_uuid(text: str) -> bool:
    """Whether `text` names a MIG device: `MIG-` and a lower-case UUID."""
    return _MIG_UUID.fullmatch(text) is not None


def is_version(text: str) -> bool:
    """Whether `text` may be a driver, firmware or profile name."""
    return _VERSION.fullmatch(text) is not None


def is_text(text: str) -> bool:
    """Whether `text` may be a product or other name for people."""
    return _TEXT.fullmatch(text) is not None


def is_serial(text: str) -> bool:
    """Whether `text` may be a serial or part number."""
    return _SERIAL.fullmatch(text) is not None


def is_bus_id(text: str) -> bool:
    """Whether `text` is a PCI bus id."""
    return _BUS_ID.fullmatch(text) is not None


def is_capability(text: str) -> bool:
    """Whether `text` is a CUDA compute capability."""
    return _CAPABILITY.fullmatch(text) is not None


def is_small(number: int) -> bool:
    """Whether a document may hold the number."""
    return 0 <= number <= MAX_INT


def is_fabric(fabric: Fabric) -> bool:
    """Whether membership in an NVLink fabric is well-formed."""
    return not tuple(_fabric("fabric", fabric))


def _findings(inventory: Inventory) -> Iterator[str]:
    yield from _host(inventory.host)
    yield from _count("gpus", len(inventory.gpus), MAX_GPUS)
    yield from _count("lost", len(inventory.lost), MAX_GPUS)
    for position, gpu in enumerate(inventory.gpus[:MAX_GPUS]):
        yield from _gpu(f"gpus[{position}]", gpu)
    for position, lost in enumerate(inventory.lost[:MAX_GPUS]):
        yield from _lost(f"lost[{position}]", lost)
    yield from _duplicates(inventory)


def _host(host: Host) -> Iterator[str]:
    yield from _match("host.arch", host.arch, _ARCH, "a machine name as `uname -m` gives it")
    yield from _match("host.driver", host.driver, _VERSION, _VERSION_TEXT)
    yield from _match("host.cuda", host.cuda, _VERSION, _VERSION_TEXT)
    yield from _one_of("host.cc", host.cc, CC_MODES)
    yield from _match("host.systemUuid", host.system_uuid, _ANY_UUID, "a UUID")


def _gpu(at: str, gpu: Gpu) -> Iterator[str]:
    yield from _place(at, gpu)
    yield from _match(f"{at}.serial", gpu.serial, _SERIAL, "at most 64 printable ASCII characters")
    yield from _range(f"{at}.moduleId", gpu.module_id, MAX_INT)
    yield from (f"{at}.{line}" for line in _kind_findings(_kind_of(gpu)))
    yield from _mig_devices(at, gpu.mig_devices)


def _kind_of(gpu: Gpu) -> Gpu:
    """The GPU without what differs between equal ones."""
    return msgspec.structs.replace(
        gpu, uuid="", serial=None, pci_bus_id="", index=0, module_id=None, mig_devices=()
    )


@lru_cache(_KINDS)
def _kind_findings(gpu: Gpu) -> tuple[str, ...]:
    """What is wrong with facts that a whole fleet shares: worked out once for all."""
    return tuple(_shared(gpu))


def _shared(gpu: Gpu) -> Iterator[str]:
    for name, version in (("vbios", gpu.vbios), ("gsp", gpu.gsp)):
        yield from _match(name, version, _VERSION, _VERSION_TEXT)
    for name, pci in (("pci", gpu.pci), ("subsystem", gpu.subsystem)):
        yield from _match(name, pci, _PCI, _PCI_TEXT)
    for name, text in _texts(gpu):
        yield from _match(name, text, _TEXT, _PLAIN_TEXT)
    yield from _match("memoryBytes", gpu.memory_bytes, _BYTES, "a decimal number")
    yield from _one_of("virt", gpu.virt, VIRT_MODES)
    yield from _match("computeCapability", gpu.compute_capability, _CAPABILITY, "major.minor")
    yield from _fabric("fabric", gpu.fabric)
    yield from _links(gpu)


def _place(at: str, gpu: Gpu | LostGpu) -> Iterator[str]:
    yield from _match(f"{at}.uuid", gpu.uuid, _GPU_UUID, "GPU- and a lower-case UUID")
    yield from _match(f"{at}.pciBusId", gpu.pci_bus_id, _BUS_ID, _BUS_TEXT)
    yield from _range(f"{at}.index", gpu.index, 2 * MAX_GPUS - 1)


def _texts(gpu: Gpu) -> tuple[tuple[str, str | None], ...]:
    return (
        ("boardPartNumber", gpu.board_part_number),
        ("product", gpu.product),
        ("architecture", gpu.architecture),
        ("computeMode", gpu.compute_mode),
        ("chassisSerial", gpu.chassis_serial),
    )


def _lost(at: str, lost: LostGpu) -> Iterator[str]:
    yield from _place(at, lost)
    yield from _match(f"{at}.error", lost.error, _TEXT, _PLAIN_TEXT)


def _fabric(at: str, fabric: Fabric | None) -> Iterator[str]:
    if fabric is not None:
        yield from _one_of(f"{at}.kind", fabric.kind, FABRIC_KINDS)
        yield from _match(f"{at}.clusterUuid", fabric.cluster_uuid, _ANY_UUID, "a UUID")
        yield from _range(f"{at}.clique", fabric.clique, MAX_INT)


def _links(gpu: Gpu) -> Iterator[str]:
    yield from _count("nvlinks", len(gpu.nvlinks), MAX_NVLINKS)
    for position, link in enumerate(gpu.nvlinks[:MAX_NVLINKS]):
        place = f"nvlinks[{position}]"
        yield from _range(f"{place}.link", link.link, MAX_NVLINKS - 1)
        yield from _match(f"{place}.peer", link.peer, _BUS_ID, _BUS_TEXT)
    yield from _twice("nvlinks", "link", (str(x.link) for x in gpu.nvlinks))


def _mig_devices(at: str, devices: tuple[MigDevice, ...]) -> Iterator[str]:
    yield from _count(f"{at}.migDevices", len(devices), MAX_MIG_DEVICES)
    for position, device in enumerate(devices[:MAX_MIG_DEVICES]):
        place = f"{at}.migDevices[{position}]"
        yield from _match(f"{place}.uuid", device.uuid, _MIG_UUID, "MIG- and a lower-case UUID")
        yield from _match(f"{place}.profile", device.profile, _VERSION, _VERSION_TEXT)
        yield from _range(f"{place}.memoryMiB", device.memory_mib, MAX_INT)


def _duplicates(inventory: Inventory) -> Iterator[str]:
    cards: tuple[Gpu | LostGpu, ...] = (*inventory.gpus, *inventory.lost)
    migs = (device.uuid for gpu in inventory.gpus for device in gpu.mig_devices)
    yield from _twice("inventory", "UUID", (*(x.uuid for x in cards), *migs))
    yield from _twice("inventory", "index", (str(x.index) for x in cards))
    yield from _twice("inventory", "PCI bus id", (x.pci_bus_id.lower() for x in cards))


def _twice(at: str, what: str, values: Iterable[str]) -> Iterator[str]:
    for value, count in Counter(values).items():
        if count > 1:
            yield f"{at}: {what} '{quote(value)}' appears {count} times, expected once"


def _match(at: str, value: str | None, pattern: re.Pattern[str], expected: str) -> Iterator[str]:
    if value is not None and not pattern.fullmatch(value):
        yield f"{at}: '{quote(value)}' is not {expected}"


def _one_of(at: str, value: str | None, values: frozenset[str]) -> Iterator[str]:
    if value is not None and value not in values:
        yield f"{at}: '{quote(value)}' is not one of {', '.join(sorted(values))}"


def _range(at: str, value: int | None, highest: int) -> Iterator[str]:
    if value is not None and not 0 <= value <= highest:
        yield f"{at}: {value} is not between 0 and {highest}"


def _count(at: str, count: int, highest: int) -> Iterator[str]:
    if count > highest:
        yield f"{at}: {count} entries, at most {highest} are allowed"
