"""Reads audit logs from disk for verification: one log across its rotated files.

Reading only; the controller's file store writes. Only regular files are read, so that a named pipe
in the folder holds nobody up. Sizes are bounded per line, so that a file without line ends cannot
fill the memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gpuwarden.audit.chain import Broken, Head, Verified, verify_collected, verify_lines
from gpuwarden.audit.record import MAX_RECORD_BYTES
from gpuwarden.audit.tree_check import NOTHING_WANTED, Wanted
from gpuwarden.regular_file import open_to_read

PATTERN = "audit-*.jsonl"
_LINE_LIMIT = 8 * MAX_RECORD_BYTES
Opening = Callable[[Path], AbstractContextManager[BinaryIO]]
"""How a file is opened; raises OSError."""

KEY_FILE = "log-key.pem"
"""The key, where `audit.key` names none."""
KEY_CHANGES = "key-changes"
PREV_LOG = "prev-log"
"""Last checkpoint of the log that this one replaces."""
LOCK_FILE = "lock"


def file_name(first_seq: int) -> str:
    """Name of the file whose first record has this number; names sort in order of numbers."""
    return f"audit-{first_seq:020d}.jsonl"


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a line in the input."""

    path: Path
    line: int


@dataclass(frozen=True, slots=True)
class Report:
    """Outcome for one log; `at` is set for a broken one and counts lines within its file."""

    result: Verified | Broken
    at: Location | None = None


def log_files(path: Path) -> list[Path]:
    """Return the files of the log in a folder in order, or the one file that `path` is.

    Raises FileNotFoundError where there is neither.
    """
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file or folder")
        return [path]
    found = sorted(path.glob(PATTERN))
    if not found:
        raise FileNotFoundError(f"{path}: holds no {PATTERN}")
    return found


def lines_of(paths: Sequence[Path]) -> Iterator[bytes]:
    """The lines of files, in order, each with its LF; longer ones than a record come in parts."""
    for path in paths:
        with open_to_read(path) as file:
            while line := file.readline(_LINE_LIMIT):
                yield line


def verify_files(
    paths: Sequence[Path],
    *,
    expect: Head | None = None,
    wanted: Wanted = NOTHING_WANTED,
    opening: Opening = open_to_read,
) -> Report:
    """Verify files, in order, as one log."""
    lines = _Lines(paths, opening)
    result = verify_lines(lines, expect=expect, wanted=wanted)
    if isinstance(result, Verified):
        return Report(result)
    return Report(result, lines.locate(result.line))


def verify_collected_files(
    paths: Sequence[Path],
    *,
    expect: Head | None = None,
    wanted: Wanted = NOTHING_WANTED,
    opening: Opening = open_to_read,
) -> dict[str, Report]:
    """Verify the records among other lines of collected logs, by origin."""
    lines = _Lines(paths, opening)
    reports = {}
    for origin, result in verify_collected(lines, expect=expect, wanted=wanted).items():
        at = lines.locate(result.line) if isinstance(result, Broken) else None
        reports[origin] = Report(result, at)
    return reports


class _Lines:
    """Lines of several files as one sequence that remembers where each file began."""

    def __init__(self, paths: Sequence[Path], opening: Opening) -> None:
        self._paths = paths
        self._opening = opening
        self._starts: list[tuple[int, Path]] = []

    def __iter__(self) -> Iterator[bytes]:
        count = 0
        for path in self._paths:
            self._starts.append((count, path))
            with self._opening(path) as file:
                while line := file.readline(_LINE_LIMIT):
                    count += 1
                    yield line

    def locate(self, number: int) -> Location | None:
        place = None
        for start, path in self._starts:
            if number > start:
                place = Location(path, number - start)
        return place
