"""One pass over NVML: asks every GPU for every fact, and keeps the others when one is lost.

Each call answers with an Outcome; DeviceLostError means that the GPU no longer answers. MIG
profiles come from the device's name or attributes: the GPU-instance calls need privilege.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from agent.gpu import decode
from agent.gpu.consequences import MEMORY_V2
from agent.gpu.facts import (
    DRIVER_GONE,
    LOST,
    NO_VALUE,
    DeviceLostError,
    DeviceSurvey,
    Failed,
    GpuFacts,
    LinkState,
    MigState,
    Outcome,
    PciAddress,
    Platform,
    Survey,
)
from agent.gpu.nvml import Nvml
from gpuwarden.evidence.model import Fabric, MigDevice, NvLink

# --- one GPU

T = TypeVar("T")

MAX_LINKS: Final = 36
MAX_MIG: Final = 56
_SWITCH: Final = 2
_MEMORY_VERSION_2: Final = 0x02000028
_FABRICS: Final = (
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t"),
    ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
    ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
)
_SILENT: Final = LOST | DRIVER_GONE
_PLATFORMS: Final = ("c_nvmlPlatformInfo_v2_t", "c_nvmlPlatformInfo_v1_t")


class Device:
    """One handle of the present session."""

    def __init__(self, nvml: Nvml, handle: object) -> None:
        self._nvml = nvml
        self.handle = handle
        self._odd_lists: list[Failed] = []

    def pci(self) -> Outcome[PciAddress]:
        """Place and ids."""
        return self._ask("nvmlDeviceGetPciInfo_v3", to=decode.pci)

    def uuid(self) -> Outcome[str]:
        """UUID of a physical GPU."""
        return self._ask("nvmlDeviceGetUUID", to=decode.gpu_uuid)

    def facts(self) -> GpuFacts:
        """Everything else about a physical GPU."""
        links = self._links()
        return GpuFacts(
            serial=self._ask("nvmlDeviceGetSerial", to=decode.identifier),
            board_part_number=self._ask("nvmlDeviceGetBoardPartNumber", to=decode.identifier),
            product=self._ask("nvmlDeviceGetName", to=decode.text),
            vbios=self._ask("nvmlDeviceGetVbiosVersion", to=decode.version),
            gsp=self._gsp(),
            memory_bytes=self._memory(),
            ecc=self._ask("nvmlDeviceGetEccMode", to=decode.current),
            mig=self._mig(),
            virt=self._ask("nvmlDeviceGetVirtualizationMode", to=decode.virtualization),
            compute_capability=self._ask(
                "nvmlDeviceGetCudaComputeCapability", to=decode.capability
            ),
            architecture=self._ask("nvmlDeviceGetArchitecture", to=decode.architecture),
            compute_mode=self._ask("nvmlDeviceGetComputeMode", to=decode.compute_mode),
            persistence_mode=self._ask("nvmlDeviceGetPersistenceMode", to=decode.flag),
            links=links,
            fabric=self._fabric(links),
            platform=self._platform(),
            module_id=self._ask("nvmlDeviceGetModuleId"),
            pids=self._pids(),
            pid_failures=tuple(self._odd_lists),
        )

    def _ask(
        self,
        call: str,
        *arguments: object,
        to: Callable[[Any], T | None] = lambda value: value,
        row: str | None = None,
    ) -> Outcome[T]:
        return _present(self._nvml.ask(call, self.handle, *arguments, to=to, row=row))

    def _fill(self, call: str, struct: str, to: Callable[[Any], T]) -> Outcome[T]:
        return _present(self._nvml.fill(call, self.handle, struct, to=to))

    def _gsp(self) -> Outcome[str]:
        enabled = self._ask("nvmlDeviceGetGspFirmwareMode", to=decode.current)
        if enabled is False or isinstance(enabled, Failed):
            return enabled or None
        return self._ask("nvmlDeviceGetGspFirmwareVersion", to=decode.gsp)

    def _memory(self) -> Outcome[int]:
        call = "nvmlDeviceGetMemoryInfo"
        newer = self._ask(call, _MEMORY_VERSION_2, to=decode.total, row=MEMORY_V2)
        return self._ask(call, to=decode.total) if newer is None else newer

    def _links(self) -> LinkState:
        links: list[NvLink] = []
        failures: list[Failed] = []
        switched = False
        for number, active in self._link_states(failures):
            peer = self._peer(number, failures) if active else None
            links.append(NvLink(link=number, active=active, peer=peer))
            switched = switched or (active and self._ends_at_switch(number, failures))
        return LinkState(tuple(links), switched, tuple(failures))

    def _link_states(self, failures: list[Failed]) -> Iterator[tuple[int, bool]]:
        for number in range(MAX_LINKS):
            active = self._ask("nvmlDeviceGetNvLinkState", number, to=decode.flag)
            if active is None:
                return
            if isinstance(active, Failed):
                failures.append(active)
            else:
                yield number, active

    def _peer(self, number: int, failures: list[Failed]) -> str | None:
        call = "nvmlDeviceGetNvLinkRemotePciInfo"
        return _value(self._ask(call, number, to=decode.bus), failures)

    def _ends_at_switch(self, number: int, failures: list[Failed]) -> bool:
        call = "nvmlDeviceGetNvLinkRemoteDeviceType"
        return _value(self._ask(call, number), failures) == _SWITCH

    def _fabric(self, links: LinkState) -> Outcome[Fabric]:
        for call, struct in _FABRICS:
            found = self._fill(call, struct, decode.fabric)
            if found is not None:
                return found
        active = any(link.active for link in links.links)
        kind = "nvswitch" if links.switched else "nvlink" if active else "none"
        return Fabric(kind=kind, cluster_uuid=None, clique=None)

    def _platform(self) -> Outcome[Platform]:
        for struct in _PLATFORMS:
            found = self._fill("nvmlDeviceGetPlatformInfo", struct, decode.platform)
            if found is not None:
                return found
        return None

    def _pids(self) -> Outcome[tuple[int, ...]]:
        compute = self._running("Compute")
        graphics = self._running("Graphics")
        for outcome in (compute, graphics):
            if isinstance(outcome, Failed):
                return outcome
        if compute is None and graphics is None:
            return None
        return tuple(sorted({*(compute or ()), *(graphics or ())}))  # type: ignore[misc] # no Failed is left

    def _running(self, what: str) -> Outcome[tuple[int, ...]]:
        for version in ("_v3", "_v2"):
            call = f"nvmlDeviceGet{what}RunningProcesses{version}"
            found = self._ask(call, to=decode.pids)
            if isinstance(found, decode.Pids):
                if found.odd:
                    self._odd_lists.append(Failed(call, NO_VALUE))
                return found.pids
            if found is not None:
                return found
        return None

    def _mig(self) -> MigState:
        mode = self._ask("nvmlDeviceGetMigMode", to=decode.current)
        if mode is not True:
            return MigState(mode, (), ())
        failures: list[Failed] = []
        devices = tuple(
            device
            for child in self._children(failures)
            if (device := child.as_mig(failures)) is not None
        )
        return MigState(mode, devices, tuple(failures))

    def _children(self, failures: list[Failed]) -> Iterator["Device"]:
        count = _value(self._ask("nvmlDeviceGetMaxMigDeviceCount", to=int), failures) or 0
        for index in range(min(count, MAX_MIG)):
            call = "nvmlDeviceGetMigDeviceHandleByIndex"
            handle: Outcome[Any] = self._ask(call, index)
            if isinstance(handle, Failed):
                failures.append(handle)
            elif handle is not None:
                yield Device(self._nvml, handle)

    def as_mig(self, failures: list[Failed]) -> MigDevice | None:
        """The facts of a MIG device; null where it has no UUID."""
        uuid = _value(self._ask("nvmlDeviceGetUUID", to=decode.mig_uuid), failures)
        if uuid is None:
            return None
        profile = _value(self._ask("nvmlDeviceGetName", to=decode.profile), failures)
        if profile is None:
            call = "nvmlDeviceGetAttributes_v2"
            profile = _value(self._ask(call, to=decode.attributes_profile), failures)
        memory = _value(self._memory(), failures)
        return MigDevice(
            uuid=uuid, profile=profile, memory_mib=None if memory is None else memory >> 20
        )


def _present(outcome: Outcome[T]) -> Outcome[T]:
    """Raises DeviceLostError where the return says that of the GPU as a whole."""
    if isinstance(outcome, Failed) and outcome.error in _SILENT:
        raise DeviceLostError(outcome)
    return outcome


def _value(outcome: Outcome[T], failures: list[Failed]) -> T | None:
    if isinstance(outcome, Failed):
        failures.append(outcome)
        return None
    return outcome


# --- all GPUs


@dataclass(frozen=True, slots=True)
class Pass:
    """What was found, and the handles to register events on."""

    survey: Survey
    devices: dict[str, Device]
    """GPUs that answer, by UUID."""

    @property
    def any_lost(self) -> bool:
        """Whether a handle of this session leads nowhere now, or to no GPU with a name."""
        return any(device.lost for device in self.survey.devices)


def take(nvml: Nvml) -> Pass:
    """Read everything once. Raises DriverReloadedError."""
    count: Outcome[int] = nvml.ask("nvmlDeviceGetCount")
    devices: dict[str, Device] = {}
    surveys = tuple(
        _device(nvml, index, devices) for index in range(count if isinstance(count, int) else 0)
    )
    survey = Survey(
        driver=nvml.ask("nvmlSystemGetDriverVersion", to=decode.version),
        cuda=nvml.ask("nvmlSystemGetCudaDriverVersion_v2", to=decode.cuda),
        cc=_cc(nvml),
        count=count,
        devices=surveys,
    )
    return Pass(survey, devices)


def _cc(nvml: Nvml) -> Outcome[str]:
    settings = nvml.cc_settings()
    if settings is not None:
        return settings
    return nvml.ask(
        "nvmlSystemGetConfComputeState",
        to=lambda state: decode.cc(state.ccFeature, state.devToolsMode, 0),
    )


def _device(nvml: Nvml, index: int, devices: dict[str, Device]) -> DeviceSurvey:
    handle: Outcome[Any] = nvml.ask("nvmlDeviceGetHandleByIndex", index)
    if isinstance(handle, Failed):
        return DeviceSurvey(index, pci=handle, uuid=handle, facts=None, lost=handle)
    return _asked(Device(nvml, handle), index, devices)


def _asked(device: Device, index: int, devices: dict[str, Device]) -> DeviceSurvey:
    """What is known when the GPU stops answering is kept: its place, then its UUID."""
    pci: Outcome[PciAddress] = None
    uuid: Outcome[str] = None
    facts: GpuFacts | None = None
    lost: Failed | None = None
    try:
        pci = device.pci()
        uuid = device.uuid()
        lost = next((x for x in (pci, uuid) if isinstance(x, Failed)), None)
        if isinstance(pci, PciAddress) and isinstance(uuid, str):
            facts = device.facts()
            devices[uuid] = device
    except DeviceLostError as error:
        lost = error.failed
    return DeviceSurvey(index, pci=pci, uuid=uuid, facts=facts, lost=lost)
