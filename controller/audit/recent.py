"""The last records about one subject in this replica's log, for people: read from its end, bounded.

Reading only; nothing is verified here.
"""

from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.audit.tail import recent_lines, record_of
from gpuwarden.audit.record import LogRecord
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
