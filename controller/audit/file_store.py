"""The log's files on disk: opened under a lock, healed, appended to, rotated.

One folder holds one log: `audit-<number of the first record>.jsonl`, `lock` and
`reserve`. What is durable is never touched again; what is not durable is cut off before
the next record is written. Knows lines, not what they mean.
"""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from controller.audit.disk import Disk
from controller.audit.scan import LogBrokenError, scan_file
from gpuwarden.audit.chain import BEFORE_FIRST, Accepted, Head
from gpuwarden.audit.files import PATTERN, file_name
from gpuwarden.evidence.canonical import sha256_hex

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
