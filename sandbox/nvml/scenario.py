"""What the fake NVML library answers: typed, checked, written for the library to read.

A scenario is a frozen value; `write` replaces the file in one step, so a running
program sees either the old hardware or the new. Optional facts left out are
NOT_SUPPORTED in the library. Scenarios can also be decoded from YAML with the same
field names.

This module must not know how the agent reads.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from gpuwarden.strict_yaml import YamlError, parse_plain

VARIABLE: Final = "FAKE_NVML_SCENARIO"
"""Environment variable that names the file to the library."""

MAX_GPUS: Final = 64
MAX_BYTES: Final = 1 << 20
"""Of a scenario in YAML."""
_MAX_KEY: Final = 95
_MAX_VALUE: Final = 511
_LATIN: Final = re.compile(r"[^\x00\n]*")
_BUS_ID: Final = re.compile(r"[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]")

CALLS: Final = frozenset(
    f"nvml{name}"
    for name in (
        "InitWithFlags",
        "Shutdown",
        "SystemGetDriverVersion",
        "SystemGetNVMLVersion",
        "SystemGetCudaDriverVersion_v2",
        "SystemGetConfComputeState",
        "SystemGetConfComputeSettings",
        "DeviceGetCount_v2",
        "DeviceGetHandleByIndex_v2",
        "DeviceGetIndex",
        "DeviceGetUUID",
        "DeviceGetSerial",
        "DeviceGetBoardPartNumber",
        "DeviceGetName",
        "DeviceGetVbiosVersion",
        "DeviceGetGspFirmwareVersion",
        "DeviceGetGspFirmwareMode",
        "DeviceGetPciInfo_v3",
        "DeviceGetMemoryInfo",
        "DeviceGetMemoryInfo_v2",
        "DeviceGetEccMode",
        "DeviceGetMigMode",
        "DeviceGetVirtualizationMode",
        "DeviceGetCudaComputeCapability",
        "DeviceGetArchitecture",
        "DeviceGetComputeMode",
        "DeviceGetPersistenceMode",
        "DeviceGetModuleId",
        "DeviceGetMaxMigDeviceCount",
        "DeviceGetMigDeviceHandleByIndex",
        "DeviceGetAttributes_v2",
        "DeviceGetNvLinkState",
        "DeviceGetNvLinkRemotePciInfo_v2",
        "DeviceGetNvLinkRemoteDeviceType",
        "DeviceGetGpuFabricInfo",
        "DeviceGetGpuFabricInfoV",
        "DeviceGetPlatformInfo",
        "DeviceGetComputeRunningProcesses_v2",
        "DeviceGetComputeRunningProcesses_v3",
        "DeviceGetGraphicsRunningProcesses_v2",
        "DeviceGetGraphicsRunningProcesses_v3",
        "DeviceGetSupportedEventTypes",
        "EventSetCreate",
        "DeviceRegisterEvents",
        "EventSetWait_v2",
        "EventSetFree",
    )
)
"""Calls that a scenario can make fail, slow or hang, by the library's names."""


class ScenarioError(ValueError):
    """A scenario that the library could not act out; names key, value and expectation."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parent of the scenario's parts."""


class Faults(Part, frozen=True):
    """What goes wrong, by the library's name of the call, or `*` for every call."""

    rc: dict[str, int] = {}
    """The NVML return code to answer with."""
    delay_ms: dict[str, int] = {}
    hang: tuple[str, ...] = ()
    """Calls that do not return until a scenario without them is written."""


class FakeMig(Part, frozen=True):
    """One MIG device."""

    uuid: str
    name: str | None = None
    """For example `NVIDIA H100 80GB HBM3 MIG 1g.10gb`."""
    memory_bytes: int | None = None
    gpu_slices: int | None = None
    compute_slices: int | None = None
    memory_mb: int | None = None


class FakeLink(Part, frozen=True):
    """One NVLink of a GPU."""

    active: bool | None = True
    peer: str | None = None
    """PCI bus id of the other end."""
    peer_type: int | None = None
    """0 GPU, 2 switch."""


class FakeGpu(Part, frozen=True):
    """One physical GPU; every optional fact that is None is NOT_SUPPORTED."""

    uuid: str
    pci_bus_id: str
    name: str
    serial: str | None = None
    board_part_number: str | None = None
    pci_device_id: int = 0
    """As NVML's word: device in the high half, vendor in the low one."""
    pci_subsystem_id: int = 0
    vbios: str | None = None
    gsp: str | None = None
    gsp_enabled: bool | None = None
    memory_bytes: int | None = None
    ecc: bool | None = None
    mig_mode: bool | None = None
    max_mig: int | None = None
    mig: tuple[FakeMig, ...] = ()
    virtualization: int | None = 0
    compute_capability: int | None = None
    """90 for 9.0."""
    architecture: int | None = None
    compute_mode: int | None = 0
    persistence: bool | None = True
    links: tuple[FakeLink, ...] = ()
    fabric_state: int | None = None
    """0 not supported, 1 not started, 2 in progress, 3 completed."""
    fabric_status: int = 0
    fabric_cluster: str | None = None
    """32 hex digits."""
    fabric_clique: int = 0
    chassis_serial: str | None = None
    platform_module: int | None = None
    module_id: int | None = None
    compute_pids: tuple[int, ...] | None = ()
    graphics_pids: tuple[int, ...] | None = ()
    event_types: int | None = 0x400F
    faults: Faults = Faults()


class FakeEvent(Part, frozen=True):
    """One event, delivered to the sets that were made before it was written."""

    pci_bus_id: str
    data: int
    """The XID number where `type` is 8."""
    type: int = 8
    """NVML's event type; 8 is XID."""


class Scenario(Part, frozen=True):
    """One node as NVML shall show it."""

    driver: str | None = "570.86.10"
    nvml: str | None = "12.570.86.10"
    cuda: int | None = None
    """12080 for 12.8; None where libcuda is missing."""
    cc_feature: int | None = 0
    cc_dev_tools: int = 0
    cc_multi_gpu: int = 0
    """0 none, 1 protected PCIe, 2 NVLink encryption."""
    fabric_version: int = 3
    """Highest version of the fabric struct that this driver knows."""
    platform_version: int = 2
    gpus: tuple[FakeGpu, ...] = ()
    events: tuple[FakeEvent, ...] = ()
    """All events so far, oldest first: append, never remove."""
    faults: Faults = Faults()


def load(text: str) -> Scenario:
    """Decode a scenario from YAML. Raises ScenarioError."""
    try:
        document = parse_plain(text.encode("utf-8", "surrogatepass"), max_bytes=MAX_BYTES)
        return msgspec.convert(document, Scenario)
    except (YamlError, msgspec.ValidationError) as error:
        raise ScenarioError(f"scenario: {error}") from error


def write(path: Path, scenario: Scenario) -> None:
    """Replace the file at `path` in one step. Raises ScenarioError."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(render(scenario), "utf-8", "surrogateescape")
    part.replace(path)


def render(scenario: Scenario) -> str:
    """The lines that the library reads. Raises ScenarioError."""
    _check(scenario)
    return "".join(f"{key}={_checked(key, value)}\n" for key, value in _lines(scenario))


def _lines(scenario: Scenario) -> Iterator[tuple[str, str]]:
    host = msgspec.structs.asdict(scenario)
    host |= {"gpus": len(scenario.gpus), "events": None}
    yield from _facts("host", host, scenario.faults)
    for position, gpu in enumerate(scenario.gpus):
        yield from _gpu_lines(f"gpu.{position}", gpu)
    for number, event in enumerate(scenario.events, start=1):
        yield f"event.{number}", f"{event.pci_bus_id} {event.type} {event.data}"


def _gpu_lines(at: str, gpu: FakeGpu) -> Iterator[tuple[str, str]]:
    facts = msgspec.structs.asdict(gpu)
    facts |= {"links": len(gpu.links), "mig": None}
    facts |= {name: _pids(facts[name]) for name in ("compute_pids", "graphics_pids")}
    yield from _facts(at, facts, gpu.faults)
    for index, device in enumerate(gpu.mig):
        yield from _facts(f"{at}.mig.{index}", msgspec.structs.asdict(device), Faults())
    for index, link in enumerate(gpu.links):
        yield from _facts(f"{at}.link.{index}", msgspec.structs.asdict(link), Faults())


def _pids(pids: tuple[int, ...] | None) -> str | None:
    return None if pids is None else " ".join(map(str, pids))


def _facts(at: str, facts: Mapping[str, object], faults: Faults) -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        if name != "faults" and value is not None:
            yield f"{at}.{name}", str(int(value)) if isinstance(value, bool) else str(value)
    for what, calls in (("rc", faults.rc), ("delay_ms", faults.delay_ms)):
        yield from ((f"{at}.{what}.{call}", str(number)) for call, number in calls.items())
    yield from ((f"{at}.hang.{call}", "1") for call in faults.hang)


def _checked(key: str, value: str) -> str:
    if len(key) > _MAX_KEY or len(value) > _MAX_VALUE or not _LATIN.fullmatch(value):
        raise ScenarioError(f"{key}={value!r}: one line of at most {_MAX_VALUE} characters wanted")
    return value


def _check(scenario: Scenario) -> None:
    if len(scenario.gpus) > MAX_GPUS:
        raise ScenarioError(f"gpus: {len(scenario.gpus)} given, at most {MAX_GPUS} wanted")
    buses = [gpu.pci_bus_id for gpu in scenario.gpus]
    for bus in buses:
        if not _BUS_ID.fullmatch(bus) or buses.count(bus) > 1:
            raise ScenarioError(f"pci_bus_id: {bus!r} given, 00000000:1B:00.0, each once, wanted")
    for faults in (scenario.faults, *(gpu.faults for gpu in scenario.gpus)):
        for call in (*faults.rc, *faults.delay_ms, *faults.hang):
            if call not in CALLS and call != "*":
                raise ScenarioError(f"faults: unknown call {call!r}, one of CALLS or '*' wanted")
