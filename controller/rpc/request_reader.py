"""Reads requests of a stream without ever cancelling a read.

A session waits for the same request again and again, each time until something else
is due; a wait that cancelled its read could lose a request that was just arriving. So
a read runs in a task of its own: whoever stops waiting just leaves it, and it ends by
itself when the call does. (Cancelling one did no harm to gRPC in a run under valgrind,
17 reads cancelled while pending: this is about requests, not about memory.)
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, Protocol

from grpc import aio


class ReadableContext(Protocol):
    """What this module needs of a `grpc.aio.ServicerContext`."""

    async def read(self) -> Any:  # noqa: ANN401 - any message, or grpc.aio.EOF
        """The next request."""


_LEFT: Final[set[asyncio.Task[Any]]] = set()
"""Reads that nobody waits for any more; kept alive until their calls are over."""


class RequestReader:
    """One reader for one call."""

    def __init__(
        self, context: ReadableContext, ended: Callable[[object], None] | None = None
    ) -> None:
        """`ended` is called when a read is over."""
        self._context = context
        self._ended = ended
        self._reading: asyncio.Task[Any] | None = None

    def pending(self) -> asyncio.Task[Any]:
        """The read that runs now, begun if there is none; never cancel it."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._context.read())
            if self._ended is not None:
                self._reading.add_done_callback(self._ended)
        return self._reading

    def take(self) -> Any:  # noqa: ANN401 - any message, or grpc.aio.EOF
        """The result of the read that has ended; the next `pending` begins another."""
        reading = self.pending()
        self._reading = None
        return reading.result()

    def leave(self) -> None:
        """Wait no more; the read ends with its call."""
        if self._reading is not None:
            _LEFT.add(self._reading)
            self._reading.add_done_callback(_forget)
            self._reading = None


async def settled(seconds: float) -> bool:
    """Wait until the reads that were left are over; False if some are not in time.

    To be called when a server has stopped and before its event loop closes, which
    would cancel them.
    """
    loop = asyncio.get_running_loop()
    left = {reading for reading in _LEFT if reading.get_loop() is loop}
    if left:
        _, left = await asyncio.wait(left, timeout=seconds)
    return not left


async def requests(context: ReadableContext) -> AsyncIterator[Any]:
    """All requests of a call, in the place of gRPC's own iterator."""
    reader = RequestReader(context)
    try:
        while True:
            await asyncio.wait({reader.pending()})
            message = reader.take()
            if message is aio.EOF:
                return
            yield message
    finally:
        reader.leave()


def _forget(reading: asyncio.Task[Any]) -> None:
    _LEFT.discard(reading)
    if not reading.cancelled():
        reading.exception()  # looked at, so that nobody is told about it
