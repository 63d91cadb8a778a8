"""Failure notices from the driver: what NVML events mean, and the thread that waits for them.

An XID is the driver's error number (NVIDIA: XID errors). Each is reported, also one that is only
the application's own fault: what follows from it is policy, and that is the controller's.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.gpu.facts import DRIVER_GONE, LOST, Failed, Outcome
from agent.gpu.nvml import Nvml, address
from agent.gpu.reading import EventKind, GpuEvent
from agent.gpu.survey import Device
from agent.gpu.worker import CallOverdueError, CallWatch, Deadlines

# --- which events count

XID_EVENT: Final = 0x0008
UNAVAILABLE_EVENT: Final = 0x4000
WANTED: Final = XID_EVENT | UNAVAILABLE_EVENT
"""The event types that are registered for."""

OFF_THE_BUS: Final = 79
"""The GPU has fallen off the bus."""


@dataclass(frozen=True, slots=True)
class Happening:
    """One event as NVML reports it, with the GPU it is about."""

    gpu: str | None
    type: int
    data: int


def failure_notice(happening: Happening) -> GpuEvent:
    """The event to report."""
    if happening.type == UNAVAILABLE_EVENT:
        return GpuEvent(EventKind.GPU_LOST, happening.gpu, None, "NVML: GPU unavailable")
    if happening.data == OFF_THE_BUS:
        return GpuEvent(EventKind.GPU_LOST, happening.gpu, happening.data, "fallen off the bus")
    return GpuEvent(EventKind.XID, happening.gpu, happening.data, f"XID {happening.data}")


# --- registration


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
        )

    def free(self, nvml: Nvml) -> None:
        """Give the set back, before its session ends."""
        nvml.ask("nvmlEventSetFree", self._handle)

    def _happening(self, data: Any) -> Happening:  # noqa: ANN401 - nvmlEventData_t
        gpu = self._gpus.get(address(data.device))
        return Happening(gpu, int(data.eventType), int(data.eventData))


def register(
    nvml: Nvml, devices: Mapping[str, Device], unwatched: Callable[[Failed], None]
) -> EventSet | None:
    """A set over those of `devices` that have such events; null where no set can be had.

    `unwatched` hears of each failure: no events will come of that GPU, or of none.
    """
    handle: Outcome[object] = nvml.ask("nvmlEventSetCreate")
    if isinstance(handle, Failed):
        unwatched(handle)
    if handle is None or isinstance(handle, Failed):
        return None
    gpus: dict[int, str] = {}
    for uuid, device in devices.items():
        found = _registered(nvml, device, handle)
        if isinstance(found, Failed):
            unwatched(found)
        elif found:
            gpus[address(device.handle)] = uuid
    return EventSet(handle, gpus)


def _wanted(supported: int) -> int | None:
    return (supported & WANTED) or None


def _registered(nvml: Nvml, device: Device, handle: object) -> Outcome[bool]:
    types = nvml.ask("nvmlDeviceGetSupportedEventTypes", device.handle, to=_wanted)
    if types is None or isinstance(types, Failed):
        return types
    call = "nvmlDeviceRegisterEvents"
    return nvml.ask(call, device.handle, types, handle, to=lambda _: True)


# --- the thread that waits


class EventPump:
    """The waiting thread; started by the first set it is given."""

    def __init__(
        self,
        watch: CallWatch,
        deadlines: Deadlines,
        notify: Callable[[GpuEvent], None],
    ) -> None:
        """`notify` gets failure notices, on this thread."""
        self._nvml = Nvml(watch)
        self._deadlines = deadlines
        self._notify = notify
        self._set: EventSet | None = None
        self._inside = False
        self._ended = False
        self._failing = False
        self._wait_s = deadlines.wait_s
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def armed(self) -> bool:
        """Whether events of the present session arrive."""
        return self._set is not None

    def install(self, events: EventSet) -> None:
        """Wait on this set from now on."""
        with self._change:
            self._set = events
            self._change.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="nvml-events", daemon=True)
            self._thread.start()

    def pause(self) -> EventSet | None:
        """Stop waiting; returns the set once nobody is in it. Raises CallOverdueError."""
        with self._change:
            events, self._set = self._set, None
            limit = self._deadlines.call_s
            if not self._change.wait_for(lambda: not self._inside, limit):
                raise CallOverdueError("nvmlEventSetWait_v2", limit)
            return events

    def expect_pauses(self, *, expected: bool) -> None:
        """Whether each reading pauses now: then it must not wait long for a wait's end."""
        limits = self._deadlines
        self._wait_s = limits.brief_wait_s if expected else limits.wait_s

    def close(self) -> None:
        """Let the thread end."""
        with self._change:
            self._ended = True
            self._set = None
            self._change.notify_all()

    def _serve(self) -> None:
        while (events := self._next_set()) is not None:
            outcome = events.wait(self._nvml, int(self._wait_s * 1000))
            self._leave(drop=events if isinstance(outcome, Failed) else None)
            self._pass_on(outcome)

    def _next_set(self) -> EventSet | None:
        with self._change:
            self._change.wait_for(lambda: self._ended or self._set is not None)
            self._inside = self._set is not None
            return self._set

    def _leave(self, drop: EventSet | None) -> None:
        """A set that fails is let go; the next reading makes another."""
        with self._change:
            self._inside = False
            if drop is not None and self._set is drop:
                self._set = None
            self._change.notify_all()

    def _pass_on(self, outcome: Happening | Failed | None) -> None:
        if isinstance(outcome, Happening):
            self._notify(failure_notice(outcome))
        elif isinstance(outcome, Failed) and not self._failing:
            self._notify(_failure(outcome))
        self._failing = isinstance(outcome, Failed)


def _failure(failed: Failed) -> GpuEvent:
    """A wait that fails is a failure itself: from here on, XIDs would be missed.

    Reported once: the reading it leads to makes a new set, which may fail the same way.
    """
    kind = EventKind.NVML_UNAVAILABLE
    if failed.error in LOST:
        kind = EventKind.GPU_LOST
    elif failed.error in DRIVER_GONE:
        kind = EventKind.DRIVER_RELOAD
    return GpuEvent(kind, None, None, f"{failed.call}: {failed.error}")
