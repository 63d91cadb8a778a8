"""Statements that the log's key changed, kept beside the log: the file `key-changes`.

They also stand in `log.key` records; but those may be past retention when a witness comes
back that has pinned an old key.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from gpuwarden.audit.key_change import MAX_CHANGES, KeyChange
from gpuwarden.audit.note import NoteError

NAME = "key-changes"
_MAX_BYTES = 64 * 1024


class KeyChanges:
    """Oldest first. What is not a statement is passed over."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self.statements = self._read()

    def add(self, statement: str) -> None:
        """Keep one more; raises OSError."""
        if statement in self.statements:
            return
        self.statements = (*self.statements, statement)[-MAX_CHANGES:]
        fresh = self._path.with_suffix(".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(fresh, flags, 0o600), "w") as file:
            json.dump(self.statements, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)

    def _read(self) -> tuple[str, ...]:
        found: object = ()
        with suppress(OSError, ValueError), self._path.open("rb") as file:
            found = json.loads(file.read(_MAX_BYTES))
        return tuple(note for note in found if _is_change(note)) if isinstance(found, list) else ()


def _is_change(note: object) -> bool:
    try:
        KeyChange.open(note if isinstance(note, str) else "")
    except NoteError:
        return False
    return True
