"""Keeps the last audit checkpoint of every log origin and puts it into signed evidence.

That makes every agent a witness of every controller's log. Whether a checkpoint is
consistent with the one before is not judged here yet: the newest of the larger tree
is kept, and a smaller one never replaces it.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Final, Protocol

from agent.detached import detached
from agent.state import AgentState, StateNotKeptError
from gpuwarden.evidence.model import WitnessedCheckpoint

MAX_ORIGINS: Final = 32
_MAX_CHECKPOINT: Final = 4096
_KEEP_S: Final = 10.0
_NOTE = re.compile(r"([!-~]{1,255})\n(0|[1-9][0-9]{0,15})\n[A-Za-z0-9+/]{43}=\n")
"""C2SP tlog-checkpoint: origin, tree size, root hash; extensions and signatures follow."""


class StateKeeper(Protocol):
    """Keeps state on disk."""

    def keep(self, state: AgentState) -> None:
        """Make durable; blocks; raises StateNotKeptError."""


class CheckpointWitness:
    """Checkpoints by origin; `run` writes changes to disk, at most one at a time."""

    def __init__(
        self,
        known: tuple[WitnessedCheckpoint, ...],
        keeper: StateKeeper,
        *,
        instance_id: str,
        boot_id: str,
        not_kept: Callable[[str], None],
    ) -> None:
        self._known = {entry.origin: entry.checkpoint for entry in known[:MAX_ORIGINS]}
        self._keeper = keeper
        self._instance_id = instance_id
        self._boot_id = boot_id
        self._not_kept = not_kept
        self._changed = asyncio.Event()
        self._changed.set()  # the first write leaves this process's own ids

    def checkpoints(self) -> tuple[WitnessedCheckpoint, ...]:
        """The last one of every origin, sorted by origin."""
        return tuple(
            WitnessedCheckpoint(origin=origin, checkpoint=text)
            for origin, text in sorted(self._known.items())
        )

    def witness(self, checkpoint: str) -> None:
        """Take note of a checkpoint that came with a verified challenge."""
        note = _NOTE.match(checkpoint) if len(checkpoint) <= _MAX_CHECKPOINT else None
        if note is None:
            return
        origin, size = note[1], int(note[2])
        known = self._known.get(origin)
        if known is None and len(self._known) >= MAX_ORIGINS:
            return
        if known is None or size > _size(known):
            self._known[origin] = checkpoint
            self._changed.set()

    async def run(self) -> None:
        """Write changes until cancelled. A disk that fails or hangs is reported, no more."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self.keep()

    async def keep(self) -> None:
        """Write now."""
        state = AgentState(
            instance_id=self._instance_id, boot_id=self._boot_id, checkpoints=self.checkpoints()
        )
        try:
            await detached(lambda: self._keeper.keep(state), deadline_s=_KEEP_S, name="state")
        except StateNotKeptError as error:
            self._not_kept(str(error))
        except TimeoutError:
            self._not_kept(f"the disk did not answer within {_KEEP_S:.0f} s")


def _size(checkpoint: str) -> int:
    note = _NOTE.match(checkpoint)
    return int(note[2]) if note else -1
