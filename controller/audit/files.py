"""The log's files on disk: found, healed, appended to and rotated, with space kept for grants.

One folder holds one log: `audit-<number of the first record>.jsonl`, `lock` and `reserve`. What is
durable is never changed; what is not durable is cut off before the next record is written. Knows
lines, not what they mean.
"""

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gpuwarden.audit.chain import BEFORE_FIRST, Accepted, ChainVerifier, Head
from gpuwarden.audit.files import LOCK_FILE, PATTERN, file_name
from gpuwarden.audit.record import MAX_RECORD_BYTES, RecordError, decode_record
from gpuwarden.evidence.canonical import sha256_hex
from gpuwarden.regular_file import open_to_read, private_files, private_folder, require_regular


class Disk:
    """The three calls to a disk that can fail half-way; each may raise OSError."""

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of `data`, return how much."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Return when what was written is on the disk (fdatasync)."""
        os.fdatasync(descriptor)

    def reserve(self, descriptor: int, size: int) -> None:
        """Allocate `size` bytes (posix_fallocate)."""
        os.posix_fallocate(descriptor, 0, size)


# --- where a file ends

MAX_TORN_BYTES = 64 * (MAX_RECORD_BYTES + 1)
"""One group of records at its longest."""
_LINE_LIMIT = 2 * MAX_RECORD_BYTES


class LogBrokenError(Exception):
    """The log on disk is not what this product wrote; nothing may be appended to it."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The whole records of a file, and the bytes behind them."""

    head: Head
    """BEFORE_FIRST, or the last record of the file before, if there are none here."""
    records: int
    durable: int
    """Bytes of the whole records."""
    torn: bytes


def scan_file(
    path: Path,
    origin: str,
    older: Path | None,
    accepted: Accepted = lambda _record, _line: None,
) -> Scan:
    """Find where a file ends that continues `older`: its last whole record, and what is behind it.

    A torn end is what an unfinished group leaves: short, and without any whole record in
    it. Anything else is not repaired, because it may be evidence of tampering, or a record that
    only another version can read. `accepted` is called with each whole record of this file. Raises
    LogBrokenError, OSError.
    """
    verifier = ChainVerifier()
    if older is not None:
        verifier.feed(_last_line(older))
    already = verifier.records
    verifier.accepted = accepted
    durable, torn = _feed(verifier, path)
    records = verifier.records - already
    _refuse_unless_torn(path, torn, verifier.head)
    if verifier.records and verifier.origin != origin:
        raise LogBrokenError(f"{path} is the log of {verifier.origin!r}, not of {origin!r}")
    first = verifier.head.seq - records + 1
    if path.name != file_name(first) and (records or older is None):
        raise LogBrokenError(f"{path} starts with record {first}, not as its name says")
    return Scan(verifier.head, records, durable, torn)


def _feed(verifier: ChainVerifier, path: Path) -> tuple[int, bytes]:
    """Feed all lines; return the length of what fits, and the bytes behind it."""
    durable = 0
    with open_to_read(path) as file:
        while verifier.fault is None and (line := file.readline(_LINE_LIMIT)):
            known = verifier.records
            verifier.feed(line)
            durable += len(line) if verifier.records > known else 0
        file.seek(durable)
        return durable, file.read(MAX_TORN_BYTES + 1)


def _refuse_unless_torn(path: Path, rest: bytes, head: Head) -> None:
    if len(rest) > MAX_TORN_BYTES:
        raise LogBrokenError(f"{path} ends with more than a crash can leave behind")
    for line in rest.split(b"\n")[:-1]:
        try:
            record = decode_record(line)
        except RecordError as error:
            if not _is_object(line):
                continue
            raise LogBrokenError(
                f"{path} has a whole line behind record {head.seq} that is no record of this"
                f" version: {error}; no crash leaves that, so nothing is cut off"
            ) from None
        raise LogBrokenError(f"{path} is broken before record {record.seq}")


def _is_object(line: bytes) -> bool:
    """Whether a line is whole JSON: what a crash leaves of one lacks its end, or has a hole."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _last_line(path: Path) -> bytes:
    """Last line of a finished file; raises LogBrokenError if it is no record."""
    with open_to_read(path) as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LINE_LIMIT))
        lines = file.read().splitlines(keepends=True)
    last = lines[-1] if lines else b""
    try:
        decode_record(last.removesuffix(b"\n"))
    except RecordError as error:
        raise LogBrokenError(f"{path} does not end with a record: {error}") from None
    return last


# --- the log

_CLOSED = -1
"""Stands for a descriptor that is not open; closing it is an error that is ignored."""


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
        """Open the folder's log; `replay` is called with the records of its last file, in order."""
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

    def delete_finished(self, expired: Callable[[bytes], bool]) -> list[str]:
        """Delete finished files, oldest first, while the line that follows each is `expired`.

        Where that line cannot be read, nothing more is deleted.
        """
        deleted: list[str] = []
        for path, following in pairwise(self._files()):
            try:
                with open_to_read(following) as file:
                    line = file.readline(_LINE_LIMIT)
            except OSError:
                break
            if not expired(line):
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
        private_folder(self._folder)
        self._lock = self._open_file(self._folder / LOCK_FILE, os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{self._folder} is in use by another process") from None
        private_files(self._folder)
        self._find_end(origin)
        self._descriptor = self._open_file(self._path, os.O_APPEND | os.O_CREAT)
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
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
        try:
            require_regular(descriptor, path)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor


# --- space for grants

STEP_BYTES = 1 << 20
"""What one shortage releases."""
NAME = "reserve"


class Reserve:
    """Holds `size` bytes of the folder's file system for grants, in a file that shrinks as needed.

    Other programs can fill the volume at any time, so only allocated blocks reserve space. Only
    the writer's thread calls this.
    """

    def __init__(self, folder: Path, size: int, disk: Disk) -> None:
        self._path = folder / NAME
        self._size = size
        self._disk = disk
        self._held = 0

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for is held."""
        return self._held >= self._size

    def fill(self) -> None:
        """Take up what is missing, if the file system has more than that to spare."""
        if self.complete:
            return
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        with suppress(OSError):
            descriptor = os.open(self._path, flags, 0o600)
            try:
                require_regular(descriptor, self._path)
                self._fill(descriptor)
            finally:
                os.close(descriptor)

    def _fill(self, descriptor: int) -> None:
        self._held = min(os.fstat(descriptor).st_blocks * 512, self._size)
        space = os.fstatvfs(descriptor)
        if space.f_bavail * space.f_frsize <= 2 * (self._size - self._held):
            return
        try:
            self._disk.reserve(descriptor, self._size)
        except OSError:
            os.ftruncate(descriptor, self._held)
            raise
        self._held = self._size

    def release(self) -> bool:
        """Give back one step; False when nothing is left."""
        if self._held == 0:
            return False
        self._held = max(0, self._held - STEP_BYTES)
        try:
            os.truncate(self._path, self._held)
        except OSError:
            self._held = 0
            return False
        return True
