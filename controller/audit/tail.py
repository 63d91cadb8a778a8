"""Reads the last records of a log on disk again, of a few kinds, while it may be written to.

Streaming and bounded in bytes: what is older is not looked at. The log's own opening has
checked the chain of the file that is in use. Reading only; must not decide what a record means.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuwarden.audit.files import log_files
from gpuwarden.audit.record import MAX_RECORD_BYTES, LogRecord, RecordError, decode_record

TAIL_BYTES: Final = 64 << 20
"""At 100 reservations a minute some ten hours."""
_LINE_LIMIT: Final = 2 * MAX_RECORD_BYTES


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
        while line := file.readline(_LINE_LIMIT):
            yield line
