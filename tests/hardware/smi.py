"""What `nvidia-smi -q -x` says about this machine, in the inventory's spelling: a second opinion.

`nvidia-smi` asks the same driver, through its own code: what it shows otherwise than our agent,
our agent has misread. A fact that it does not show (`N/A`, or no such element) is not compared.
"""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree as ET

from gpuwarden.evidence.model import Gpu, Inventory

SMI_S: Final = 60
MIB: Final = 1 << 20
_NOT_SHOWN: Final = frozenset({"", "N/A", "[N/A]", "Unknown", "Unknown Error", "Not Found"})
_VIRT: Final = {
    "None": "none",
    "Pass-Through": "passthrough",
    "VGPU": "vgpu",
    "Host VGPU": "host-vgpu",
    "Host VSGA": "host-vsga",
}
_COMPUTE: Final = {
    "Default": "default",
    "Exclusive_Thread": "exclusive-thread",
    "Prohibited": "prohibited",
    "Exclusive_Process": "exclusive-process",
}
_SWITCH: Final = {"Enabled": True, "Disabled": False}
_IDENTIFIERS: Final = {
    "uuid": "uuid",
    "serial": "serial",
    "product_name": "product",
    "vbios_version": "vbios",
    "gsp_firmware_version": "gsp",
    "board_part_number": "board_part_number",
    "pci/pci_bus_id": "pci_bus_id",
}

Fact = str | bool | int | None


@dataclass(frozen=True, slots=True)
class SmiGpu:
    """One GPU: facts by the name of the inventory's field, and the processes on it."""

    facts: dict[str, Fact]
    pids: frozenset[int]


@dataclass(frozen=True, slots=True)
class SmiReport:
    """The whole machine."""

    driver: str | None
    cuda: str | None
    gpus: tuple[SmiGpu, ...]


def ask() -> SmiReport:
    """Run nvidia-smi. Raises OSError, CalledProcessError, TimeoutExpired or ParseError."""
    done = subprocess.run(
        ["nvidia-smi", "-q", "-x"],  # noqa: S607 - wherever the driver's package has put it
        capture_output=True,
        check=True,
        timeout=SMI_S,
    )
    return parse(done.stdout)


def parse(document: bytes) -> SmiReport:
    """Read the XML of `nvidia-smi -q -x`."""
    root = ET.fromstring(document)  # noqa: S314 - written by the driver's own program
    return SmiReport(
        driver=_shown(root, "driver_version"),
        cuda=_shown(root, "cuda_version"),
        gpus=tuple(_gpu(gpu) for gpu in root.iterfind("gpu")),
    )


def differences(inventory: Inventory, report: SmiReport) -> tuple[str, ...]:
    """Where the two disagree, one line each."""
    return tuple(_differences(inventory, report))


def _differences(inventory: Inventory, report: SmiReport) -> Iterator[str]:
    yield from _unequal("driver", inventory.host.driver, report.driver)
    yield from _unequal("cuda", inventory.host.cuda, report.cuda)
    ours = {gpu.uuid: gpu for gpu in inventory.gpus}
    theirs = {str(gpu.facts["uuid"]): gpu for gpu in report.gpus}
    for uuid in sorted({*ours, *theirs}):
        if uuid in ours and uuid in theirs:
            seen = _facts_of(ours[uuid])
            for fact, value in theirs[uuid].facts.items():
                yield from _unequal(f"{uuid} {fact}", seen[fact], value)
        else:
            yield f"{uuid}: {'only nvidia-smi' if uuid in theirs else 'only our agent'} shows it"


def _unequal(what: str, ours: Fact, theirs: Fact) -> Iterator[str]:
    if theirs is not None and ours != theirs:
        yield f"{what}: our agent says {ours!r}, nvidia-smi says {theirs!r}"


def _facts_of(gpu: Gpu) -> dict[str, Fact]:
    memory = None if gpu.memory_bytes is None else int(gpu.memory_bytes) // MIB
    return {
        **{fact: getattr(gpu, fact) for fact in _IDENTIFIERS.values()},
        "pci": gpu.pci,
        "subsystem": gpu.subsystem,
        "memory_mib": memory,
        "ecc": gpu.ecc,
        "mig": gpu.mig,
        "virt": gpu.virt,
        "architecture": gpu.architecture,
        "compute_mode": gpu.compute_mode,
        "persistence_mode": gpu.persistence_mode,
        "module_id": gpu.module_id,
        "chassis_serial": gpu.chassis_serial,
    }


def _gpu(gpu: ET.Element) -> SmiGpu:
    module = _shown(gpu, "platformInfo/module_id") or _shown(gpu, "gpu_module_id")
    return SmiGpu(
        facts={
            **{fact: _shown(gpu, path) for path, fact in _IDENTIFIERS.items()},
            "pci": _ids(_shown(gpu, "pci/pci_device_id")),
            "subsystem": _ids(_shown(gpu, "pci/pci_sub_system_id")),
            "memory_mib": _mebibytes(_shown(gpu, "fb_memory_usage/total")),
            "ecc": _SWITCH.get(_shown(gpu, "ecc_mode/current_ecc") or ""),
            "mig": _SWITCH.get(_shown(gpu, "mig_mode/current_mig") or ""),
            "virt": _VIRT.get(_shown(gpu, "gpu_virtualization_mode/virtualization_mode") or ""),
            "architecture": _lower(_shown(gpu, "product_architecture")),
            "compute_mode": _COMPUTE.get(_shown(gpu, "compute_mode") or ""),
            "persistence_mode": _SWITCH.get(_shown(gpu, "persistence_mode") or ""),
            "module_id": None if module is None else int(module),
            "chassis_serial": _shown(gpu, "platformInfo/chassis_serial_number"),
        },
        pids=frozenset(int(pid.text or "") for pid in gpu.iterfind("processes/process_info/pid")),
    )


def _shown(parent: ET.Element, path: str) -> str | None:
    text = (parent.findtext(path) or "").strip()
    return None if text in _NOT_SHOWN else text


def _ids(word: str | None) -> str | None:
    """`233010DE`, with or without 0x, is 10de:2330."""
    digits = (word or "").lower().removeprefix("0x")
    return f"{digits[4:]}:{digits[:4]}" if digits else None


def _mebibytes(text: str | None) -> int | None:
    return None if text is None else int(text.removesuffix(" MiB"))


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()
