"""The last records about one subject in this replica's log: read from its end, bounded.

For people. Reads files that the writer appends to, without a lock: a torn last line is left
out, and nothing is verified here.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuwarden.audit.files import PATTERN
from gpuwarden.audit.record import LogRecord, RecordError, decode_record
from gpuwarden.evidence.canonical import canonical_json

MOST_BYTES: Final = 8 * 1024 * 1024
MOST_RECORDS: Final = 40


@dataclass(frozen=True, slots=True)
class Recent:
    """What the end of the log says."""

    records: tuple[LogRecord, ...] = ()
    """The oldest first; of many the last."""
    since: str = ""
    """`ts` of the oldest record that was looked at; empty where there is none."""


def recent_records(folder: Path, subject: str, *, most_bytes: int = MOST_BYTES) -> Recent:
    """Those about `subject` among the last `most_bytes`; raises OSError."""
    needle = b'"subject":' + canonical_json(subject)
    lines = _last_lines(folder, most_bytes)
    found = [x for line in lines if needle in line if (x := _record(line)) is not None]
    first = next(filter(None, map(_record, lines)), None)
    return Recent(
        tuple(x for x in found if x.subject == subject)[-MOST_RECORDS:],
        "" if first is None else first.ts,
    )


def _last_lines(folder: Path, most_bytes: int) -> list[bytes]:
    parts: list[bytes] = []
    left = most_bytes
    for path in sorted(folder.glob(PATTERN), reverse=True):
        with path.open("rb") as file:
            size = file.seek(0, 2)
            begin = max(0, size - left)
            file.seek(begin)
            part = file.read(left)
        left -= len(part)
        # The first line of a part that begins in the middle is not whole.
        parts.append(part.partition(b"\n")[2] if begin else part)
        if left <= 0:
            break
    return b"".join(reversed(parts)).split(b"\n")[:-1]


def _record(line: bytes) -> LogRecord | None:
    try:
        return decode_record(line)
    except RecordError:
        return None
