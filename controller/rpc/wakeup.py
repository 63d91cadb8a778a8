"""One waiter of one task for anything that may concern it: a message, the end, time.

`asyncio.wait` would do, but it registers with each future and forgets it again, for every
wait of every stream. Must not decide what to do: whoever wakes up looks for itself.
"""

import asyncio


class Wakeup:
    """Made and used in one event loop; one `wait` at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    def ring(self, _cause: object = None, /) -> None:
        """Wake who waits now; a callback for futures and timers."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Return at the next `ring`, or when the time is over."""
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(seconds, self.ring)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None
