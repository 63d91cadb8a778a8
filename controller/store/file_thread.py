"""The one thread that touches a store's file: it serves whatever waits in one transaction.

Nobody waits for it longer than a deadline, and an answer counts although nobody waits any
more. What it read is taken on the event loop in the order of the batches, before the
answers are told, so that a store's snapshot includes what was answered.
"""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from controller.store.sqlite_file import Component, StoreError, StoreFile, open_store
from gpuwarden.clock import Clock

FRESH_NS: Final = 5_000_000_000
"""How long a snapshot counts after the read that confirmed it."""
CALL_SECONDS: Final = 3.0
"""Longest wait for the file."""
CLOSE_SECONDS: Final = 1.0
"""The process ends although the file hangs."""
_MOST_WAITING: Final = 8192
_MOST_AT_ONCE: Final = 512

Job = TypeVar("Job")
News = TypeVar("News")

Work = Callable[[sqlite3.Connection, list[Job]], tuple[list[bool], News]]
"""On the thread: do the jobs in order and read what has changed; raises sqlite3.Error or
StoreError, and then none of them counts."""
Take = Callable[[StoreFile, News, int], None]
"""On the event loop: what was read, and the CLOCK_BOOTTIME before that."""


@dataclass(frozen=True, slots=True)
class Request(Generic[Job]):
    """One caller's."""

    job: Job | None
    """None only reads."""
    loop: asyncio.AbstractEventLoop
    done: "asyncio.Future[bool]"


class FileThread(Generic[Job, News]):
    """Used from one event loop. Opens the file at the first request."""

    def __init__(
        self,
        path: Path,
        component: Component,
        work: Work[Job, News],
        take: Take[News],
        *,
        clock: Clock,
        unavailable: type[Exception],
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self._path = path
        self._component = component
        self._work = work
        self._take = take
        self._clock = clock
        self._unavailable = unavailable
        self._call_seconds = call_seconds
        self._waiting: queue.Queue[Request[Job] | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._file: StoreFile | None = None

    def ask(self, job: Job | None) -> "asyncio.Future[bool]":
        """Let `job` be done, or only read; `answered` waits for it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="store", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()
        try:
            self._waiting.put_nowait(Request(job, loop, done))
        except queue.Full:
            raise self._unavailable("too many requests wait for the store") from None
        return done

    async def answered(self, done: "asyncio.Future[bool]") -> bool:
        """Others may wait for the same answer, and it counts although nobody does any more."""
        finished, _ = await asyncio.wait({done}, timeout=self._call_seconds)
        if not finished:
            raise self._unavailable(f"{self._path} did not answer within {self._call_seconds:g} s")
        return done.result()

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Let what waits be served and close the file, unless it hangs."""
        thread = self._thread
        if thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
            await asyncio.to_thread(thread.join, seconds)

    def _serve(self) -> None:
        """The thread."""
        ended = False
        while not ended:
            batch = [self._waiting.get()]
            while len(batch) < _MOST_AT_ONCE and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            ended = None in batch
            requests = [x for x in batch if x is not None]
            if requests:
                self._serve_batch(requests)
        if self._file is not None:
            self._file.close()

    def _serve_batch(self, requests: list[Request[Job]]) -> None:
        loop = requests[0].loop
        try:
            read_ns = self._clock.boottime_ns()
            file, answers, news = self._worked(requests)
        except (StoreError, sqlite3.Error) as error:
            text = str(error) if isinstance(error, StoreError) else f"{self._path}: {error}"
            _call(loop, lambda: self._fail(requests, text))
            return
        _call(loop, lambda: self._deliver(file, news, read_ns, answers))

    def _worked(
        self, requests: list[Request[Job]]
    ) -> tuple[StoreFile, list[tuple[Request[Job], bool]], News]:
        if self._file is None:
            self._file = open_store(self._path, self._component)
        self._file.demand_same()
        jobs = [x.job for x in requests if x.job is not None]
        done, news = self._work(self._file.connection, jobs)
        each = iter(done)
        return self._file, [(x, x.job is None or next(each)) for x in requests], news

    def _deliver(
        self,
        file: StoreFile,
        news: News,
        read_ns: int,
        answers: list[tuple[Request[Job], bool]],
    ) -> None:
        """On the event loop, in the order of the batches."""
        self._take(file, news, read_ns)
        for request, answer in answers:
            if not request.done.done():
                request.done.set_result(answer)

    def _fail(self, requests: list[Request[Job]], text: str) -> None:
        for request in requests:
            if not request.done.done():
                request.done.set_exception(self._unavailable(text))
                request.done.exception()  # looked at, in case that nobody waits any more


def _call(loop: asyncio.AbstractEventLoop, deliver: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waits
        loop.call_soon_threadsafe(deliver)
