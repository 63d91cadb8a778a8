"""Evidence.

Holds: evidence store, file store.
"""

import fcntl
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from controller.audit.files import Disk, LogBrokenError, scan_file
from gpuwarden.audit.chain import BEFORE_FIRST, Accepted, Head
from gpuwarden.audit.exhibit import FOLDER, Exhibit
from gpuwarden.audit.files import PATTERN, file_name
from gpuwarden.evidence.canonical import sha256_hex

# --- evidence store
# Keeps evidence beside the log, by its digest: first, changed and refused evidence, bad news.
#
# Written by a thread of its own and not synced: a slow disk holds nobody up, and a power cut
# may cost the evidence of the last seconds, never its record. Bounded in age and bytes,
# the oldest goes first.

MAX_WAITING = 32 << 20
"""Bytes of payloads that may wait."""
_SLACK = 16
"""When it is full, a sixteenth is made free at once."""


class EvidenceStore:
    """The folder `evidence` in the log's folder."""

    def __init__(
        self,
        folder: Path,
        *,
        limit_bytes: int,
        retention: timedelta,
        kept: Callable[[int], None],
        lost: Callable[[int], None],
    ) -> None:
        """Begin; with a limit of 0 nothing is kept. `kept` and `lost` count, on any thread."""
        self._folder = folder / FOLDER
        self._limit = limit_bytes
        self._retention = retention
        self._kept = kept
        self._lost = lost
        self._waiting: deque[Exhibit] = deque()
        self._waiting_bytes = 0
        self._bytes: int
        """What the folder holds; counted when a day begins."""
        self._day: str | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="audit-evidence", daemon=True)
        self._thread.start()

    def put(self, exhibit: Exhibit) -> None:
        """Queue a piece of evidence; never waits."""
        if not self._limit:
            return
        with self._changed:
            size = len(exhibit.payload)
            if self._closing or self._waiting_bytes + size > MAX_WAITING:
                self._lost(1)
                return
            self._waiting.append(exhibit)
            self._waiting_bytes += size
            self._changed.notify()

    def close(self, timeout: float) -> None:
        """Write what waits, for at most `timeout` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while (exhibit := self._next()) is not None:
            try:
                self._keep(exhibit)
            except OSError:
                self._lost(1)
            with self._changed:
                self._waiting_bytes -= len(exhibit.payload)

    def _next(self) -> Exhibit | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None

    def _keep(self, exhibit: Exhibit) -> None:
        received = datetime.fromtimestamp(exhibit.received_ms / 1000, UTC)
        day = f"{received:%Y%m%d}"
        if day != self._day:
            self._begin(day, received)
        data = exhibit.encoded()
        if len(data) > self._limit:
            self._lost(1)
            return
        path = self._folder / day / f"{exhibit.digest}.json"
        _write(path, data)
        self._bytes += len(data)
        self._kept(1)
        if self._bytes > self._limit:
            self._free(self._limit - self._limit // _SLACK, spare=path)

    def _begin(self, day: str, now: datetime) -> None:
        """Begin a day: what is too old goes, what is left is counted."""
        oldest = f"{now - self._retention:%Y%m%d}"
        (self._folder / day).mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in self._days():
            if folder.name < oldest:
                _remove(folder)
        self._bytes = sum(_size(path) for folder in self._days() for path in folder.iterdir())
        self._day = day

    def _free(self, goal: int, *, spare: Path) -> None:
        """Delete the oldest until `goal` is met, but not what has just come."""
        for folder in self._days():
            for path in sorted(set(folder.iterdir()) - {spare}, key=_age):
                if self._bytes <= goal:
                    return
                self._bytes -= _size(path)
                path.unlink()
            if folder != spare.parent:
                folder.rmdir()

    def _days(self) -> list[Path]:
        return sorted(path for path in self._folder.iterdir() if path.is_dir())


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing: a full disk keeps no part of what did not fit."""
    fresh = path.with_suffix(".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
            file.write(data)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _size(path: Path) -> int:
    return path.stat().st_size


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns


# --- file store
# The log's files on disk: opened under a lock, healed, appended to, rotated.
#
# One folder holds one log: `audit-<number of the first record>.jsonl`, `lock` and
# `reserve`. What is durable is never touched again; what is not durable is cut off before
# the next record is written. Knows lines, not what they mean.

_CLOSED = -1
"""In place of a descriptor; closing it is an error that is ignored."""


@dataclass(frozen=True, slots=True)
class Healed:
    """What was cut off the end when the log was opened."""

    file: str
    bytes: int
    digest: str


class FileStore:
    """An open log; used by one thread. Errors of the disk are OSErrors."""

    def __init__(
        self,
        folder: Path,
        origin: str,
        disk: Disk,
        replay: Accepted = lambda _record, _line: None,
    ) -> None:
        """Open the folder's log; `replay` is told the records of its last file, in order."""
        self._replay = replay
        self._folder = folder
        self._disk = disk
        self._lock = _CLOSED
        self._descriptor = _CLOSED
        self._path = folder
        self._durable = 0
        self.head = BEFORE_FIRST
        self.healed: Healed | None = None
        try:
            self._open(origin)
        except BaseException:
            self.close()
            raise

    @property
    def size(self) -> int:
        """Durable bytes of the current file."""
        return self._durable

    @property
    def file(self) -> str:
        """Name of the current file."""
        return self._path.name

    def append(self, lines: bytes, head: Head) -> None:
        """Make whole lines durable; after an OSError nothing of them counts: call `recover`."""
        state = os.fstat(self._descriptor)
        if state.st_nlink == 0 or state.st_size != self._durable:
            raise OSError(f"{self._path} was changed or removed by somebody else")
        self._write(self._descriptor, lines)
        self._durable += len(lines)
        self.head = head

    def recover(self) -> None:
        """Cut the file back to what is durable, through a new descriptor."""
        descriptor = self._open_file(self._path, os.O_APPEND)
        os.close(self._descriptor)
        self._descriptor = descriptor
        if os.fstat(descriptor).st_size < self._durable:
            raise LogBrokenError(f"{self._path} is shorter than what was made durable")
        os.ftruncate(descriptor, self._durable)
        os.fsync(descriptor)

    def rotate(self, first_line: bytes, head: Head) -> None:
        """Begin a new file with its first line; after an OSError the old one stays in use."""
        path = self._folder / file_name(head.seq)
        descriptor = self._open_file(path, os.O_APPEND | os.O_CREAT | os.O_EXCL)
        try:
            self._write(descriptor, first_line)
            self._sync_folder()
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
                path.unlink()
            os.close(descriptor)
            raise
        os.close(self._descriptor)
        self._descriptor, self._path = descriptor, path
        self._durable, self.head = len(first_line), head

    def delete_finished(self, expired: Callable[[float], bool]) -> list[str]:
        """Delete finished files whose last change (Unix seconds) is `expired`, oldest first."""
        deleted = []
        for path in self._files()[:-1]:
            if not expired(path.stat().st_mtime):
                break
            path.unlink()
            deleted.append(path.name)
        return deleted

    def close(self) -> None:
        """Let the log go. Everything that counts is on the disk already."""
        for descriptor in (self._descriptor, self._lock):
            with suppress(OSError):
                os.close(descriptor)
        self._descriptor = self._lock = _CLOSED

    def _open(self, origin: str) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = self._open_file(self._folder / "lock", os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{self._folder} is in use by another process") from None
        self._find_end(origin)
        self._descriptor = self._open_file(self._path, os.O_APPEND | os.O_CREAT)
        os.fchmod(self._descriptor, 0o600)
        os.ftruncate(self._descriptor, self._durable)
        os.fsync(self._descriptor)
        self._sync_folder()

    def _find_end(self, origin: str) -> None:
        self._path = self._folder / file_name(1)
        files = self._files()
        while files:
            self._path = files.pop()
            scan = scan_file(self._path, origin, files[-1] if files else None, self._replay)
            self.head, self._durable = scan.head, scan.durable
            if scan.torn:
                self.healed = Healed(self._path.name, len(scan.torn), sha256_hex(scan.torn))
            if scan.records:
                return
            self._path.unlink()  # a crash while this file was begun: it never held a record

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob(PATTERN))

    def _write(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._disk.write(descriptor, view) :]
        self._disk.sync(descriptor)

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @staticmethod
    def _open_file(path: Path, flags: int) -> int:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
