"""Writes the state file when there is something new, one write at a time, and never blocks.

A disk that fails, is full or hangs is reported and tried again with the next change.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from agent.detached import detached
from agent.state import AgentState, StateNotKeptError

WRITE_S: Final = 10.0


class StateStore(Protocol):
    """Keeps state on disk."""

    def keep(self, state: AgentState) -> None:
        """Make durable; blocks; raises StateNotKeptError."""


class StateWriter:
    """Call `changed` whenever the state that `state` returns may differ from what is kept."""

    def __init__(
        self,
        store: StateStore,
        state: Callable[[], AgentState],
        *,
        failed: Callable[[str], None],
        write_s: float = WRITE_S,
    ) -> None:
        self._store = store
        self._state = state
        self._failed = failed
        self._write_s = write_s
        self._due = asyncio.Event()

    def changed(self) -> None:
        """There may be something new to keep."""
        self._due.set()

    async def run(self) -> None:
        """Write whatever changes until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            await self._write(self._state())

    async def _write(self, state: AgentState) -> None:
        try:
            await detached(lambda: self._store.keep(state), deadline_s=self._write_s, name="state")
        except StateNotKeptError as error:
            self._failed(str(error))
        except TimeoutError:
            self._failed(f"the disk did not answer within {self._write_s:g} s")
