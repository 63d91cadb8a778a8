"""Registration for events of one NVML session, and one wait on them."""

from collections.abc import Mapping
from typing import Any, Final

from agent.gpu.device import Device
from agent.gpu.nvml import Nvml, address
from agent.gpu.outcome import Failed, Outcome
from agent.gpu.xid import WANTED, Happening

_NOTHING_YET: Final = frozenset({"TIMEOUT"})


class EventSet:
    """A set in the library; belongs to the session that made it."""

    def __init__(self, handle: object, gpus: Mapping[int, str]) -> None:
        self._handle = handle
        self._gpus = gpus

    @property
    def gpus(self) -> frozenset[str]:
        """UUIDs of the GPUs whose events arrive here."""
        return frozenset(self._gpus.values())

    def wait(self, nvml: Nvml, milliseconds: int) -> Outcome[Happening]:
        """The next event, null where none comes in time; `nvml` is the waiting thread's."""
        return nvml.ask(
            "nvmlEventSetWait_v2",
            self._handle,
            milliseconds,
            to=self._happening,
            absent=_NOTHING_YET,
        )

    def free(self, nvml: Nvml) -> None:
        """Give the set back, before its session ends."""
        nvml.ask("nvmlEventSetFree", self._handle)

    def _happening(self, data: Any) -> Happening:  # noqa: ANN401 - nvmlEventData_t
        gpu = self._gpus.get(address(data.device))
        return Happening(gpu, int(data.eventType), int(data.eventData))


def register(nvml: Nvml, devices: Mapping[str, Device]) -> EventSet | Failed | None:
    """A set over those of `devices` that have such events; null where none has."""
    handle: Outcome[object] = nvml.ask("nvmlEventSetCreate")
    if handle is None or isinstance(handle, Failed):
        return handle
    gpus: dict[int, str] = {}
    for uuid, device in devices.items():
        types = nvml.ask("nvmlDeviceGetSupportedEventTypes", device.handle, to=_wanted)
        if isinstance(types, int) and _registered(nvml, device, types, handle):
            gpus[address(device.handle)] = uuid
    return EventSet(handle, gpus)


def _wanted(supported: int) -> int | None:
    return (supported & WANTED) or None


def _registered(nvml: Nvml, device: Device, types: int, handle: object) -> bool:
    call = "nvmlDeviceRegisterEvents"
    return nvml.ask(call, device.handle, types, handle, to=lambda _: True) is True
