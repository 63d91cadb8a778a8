"""Reads the last records of a log again, by kind or subject, while it may be written to.

Reads from the end and can be bounded in bytes: what is older is not looked at. Verifies nothing:
the controller has checked the chain of the file in use when it opened the log, and `gpuwarden audit
verify` checks all of it.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuwarden.audit.files import file_name, log_files
from gpuwarden.audit.record import (
    MAX_RECORD_BYTES,
    LogRecord,
    RecordError,
    decode_record,
    known_kind,
)
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.regular_file import open_to_read

TAIL_BYTES: Final = 64 << 20
"""At 100 reservations a minute some ten hours."""
MOST_BYTES: Final = 8 * 1024 * 1024
LINE_LIMIT: Final = 2 * MAX_RECORD_BYTES
"""How much of a line is read at once: no record is as long."""


def recent_records(
    folder: Path, prefixes: tuple[str, ...], limit_bytes: int | None = TAIL_BYTES
) -> Iterator[LogRecord]:
    """Records whose kinds begin with one of `prefixes`, oldest first; raises OSError.

    `limit_bytes`: None for the whole log. A folder without a log has none. What is no record, such
    as a line that is being written, is skipped.
    """
    for line in recent_lines(folder, limit_bytes):
        record = record_of_kind(line, prefixes)
        if record is not None:
            yield record


def record_of_kind(line: bytes, prefixes: tuple[str, ...]) -> LogRecord | None:
    """The record in a line, where its kind begins with one of `prefixes`."""
    if not any(f'"kind":"{x}'.encode() in line for x in prefixes):
        return None
    record = record_of(line)
    return record if record is not None and record.kind.startswith(prefixes) else None


def recent_lines(folder: Path, limit_bytes: int | None = TAIL_BYTES) -> Iterator[bytes]:
    """The whole lines of so many bytes at the end, oldest first, with their LF; raises OSError."""
    try:
        files = log_files(folder)
    except FileNotFoundError:
        return
    for path, start in parts_at_end(files, limit_bytes):
        yield from _lines(path, start)


def record_of(line: bytes) -> LogRecord | None:
    """The record in a line; None where it is none."""
    try:
        return decode_record(line.removesuffix(b"\n"))
    except RecordError:
        return None


def parts_at_end(files: Sequence[Path], limit_bytes: int | None) -> list[tuple[Path, int]]:
    """The newest of a log's files, and where so many bytes at the end begin in each."""
    if limit_bytes is None:
        return [(path, 0) for path in files]
    found, left = [], limit_bytes
    for path in reversed(files):
        size = path.stat().st_size
        found.append((path, max(0, size - left)))
        left -= size
        if left <= 0:
            break
    return found[::-1]


def _lines(path: Path, start: int) -> Iterator[bytes]:
    with open_to_read(path) as file:
        if start:
            file.seek(start - 1)
            file.readline()  # the rest of a line that began before
        while line := file.readline(LINE_LIMIT):
            yield line


# --- what comes


BY_THE_CLOCK: Final = frozenset({"checkpoint", "evidence.repeated", "log.rotate", "use.account"})
"""Kinds that come whether anything happens or not; shown where they are asked for."""


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records are asked for."""

    kinds: tuple[str, ...] = ()
    """What their kinds begin with; none for all but those that come by the clock."""
    subject: str = ""
    """What their subjects begin with."""

    def fits(self, record: LogRecord) -> bool:
        """Whether it is one of them."""
        if not record.subject.startswith(self.subject):
            return False
        is_named = record.kind.startswith(self.kinds)
        return is_named if self.kinds else known_kind(record) not in BY_THE_CLOCK


class Tail:
    """The end of a log, and what is written after it, over files that begin in between."""

    def __init__(self, folder: Path, limit: int = MOST_BYTES, *, after: int = 0) -> None:
        """`after`: begin behind this record instead, wherever it is; 0 for the end.

        Raises FileNotFoundError for a folder without a log.
        """
        self._folder = folder
        self._after = after
        if after:
            files = log_files(folder)
            before = [x for x in files if x.name <= file_name(after + 1)]
            self._path, start = (before or files)[-1 if before else 0], 0
        else:
            self._path, start = parts_at_end(log_files(folder), limit)[0]
        self._offset = max(0, start - 1)
        self._skips_first = start > 0
        """The rest of a line that began before."""

    def new(self) -> Iterator[tuple[bytes, LogRecord]]:
        """Whole records that this has not given yet, with their lines; what is none is skipped."""
        while True:
            yield from self._rest()
            later = [x for x in log_files(self._folder) if x.name > self._path.name]
            if not later:
                return
            yield from self._rest()  # its last lines came before the next file
            self._path, self._offset = later[0], 0

    def _rest(self) -> Iterator[tuple[bytes, LogRecord]]:
        with open_to_read(self._path) as file:
            file.seek(self._offset)
            while text := file.readline(LINE_LIMIT):
                if not text.endswith(b"\n") and len(text) < LINE_LIMIT:
                    return  # is being written
                self._offset += len(text)
                if self._skips_first:
                    self._skips_first = False
                    continue
                record = record_of(text)
                if record is not None and record.seq > self._after:
                    yield text, record


# --- what is about a subject

MOST_RECORDS: Final = 40


@dataclass(frozen=True, slots=True)
class Recent:
    """What the end of the log says."""

    records: tuple[LogRecord, ...] = ()
    """The oldest first; of many the last."""
    since: str = ""
    """`ts` of the oldest record that was read; empty where there is none."""


def records_about(folder: Path, subject: str, *, most_bytes: int = MOST_BYTES) -> Recent:
    """Those about `subject` among the last `most_bytes`; raises OSError."""
    needle = b'"subject":' + canonical_json(subject)
    found, since = deque[LogRecord](maxlen=MOST_RECORDS), ""
    for line in recent_lines(folder, most_bytes):
        if since and needle not in line:
            continue
        record = record_of(line)
        if record is not None:
            since = since or record.ts
            if record.subject == subject:
                found.append(record)
    return Recent(tuple(found), since)
