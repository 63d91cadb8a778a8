"""One pass over NVML: ask every GPU for every fact, and keep the others when one is lost."""

from dataclasses import dataclass
from typing import Any

from agent.gpu import decode
from agent.gpu.device import Device
from agent.gpu.facts import DeviceSurvey, GpuFacts, PciAddress, Survey
from agent.gpu.nvml import Nvml
from agent.gpu.outcome import ABSENT, LOST, DeviceLostError, Failed, Outcome


@dataclass(frozen=True, slots=True)
class Pass:
    """What was found, and the handles to register events on."""

    survey: Survey
    devices: dict[str, Device]
    """GPUs that answer, by UUID."""

    @property
    def any_lost(self) -> bool:
        """Whether a handle of this session leads nowhere now."""
        return any(device.lost for device in self.survey.devices)


def take(nvml: Nvml) -> Pass:
    """Read everything once. Raises DriverReloadedError."""
    count: Outcome[int] = nvml.ask("nvmlDeviceGetCount")
    devices: dict[str, Device] = {}
    surveys = tuple(
        _device(nvml, index, devices) for index in range(count if isinstance(count, int) else 0)
    )
    survey = Survey(
        driver=nvml.ask("nvmlSystemGetDriverVersion", to=decode.name),
        cuda=_cuda(nvml),
        cc=_cc(nvml),
        count=count,
        devices=surveys,
    )
    return Pass(survey, devices)


def _cuda(nvml: Nvml) -> Outcome[str]:
    absent = ABSENT | {"LIBRARY_NOT_FOUND"}  # libcuda's, which a node need not have
    return nvml.ask("nvmlSystemGetCudaDriverVersion_v2", to=decode.cuda, absent=absent)


def _cc(nvml: Nvml) -> Outcome[str]:
    settings = nvml.cc_settings()
    if settings is not None:
        return settings
    return nvml.ask(
        "nvmlSystemGetConfComputeState",
        to=lambda state: decode.cc(state.ccFeature, state.devToolsMode, 0),
    )


def _device(nvml: Nvml, index: int, devices: dict[str, Device]) -> DeviceSurvey:
    handle: Outcome[Any] = nvml.ask("nvmlDeviceGetHandleByIndex", index, absent=frozenset())
    if isinstance(handle, Failed):
        lost = handle if handle.error in LOST else None
        return DeviceSurvey(index, pci=handle, uuid=handle, facts=None, lost=lost)
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
        if isinstance(pci, PciAddress) and isinstance(uuid, str):
            facts = device.facts()
            devices[uuid] = device
    except DeviceLostError as error:
        lost = error.failed
    return DeviceSurvey(index, pci=pci, uuid=uuid, facts=facts, lost=lost)
