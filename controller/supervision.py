"""Runs the parts of a process that never end, and notices when one of them does.

Every long-lived task is made here, so that none fails unseen: an unexpected end is
logged once and ends the process, because half a controller is worse than a restarted
one. Must not know what the tasks do.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

Fault = Callable[[str, BaseException | None], None]
"""Told which task ended and why; None where it returned although it never should."""


class Supervisor:
    """Owns tasks from `watch` to `stop`; one event loop."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def watch(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run `coroutine` until `stop`; its end before that is a fault."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Cancel all tasks and wait until they are gone."""
        self._stopping = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if not self._stopping:
            self._fault(task.get_name(), error)
