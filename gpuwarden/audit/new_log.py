"""Begins a log in place of one that cannot go on, and keeps the old folder whole.

Witnesses raise `LOG_RESET` unless the new log has the old one's key and names its last
checkpoint. The new folder has both before a controller sees it: one that finds an empty folder
begins a log with a key of its own.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Final

from gpuwarden.audit.checkpoint import Checkpoint, unverified_checkpoint
from gpuwarden.audit.files import KEY_CHANGES, KEY_FILE, LOCK_FILE, PREV_LOG, log_files
from gpuwarden.audit.note import NoteError
from gpuwarden.audit.reading import recent_lines
from gpuwarden.audit.record import RecordKind
from gpuwarden.regular_file import open_new, open_to_read

_MAX_FILE: Final = 64 * 1024
_CERTIFYING: Final = frozenset({RecordKind.CHECKPOINT.value, RecordKind.LOG_ROTATE.value})


class LogInUseError(Exception):
    """A process has the log open."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What was done."""

    kept: Path
    """Where the old folder is now."""
    prev: Checkpoint | None
    """The old log's last checkpoint, which the new log names; None where none can be read."""


def begin_new(folder: Path) -> Begun:
    """Put a new folder with the old one's keys and last checkpoint in its place.

    Raises OSError, and LogInUseError while a controller writes the log.
    """
    log_files(folder)
    folder = folder.resolve()
    with _locked(folder):
        note = last_checkpoint(folder)
        new = folder.with_name(f"{folder.name}.new")
        new.mkdir(mode=0o700)
        try:
            _fill(new, folder, note)
        except BaseException:
            rmtree(new)  # with a full disk, for example: it can be run again
            raise
        kept = _free_name(folder)
        folder.rename(kept)
        new.rename(folder)
        _sync(folder.parent)
    return Begun(kept, None if note is None else unverified_checkpoint(note))


def _fill(new: Path, folder: Path, note: str | None) -> None:
    for name in (KEY_FILE, KEY_CHANGES):
        with suppress(FileNotFoundError), open_to_read(folder / name) as file:
            _write(new / name, file.read(_MAX_FILE))
    if note is not None:
        _write(new / PREV_LOG, note.encode())
    _sync(new)


def last_checkpoint(folder: Path) -> str | None:
    """The last checkpoint at the end of the log that can be read; raises OSError.

    Whatever else is wrong with the log, and whichever version wrote it.
    """
    last = None
    for line in recent_lines(folder):
        last = _checkpoint_in(line) or last
    return last


def _checkpoint_in(line: bytes) -> str | None:
    if b'"checkpoint"' not in line:
        return None
    with suppress(ValueError, RecursionError, LookupError, TypeError, NoteError):
        record = json.loads(line)
        note = record["refs"]["checkpoint"]
        if record["kind"] in _CERTIFYING and isinstance(note, str):
            unverified_checkpoint(note)
            return note
    return None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogInUseError(f"{folder} is in use by another process") from None
        yield
    finally:
        os.close(descriptor)


def _free_name(folder: Path) -> Path:
    names = (f"{folder.name}.old{number or ''}" for number in count())
    return next(path for name in names if not (path := folder.with_name(name)).exists())


def _write(path: Path, data: bytes) -> None:
    with open_new(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
