"""Files.

Holds: disk, scan, tail, tree file.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gpuwarden.audit.chain import Accepted, ChainVerifier, Head
from gpuwarden.audit.files import file_name, log_files
from gpuwarden.audit.merkle import HASH_BYTES, Frontier, peaks_of, stored_count, stored_index
from gpuwarden.audit.record import MAX_RECORD_BYTES, LogRecord, RecordError, decode_record

# --- disk
# The three calls to a disk that can fail half-way, behind a seam for tests.


class Disk(Protocol):
    """What the log needs of a disk; every call may raise OSError."""

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of `data`, return how much."""

    def sync(self, descriptor: int) -> None:
        """Return when what was written is on the disk."""

    def reserve(self, descriptor: int, size: int) -> None:
        """Make sure that the file can have `size` bytes."""


class SystemDisk:
    """This machine's disk."""

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of `data`, return how much."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Return when what was written is on the disk (fdatasync)."""
        os.fdatasync(descriptor)

    def reserve(self, descriptor: int, size: int) -> None:
        """Allocate `size` bytes (posix_fallocate)."""
        os.posix_fallocate(descriptor, 0, size)


# --- scan
# Finds where a log file ends: its last whole record, and what a crash left behind it.
#
# A torn end is what an unfinished group leaves: short, and without any whole record in
# it. Anything else is not repaired: it may be evidence of tampering.

MAX_TORN_BYTES = 64 * (MAX_RECORD_BYTES + 1)
"""One group of records at its longest."""
_LINE_LIMIT_SCAN = 2 * MAX_RECORD_BYTES


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
    """Scan a file as the continuation of `older`; raises LogBrokenError, OSError.

    `accepted` is told each whole record of this file.
    """
    verifier = ChainVerifier()
    if older is not None:
        verifier.feed(_last_line(older))
    already = verifier.records
    verifier.accepted = accepted
    durable, torn = _feed(verifier, path)
    records = verifier.records - already
    _refuse_unless_torn(path, torn)
    if verifier.records and verifier.origin != origin:
        raise LogBrokenError(f"{path} is the log of {verifier.origin!r}, not of {origin!r}")
    first = verifier.head.seq - records + 1
    if path.name != file_name(first) and (records or older is None):
        raise LogBrokenError(f"{path} starts with record {first}, not as its name says")
    return Scan(verifier.head, records, durable, torn)


def _feed(verifier: ChainVerifier, path: Path) -> tuple[int, bytes]:
    """Feed all lines; return the length of what fits, and what comes behind it."""
    durable = 0
    with path.open("rb") as file:
        while verifier.fault is None and (line := file.readline(_LINE_LIMIT_SCAN)):
            known = verifier.records
            verifier.feed(line)
            durable += len(line) if verifier.records > known else 0
        file.seek(durable)
        return durable, file.read(MAX_TORN_BYTES + 1)


def _refuse_unless_torn(path: Path, rest: bytes) -> None:
    if len(rest) > MAX_TORN_BYTES:
        raise LogBrokenError(f"{path} ends with more than a crash can leave behind")
    for line in rest.split(b"\n")[:-1]:
        try:
            record = decode_record(line)
        except RecordError:
            continue
        raise LogBrokenError(f"{path} is broken before record {record.seq}")


def _last_line(path: Path) -> bytes:
    """Last line of a finished file; raises LogBrokenError if it is no record."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LINE_LIMIT_SCAN))
        lines = file.read().splitlines(keepends=True)
    last = lines[-1] if lines else b""
    try:
        decode_record(last.removesuffix(b"\n"))
    except RecordError as error:
        raise LogBrokenError(f"{path} does not end with a record: {error}") from None
    return last


# --- tail
# Reads the last records of a log on disk again, of a few kinds, while it may be written to.
#
# Streaming and bounded in bytes: what is older is not looked at. The log's own opening has
# checked the chain of the file that is in use. Reading only; must not decide what a record means.

TAIL_BYTES: Final = 64 << 20
"""At 100 reservations a minute some ten hours."""
_LINE_LIMIT_TAIL: Final = 2 * MAX_RECORD_BYTES


def recent_records(
    folder: Path, prefixes: tuple[str, ...], limit_bytes: int = TAIL_BYTES
) -> Iterator[LogRecord]:
    """Records whose kinds begin with one of `prefixes`, oldest first; raises OSError.

    A folder without a log has none. What is no record, such as a line that is being written,
    is skipped.
    """
    marks = tuple(f'"kind":"{x}'.encode() for x in prefixes)
    for line in recent_lines(folder, limit_bytes):
        if any(mark in line for mark in marks):
            record = record_of(line)
            if record is not None and record.kind.startswith(prefixes):
                yield record


def recent_lines(folder: Path, limit_bytes: int = TAIL_BYTES) -> Iterator[bytes]:
    """The whole lines of so many bytes at the end, oldest first, with their LF; raises OSError."""
    for path, start in _parts(folder, limit_bytes):
        yield from _lines(path, start)


def record_of(line: bytes) -> LogRecord | None:
    """The record in a line; None where it is none."""
    try:
        return decode_record(line.removesuffix(b"\n"))
    except RecordError:
        return None


def _parts(folder: Path, limit_bytes: int) -> list[tuple[Path, int]]:
    """The newest files, and where to begin in each."""
    try:
        files = log_files(folder)
    except FileNotFoundError:
        return []
    found, left = [], limit_bytes
    for path in reversed(files):
        size = path.stat().st_size
        found.append((path, max(0, size - left)))
        left -= size
        if left <= 0:
            break
    return found[::-1]


def _lines(path: Path, start: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        if start:
            file.seek(start - 1)
            file.readline()  # the rest of a line that began before
        while line := file.readline(_LINE_LIMIT_TAIL):
            yield line


# --- tree file
# The tree's stored hashes on disk, for proofs: the file `tree` beside the log.
#
# Everything in it follows from the records, so it is never synced with them, never makes
# a grant wait, and never makes the log fail: what cannot be written waits in memory, and
# when there is too much of it, proofs stop until the next start. It stays when old records are
# deleted, 64 bytes for each, because a witness may come back after any time.

NAME = "tree"
WRITE_BYTES = 1 << 20
"""What is gathered while a log is read anew."""
MAX_WAITING = 8 << 20
_HOLE = b"\0" * HASH_BYTES
_CLOSED = -1
"""In place of a descriptor; closing it is an error that is ignored."""


class NoNodeError(Exception):
    """This hash is not there: lost, or never known."""


class TreeNodes(Protocol):
    """Where the hashes of complete subtrees are kept; `TreeFile`."""

    def begin(self, frontier: Frontier) -> None:
        """Forget all that lies behind this frontier."""

    def append(self, hashes: bytes) -> None:
        """Keep what became complete."""

    def flush(self, *, durable: bool = False) -> None:
        """Write what waits."""

    def node(self, level: int, offset: int) -> bytes:
        """The hash of a complete subtree; raises NoNodeError."""


class TreeFile:
    """Implements `TreeNodes`; used by one thread. No method raises OSError."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._path = folder / NAME
        self._disk = disk
        self._descriptor = _CLOSED
        self._written = 0
        self._waiting = bytearray()
        self._broken = False
        self.lost = False
        """Whether hashes before the last `begin` are missing, so that the records must be read."""

    def begin(self, frontier: Frontier) -> None:
        """Forget all that lies behind this frontier; see `lost` for what lies before it."""
        self._waiting.clear()
        self._broken = False
        self._written = stored_count(frontier.size) * HASH_BYTES
        peaks = list(zip(peaks_of(frontier.size), frontier.peaks, strict=True))
        try:
            self._open()
            self.lost = any(self._at(_place(*where)) != peak for where, peak in peaks)
            os.ftruncate(self._descriptor, self._written)
            if self.lost:
                for where, peak in peaks:
                    os.pwrite(self._descriptor, peak, _place(*where))
        except OSError:
            self._broken = self.lost = True

    def append(self, hashes: bytes) -> None:
        """Keep what became complete, to be written in larger pieces."""
        if self._broken:
            return
        self._waiting += hashes
        if len(self._waiting) >= WRITE_BYTES:
            self.flush()
        if len(self._waiting) > MAX_WAITING:
            self._waiting.clear()
            self._broken = True

    def flush(self, *, durable: bool = False) -> None:
        """Write what waits; what cannot be written goes on waiting."""
        with suppress(OSError):
            os.lseek(self._descriptor, self._written, os.SEEK_SET)
            while self._waiting:
                piece = bytes(self._waiting[:WRITE_BYTES])
                count = self._disk.write(self._descriptor, memoryview(piece))
                del self._waiting[:count]
                self._written += count
            if durable:
                self._disk.sync(self._descriptor)

    def node(self, level: int, offset: int) -> bytes:
        """The hash of a complete subtree; raises NoNodeError."""
        try:
            found = self._at(_place(level, offset))
        except OSError as error:
            raise NoNodeError(str(error)) from error
        if self._broken or len(found) != HASH_BYTES or found == _HOLE:
            raise NoNodeError(f"no hash at level {level}, offset {offset}")
        return found

    def close(self) -> None:
        """Let the file go."""
        with suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = _CLOSED

    def _open(self) -> None:
        if self._descriptor == _CLOSED:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            self._descriptor = os.open(self._path, flags, 0o600)

    def _at(self, at: int) -> bytes:
        """From the file, from memory, or across the end of the one."""
        found = os.pread(self._descriptor, HASH_BYTES, at)
        begin = max(0, at - self._written)
        return found + bytes(self._waiting[begin : begin + HASH_BYTES - len(found)])


def _place(level: int, offset: int) -> int:
    return stored_index(level, offset) * HASH_BYTES
