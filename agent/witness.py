"""Keeps the last audit checkpoint of every log origin and puts it into signed evidence.

That makes every agent a witness of every controller's log. Whether a checkpoint is
consistent with the one before is not judged here yet: the newest of the larger tree
is kept, and a smaller one never replaces it.
"""

import re
from collections.abc import Callable
from typing import Final

from gpuwarden.evidence.model import WitnessedCheckpoint

MAX_ORIGINS: Final = 32
_MAX_CHECKPOINT: Final = 4096
_NOTE = re.compile(r"([!-~]{1,255})\n(0|[1-9][0-9]{0,15})\n[A-Za-z0-9+/]{43}=\n")
"""C2SP tlog-checkpoint: origin, tree size, root hash; extensions and signatures follow."""


class CheckpointWitness:
    """Checkpoints by origin; `changed` hears that there is something new to keep."""

    def __init__(self, known: tuple[WitnessedCheckpoint, ...], changed: Callable[[], None]) -> None:
        self._known = {entry.origin: entry.checkpoint for entry in known[:MAX_ORIGINS]}
        self._changed = changed

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
            self._changed()


def _size(checkpoint: str) -> int:
    note = _NOTE.match(checkpoint)
    return int(note[2]) if note else -1
