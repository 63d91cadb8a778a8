"""Keeps one NVML session, and begins a new one when what it enumerated is no longer true.

NVML lists the GPUs when it is initialised. A session is kept while all it listed
answers: closing it would let an idle GPU without persistence mode power down, and
loses events in between. It is renewed within the reading as soon as a GPU of it is
lost or the count differs, and before the reading while a known GPU is missing.

Runs on the NVML thread only.
"""

from collections.abc import Callable
from typing import Final

from agent.gpu.event_set import register
from agent.gpu.events import EventPump
from agent.gpu.nvml import Nvml
from agent.gpu.outcome import (
    DRIVER_GONE,
    DriverReloadedError,
    Failed,
    NvmlUnavailableError,
    Outcome,
)
from agent.gpu.survey import Pass, take

_MISMATCH: Final = "LIB_RM_VERSION_MISMATCH"
_NOT_LOADED: Final = "DRIVER_NOT_LOADED"


class Session:
    """Open or not; `read` does whatever is needed."""

    def __init__(self, nvml: Nvml, pump: EventPump, unwatched: Callable[[Failed], None]) -> None:
        """`unwatched` hears when no events can be had."""
        self._nvml = nvml
        self._pump = pump
        self._unwatched = unwatched
        self._is_open = False
        self._was_open = False
        self._refusal = ""
        self._count = 0

    def read(self, *, renew: bool) -> Pass:
        """One pass; in a new session if `renew`.

        Raises NvmlUnavailableError where there is no library or driver, its kind
        DriverReloadedError where this process will never read again, and CallOverdueError
        where the event thread does not come out of the library.
        """
        if renew:
            self.close()
        is_new = self._open()
        found = take(self._nvml)
        if not is_new and self._is_outdated(found):
            self.close()
            self._open()
            found = take(self._nvml)
        self._listen(found)
        return found

    def close(self) -> None:
        """End the session, events first."""
        events = self._pump.pause()
        if events is not None:
            events.free(self._nvml)
        if self._is_open:
            self._nvml.close()
            self._is_open = False

    def _open(self) -> bool:
        if self._is_open:
            return False
        try:
            self._nvml.open()
        except NvmlUnavailableError as error:
            raise self._refused(error) from None
        self._is_open = self._was_open = True
        count: Outcome[int] = self._nvml.ask("nvmlDeviceGetCount")
        self._count = count if isinstance(count, int) else 0
        return True

    def _refused(self, error: NvmlUnavailableError) -> NvmlUnavailableError:
        """A driver that was there and is gone, or came in another version than the library."""
        before, self._refusal = self._refusal, error.failed.error
        came_different = before == _NOT_LOADED and self._refusal == _MISMATCH
        if self._refusal in DRIVER_GONE and (self._was_open or came_different):
            return DriverReloadedError(error.failed)
        return error

    def _is_outdated(self, found: Pass) -> bool:
        return found.any_lost or found.survey.count != self._count

    def _listen(self, found: Pass) -> None:
        if self._pump.armed or not found.devices:
            return
        events = register(self._nvml, found.devices)
        if isinstance(events, Failed):
            self._unwatched(events)
        elif events is not None:
            self._pump.install(events)
