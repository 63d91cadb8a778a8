"""Waits for NVML events on a thread of its own, in slices, and passes them on.

Slices, because a set must not be waited on while its session is closed: `pause` comes
back when the thread is out of the library. Events that come between two sets are not
seen here; what they did to a GPU the next reading sees.
"""

import threading
from collections.abc import Callable

from agent.gpu.event_set import EventSet
from agent.gpu.nvml import Nvml
from agent.gpu.outcome import DRIVER_GONE, LOST, DriverReloadedError, Failed
from agent.gpu.reading import EventKind, GpuEvent
from agent.gpu.watch import CallWatch
from agent.gpu.worker import CallOverdueError, Deadlines
from agent.gpu.xid import Happening, failure_notice


class EventPump:
    """The waiting thread; started by the first set it is given."""

    def __init__(
        self,
        watch: CallWatch,
        deadlines: Deadlines,
        tell: Callable[[GpuEvent], None],
        fault: Callable[[Happening], None],
    ) -> None:
        """`tell` gets failure notices, `fault` an application's own faults; both on this thread."""
        self._nvml = Nvml(watch)
        self._deadlines = deadlines
        self._tell = tell
        self._fault = fault
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
            try:
                outcome = events.wait(self._nvml, int(self._wait_s * 1000))
            except DriverReloadedError as error:
                outcome = error.failed
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
            news = failure_notice(outcome)
            if news is None:
                self._fault(outcome)
            else:
                self._tell(news)
        elif isinstance(outcome, Failed) and not self._failing:
            self._tell(_failure(outcome))
        self._failing = isinstance(outcome, Failed)


def _failure(failed: Failed) -> GpuEvent:
    """A wait that fails is failure notices itself: from here on, XIDs would be missed.

    Told once: the reading it leads to makes a new set, which may fail the same way.
    """
    kind = EventKind.NVML_UNAVAILABLE
    if failed.error in LOST:
        kind = EventKind.GPU_LOST
    elif failed.error in DRIVER_GONE:
        kind = EventKind.DRIVER_RELOAD
    return GpuEvent(kind, None, None, f"{failed.call}: {failed.error}")
