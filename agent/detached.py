"""Blocking calls that may never return, on threads that nobody has to wait for.

The event loop's own pool is joined when a process ends; a hung resolver or disk
would then hold up the end. These threads are daemons and are left behind.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def detached(function: Callable[[], T], *, deadline_s: float, name: str) -> T:
    """Run `function` on a daemon thread; its result or error, or TimeoutError at the deadline."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def finish(result: Callable[[], None]) -> None:
        if not done.done():
            result()

    def work() -> None:
        try:
            value = function()
        except Exception as error:  # noqa: BLE001 -- carried over to whoever awaits
            failure = error
            _call(loop, lambda: finish(lambda: done.set_exception(failure)))
        else:
            _call(loop, lambda: finish(lambda: done.set_result(value)))

    threading.Thread(target=work, name=name, daemon=True).start()
    async with asyncio.timeout(deadline_s):
        return await done


def _call(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return  # the loop has closed: nobody waits any more
