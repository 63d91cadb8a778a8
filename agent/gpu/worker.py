"""The one thread that may block in NVML, and the watch on the call that it is in.

The event loop watches the call. A call past its deadline ends the wait, not the call: nothing can
end a call into a driver. Until it comes back the thread is busy and every further pass is refused
at once. The thread is a daemon: a call that never returns must not keep the process from ending.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeVar

# --- the watch


class CallRecord(NamedTuple):
    """A call that has not returned yet."""

    name: str
    started: float
    """`time.monotonic()` seconds."""


class PassAbandonedError(Exception):
    """The pass that this thread still works on has been given up."""


class CallWatch:
    """The call in progress on one thread."""

    def __init__(self) -> None:
        self._current: CallRecord | None = None
        self._abandoned = False

    @property
    def current(self) -> CallRecord | None:
        """The call that is in progress, if one is."""
        return self._current

    def calling(self, name: str) -> Self:
        """Mark a call, as `with watch.calling(name):`, at some hundreds in each pass.

        Raises PassAbandonedError instead of starting one nobody waits for.
        """
        if self._abandoned:
            raise PassAbandonedError
        self._current = CallRecord(name, time.monotonic())
        return self

    def __enter__(self) -> None:
        """Nothing: the call is marked."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._current = None

    def abandon(self) -> None:
        """Let the pass in progress end before its next call."""
        self._abandoned = True

    def renew(self) -> None:
        """A new pass begins."""
        self._abandoned = False

    def overdue(self, limit_s: float, now: float) -> CallRecord | None:
        """The call in progress, if it has taken longer than `limit_s`."""
        record = self._current
        return record if record and now - record.started > limit_s else None


# --- the thread

T = TypeVar("T")


class CallOverdueError(Exception):
    """A call, or the pass as a whole, did not end in time."""

    def __init__(self, call: str, seconds: float) -> None:
        super().__init__(f"{call} has not returned for {seconds:.1f} s")
        self.call = call
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds."""

    call_s: float = 5.0
    """One NVML call (`agent.nvmlTimeout`)."""
    pass_s: float = 10.0
    """All calls of one pass together; below the time to live of a challenge."""
    wait_s: float = 1.0
    """One wait for events, which come at once; a new session has to wait for its end.

    Each wait is a wake-up: short ones were most of what an idle agent costs.
    """
    brief_wait_s: float = 0.1
    """The same while a GPU is missing, when each reading begins a new session."""


class NvmlThread:
    """Runs passes; started by the first one."""

    def __init__(self, watch: CallWatch, deadlines: Deadlines) -> None:
        self._watch = watch
        self._deadlines = deadlines
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._job: asyncio.Future[object] | None = None
        self._since = 0.0

    @property
    def busy(self) -> bool:
        """Whether a pass has not ended, be it one that nobody waits for any more."""
        return self._job is not None and not self._job.done()

    async def run(self, work: Callable[[], T]) -> T:
        """`work()` on the thread. Raises what it raises, or CallOverdueError."""
        if self.busy:
            raise self._overdue(time.monotonic())
        self._watch.renew()
        self._since = time.monotonic()
        job: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._job = job  # type: ignore[assignment] # only asked whether it is done
        self._start().put(_Job(work, job))
        return await self._within_deadlines(job)

    async def finish(self) -> None:
        """End a pass that nobody waits for any more, after the call that it is in.

        Raises CallOverdueError.
        """
        if self._job is not None and not self._job.done():
            self._watch.abandon()
            await self._ended(self._job)
            _ignore(self._job)

    def close(self) -> None:
        """Let the thread end after what it is doing."""
        self._watch.abandon()
        self._jobs.put(None)

    async def _within_deadlines(self, job: asyncio.Future[T]) -> T:
        await self._ended(job)
        return job.result()

    async def _ended(self, job: asyncio.Future[T]) -> None:
        end = self._since + self._deadlines.pass_s
        while True:
            before = self._watch.current
            started = before.started if before else time.monotonic()
            due = min(end, started + self._deadlines.call_s)
            await asyncio.wait({job}, timeout=max(due - time.monotonic(), 0.001))
            if job.done():
                return
            if self._missed(end):
                self._watch.abandon()
                job.add_done_callback(_ignore)
                raise self._overdue(time.monotonic())

    def _missed(self, end: float) -> bool:
        now = time.monotonic()
        return now >= end or self._watch.overdue(self._deadlines.call_s, now) is not None

    def _overdue(self, now: float) -> CallOverdueError:
        record = self._watch.current or CallRecord("pass over all GPUs", self._since)
        return CallOverdueError(record.name, now - record.started)

    def _start(self) -> "queue.SimpleQueue[Callable[[], None] | None]":
        if self._thread is None:
            self._thread = threading.Thread(
                target=_serve, args=(self._jobs,), name="nvml", daemon=True
            )
            self._thread.start()
        return self._jobs


class _Job(Generic[T]):
    """A pass and where its result goes, across threads."""

    def __init__(self, work: Callable[[], T], result: asyncio.Future[T]) -> None:
        self._work = work
        self._result = result
        self._loop = result.get_loop()

    def __call__(self) -> None:
        try:
            value = self._work()
        except Exception as error:  # noqa: BLE001 - handed on, whatever it is
            self._hand_over(partial(self._result.set_exception, error))
        else:
            self._hand_over(partial(self._result.set_result, value))

    def _hand_over(self, give: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._give, give)
        except RuntimeError:
            return  # the loop is closed: nobody is left to hear it

    def _give(self, give: Callable[[], None]) -> None:
        if not self._result.done():
            give()


def _serve(jobs: "queue.SimpleQueue[Callable[[], None] | None]") -> None:
    while (job := jobs.get()) is not None:
        job()


def _ignore(job: asyncio.Future[T]) -> None:
    if not job.cancelled():
        job.exception()
