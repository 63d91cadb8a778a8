"""The node's GPUs as the Attester sees them: readings on request, failure notices in between.

Implements `GpuInventorySource` and `GpuEventSource` over one NVML session. A reading always comes
back within its deadlines, whatever the driver does. Only a driver that was exchanged under this
process ends it (DriverReloadedError from `read`), and a call that never returns (`stuck`), which
the owner of the process must watch.

NVML lists the GPUs when it is initialised. A session is kept while all it listed answers: closing
it would let an idle GPU without persistence mode power down, and loses events in between. It is
renewed within the reading as soon as a GPU of it is lost or the count differs, and before the
reading while a GPU is missing or has no name.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from agent.claims.host import HostFacts
from agent.gpu.events import EventPump, register
from agent.gpu.facts import (
    DRIVER_GONE,
    TIMED_OUT,
    DriverReloadedError,
    Failed,
    NvmlUnavailableError,
    Outcome,
)
from agent.gpu.inventory import Conclusion, KnownGpu, conclude, nothing_known
from agent.gpu.nvml import Nvml
from agent.gpu.reading import EventKind, GpuEvent, InventoryReading, NvmlState
from agent.gpu.survey import Pass, take
from agent.gpu.worker import CallOverdueError, CallWatch, Deadlines, NvmlThread
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.names import Event

# --- the session

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
        events = register(self._nvml, found.devices, self._unwatched)
        if events is not None:
            self._pump.install(events)


# --- the source

MAX_WAITING_EVENTS: Final = 16_384
"""Per listener, which takes them as soon as the loop runs; beyond, the oldest is dropped."""

STUCK_AFTER: Final = 3
"""Call deadlines after which a call counts as never returning."""


@dataclass(frozen=True, slots=True)
class StuckCall:
    """A call that will not come back; the process must end so that it starts afresh."""

    call: str
    seconds: float


class NvmlInventorySource:
    """One per process: the library's state is the process's."""

    def __init__(
        self,
        host: HostFacts,
        pod_of: Callable[[int], str | None],
        *,
        deadlines: Deadlines | None = None,
        known: tuple[KnownGpu, ...] = (),
    ) -> None:
        """`known`: GPUs as an earlier process last saw them, so that lost ones have a name."""
        self._host = host
        self._pod_of = pod_of
        self._deadlines = deadlines or Deadlines()
        self._watches = (CallWatch(), CallWatch())
        self._thread = NvmlThread(self._watches[0], self._deadlines)
        self._pump = EventPump(self._watches[1], self._deadlines, self._notify_from_thread)
        self._session = Session(Nvml(self._watches[0]), self._pump, self._unwatched)
        self._known = known
        self._lost: frozenset[str] = frozenset()
        self._any_lost = False
        """Whether the last pass found a GPU of which nothing, or no name, could be had."""
        self._state = NvmlState.READY
        self._listeners: set[asyncio.Queue[GpuEvent]] = set()
        self._one_at_a_time = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._log = logger("gpu")

    @property
    def known(self) -> tuple[KnownGpu, ...]:
        """What to keep for the next process."""
        return self._known

    async def read(self) -> InventoryReading:
        """A complete pass that begins after this call. Raises DriverReloadedError."""
        async with self._one_at_a_time:
            self._loop = asyncio.get_running_loop()
            try:
                conclusion = await self._thread.run(self._pass)
            except DriverReloadedError as error:
                self._notify(GpuEvent(EventKind.DRIVER_RELOAD, None, None, str(error)))
                raise
            except NvmlUnavailableError as error:
                return self._unavailable(error.failed, str(error))
            except CallOverdueError as error:
                return self._unavailable(Failed(error.call, TIMED_OUT), str(error))
            return self._ready(conclusion)

    async def events(self) -> AsyncIterator[GpuEvent]:
        """Failure notices as it comes, to each listener all of it; does not end by itself."""
        queue: asyncio.Queue[GpuEvent] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)

    def stuck(self, now: float) -> StuckCall | None:
        """The call that will never return, if there is one; `now` is `time.monotonic()`."""
        limit = STUCK_AFTER * self._deadlines.call_s
        for watch in self._watches:
            if record := watch.overdue(limit, now):
                return StuckCall(record.name, now - record.started)
        return None

    async def aclose(self) -> None:
        """Close the library, unless a call keeps it, and let the threads end."""
        try:
            await self._thread.finish()
            await self._thread.run(self._session.close)
        except CallOverdueError as error:
            self._log.warning(Event.NVML_CALL_FAILED, call=error.call, error=TIMED_OUT)
        except NvmlUnavailableError as error:
            self._unwatched(error.failed)
        self._thread.close()
        self._pump.close()

    def _pass(self) -> Conclusion:
        """On the NVML thread."""
        found = self._session.read(renew=bool(self._lost) or self._any_lost)
        self._any_lost = found.any_lost
        return conclude(found.survey, self._known, self._host, self._pod_of)

    def _ready(self, conclusion: Conclusion) -> InventoryReading:
        self._known, self._state = conclusion.known, NvmlState.READY
        before, self._lost = self._lost, frozenset(x.uuid for x in conclusion.inventory.lost)
        self._pump.expect_pauses(expected=bool(self._lost))
        for gpu in conclusion.inventory.lost:
            if gpu.uuid not in before:
                self._notify(GpuEvent(EventKind.GPU_LOST, gpu.uuid, None, gpu.error))
        return InventoryReading(
            inventory=conclusion.inventory,
            failed_reads=conclusion.failed_reads,
            processes=conclusion.processes,
            state=NvmlState.READY,
        )

    def _unavailable(self, failed: Failed, detail: str) -> InventoryReading:
        if self._state is NvmlState.READY and self._known:
            self._notify(GpuEvent(EventKind.NVML_UNAVAILABLE, None, None, detail))
        self._state = NvmlState.UNAVAILABLE
        inventory, failed_reads = nothing_known(failed, self._host)
        return InventoryReading(
            inventory=inventory,
            failed_reads=failed_reads,
            processes=None,
            state=NvmlState.UNAVAILABLE,
            detail=detail,
        )

    def _notify(self, event: GpuEvent) -> None:
        for queue in self._listeners:
            if queue.qsize() >= MAX_WAITING_EVENTS:
                queue.get_nowait()
            queue.put_nowait(event)

    def _notify_from_thread(self, event: GpuEvent) -> None:
        self._on_loop(lambda: self._notify(event))

    def _unwatched(self, failed: Failed) -> None:
        fields = {"call": failed.call, "error": failed.error}
        self._on_loop(lambda: self._log.warning(Event.NVML_CALL_FAILED, **fields))

    def _on_loop(self, do: Callable[[], None]) -> None:
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(do)
        except RuntimeError:
            return  # the loop is closed: nobody is left to hear it
