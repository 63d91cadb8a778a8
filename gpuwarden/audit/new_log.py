"""Begins a log in place of one that cannot go on, and keeps the old folder whole.

Witnesses raise `LOG_RESET` unless the new log has the old one's key and names its last
checkpoint. The new folder has both before a controller sees it: one that finds an empty folder
begins a log with a key of its own.

Each step is one change of a name, and what ends it between two steps leaves one of these:

1. `<folder>.new.part` is not whole: done anew.
2. `<folder>.new` is whole, and the old folder has its place: done anew.
3. `<folder>.new` is whole, and the old folder was moved: no controller begins a log
   (`is_half_begun`), and the next run gives the new folder its place.
"""

import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from shutil import rmtree
from typing import Final

from gpuwarden.audit.checkpoint import Checkpoint, unverified_checkpoint
from gpuwarden.audit.files import KEY_CHANGES, KEY_FILE, LOCK_FILE, PATTERN, PREV_LOG, log_files
from gpuwarden.audit.note import NoteError
from gpuwarden.audit.reading import recent_lines
from gpuwarden.audit.record import RecordKind
from gpuwarden.regular_file import open_new, open_to_read

_MAX_FILE: Final = 64 * 1024
_CERTIFYING: Final = frozenset({RecordKind.CHECKPOINT.value, RecordKind.LOG_ROTATE.value})
_OURS: Final = frozenset({KEY_FILE, KEY_CHANGES, PREV_LOG})


class LogInUseError(Exception):
    """A process has the log open."""


@dataclass(frozen=True, slots=True)
class Begun:
    """What was done."""

    kept: Path | None
    """Where the old folder is now; None where an earlier run has moved it, and it is gone."""
    prev: Checkpoint | None
    """The old log's last checkpoint, which the new log names; None where none can be read."""


def is_half_begun(folder: Path) -> bool:
    """Whether `begin_new` has moved the log and was ended before the new folder got its place.

    Whatever began a log there now would have another key.
    """
    folder = folder.resolve()
    return _new_beside(folder).is_dir() and not _has_log(folder)


def begin_new(folder: Path) -> Begun:
    """Put a new folder with the old one's keys and last checkpoint in its place.

    Finishes what an earlier run has left. Raises OSError, and LogInUseError while a controller
    writes the log.
    """
    folder = folder.resolve()
    if is_half_begun(folder):
        return _finish(folder, next((x for x in reversed(_kept(folder)) if _has_log(x)), None))
    log_files(folder)
    with _locked(folder):
        new, kept = _prepare(folder), _free_name(folder)
        try:
            folder.rename(kept)
        except OSError:
            rmtree(new)  # the folder is a volume of its own, for example
            raise
        return _finish(folder, kept)


def _prepare(folder: Path) -> Path:
    """The new folder beside the old one: whole and on the disk when it has its name."""
    new = _new_beside(folder)
    part = new.with_name(f"{new.name}.part")
    for left in (part, new):
        _remove(left)
    part.mkdir(mode=0o700)
    try:
        _fill(part, folder, last_checkpoint(folder))
    except BaseException:
        rmtree(part)  # with a full disk, for example
        raise
    part.rename(new)
    _sync(folder.parent)
    return new


def _finish(folder: Path, kept: Path | None) -> Begun:
    if folder.exists() and any(folder.iterdir()):
        folder.rename(_free_name(folder))  # no log: what a controller has put there meanwhile
    _new_beside(folder).rename(folder)
    _sync(folder.parent)
    note = None
    with suppress(FileNotFoundError), open_to_read(folder / PREV_LOG) as file:
        note = file.read(_MAX_FILE).decode()
    return Begun(kept, None if note is None else unverified_checkpoint(note))


def _new_beside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.new")


def _has_log(folder: Path) -> bool:
    return any(x.stat().st_size for x in folder.glob(PATTERN))


def _remove(left: Path) -> None:
    """What an earlier run has left; raises OSError where anything else is in it."""
    with suppress(FileNotFoundError):
        if not _OURS.issuperset(x.name for x in left.iterdir()):
            text = "has other files in it; move it away"
            raise OSError(errno.ENOTEMPTY, text, str(left))
        rmtree(left)


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


def _kept(folder: Path) -> list[Path]:
    """Folders that were moved, the oldest first."""
    return list(takewhile(Path.exists, _names_of_kept(folder)))


def _free_name(folder: Path) -> Path:
    return next(path for path in _names_of_kept(folder) if not path.exists())


def _names_of_kept(folder: Path) -> Iterator[Path]:
    return (folder.with_name(f"{folder.name}.old{number or ''}") for number in count())


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
