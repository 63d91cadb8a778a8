"""What this replica's audit log says over HTTP: about a GPU or a subject, and to a search.

Blocks, and is bounded by how much of the log's end is read; call it on a thread.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from controller.web.api.documents import PageRequest
from controller.web.api.v1_operations import AuditPage, AuditRow, Query
from gpuwarden.audit.archive import archived_shown
from gpuwarden.audit.gpu_history import HISTORY_KINDS, GpuHistory, gpu_history, with_serial
from gpuwarden.audit.reading import (
    Recent,
    recent_lines,
    recent_records,
    record_of,
    records_about,
)
from gpuwarden.audit.record import LogRecord

_SEARCHED_BYTES: Final = 16 << 20
"""Of the log's end, in a search."""
_AS_WRITTEN: Final = re.compile(r"[A-Za-z0-9 ./_-]*")
"""What stands in a line as it is, so that other lines need not be decoded."""


def gpu_of_serial(folder: Path, serial: str) -> str | None:
    """UUID of the GPU that has had this serial; of several on a board the first."""
    found = with_serial(_records_of_gpus(folder), serial, partial(archived_shown, folder))
    return min(found, default=None)


def history_of(folder: Path, uuid: str, mig_devices: Iterable[str]) -> GpuHistory:
    """Where a GPU was and who had it."""
    records, shown_of = _records_of_gpus(folder), partial(archived_shown, folder)
    return gpu_history(records, uuid, shown_of, mig_devices=mig_devices)


def _records_of_gpus(folder: Path) -> Iterator[LogRecord]:
    """Those that say something about any GPU, in their order."""
    try:
        yield from recent_records(folder, HISTORY_KINDS)
    except OSError:
        return  # readiness says that the log cannot be read


def about(folder: Path, subject: str) -> Recent:
    """The last records about a subject."""
    try:
        return records_about(folder, subject)
    except OSError:
        return Recent()  # same


def search(folder: Path, query: Query, page: PageRequest) -> AuditPage:
    """Records that fit, newest first; raises OSError."""
    limit = page.limit
    before = int(page.after) if page.after else None
    found = deque[AuditRow](maxlen=limit + 1)
    wanted = (query.get(x, "") for x in ("subject", "code", "kind"))
    needles = [x.encode() for x in wanted if _AS_WRITTEN.fullmatch(x)]
    since = ""
    for line in recent_lines(folder, _SEARCHED_BYTES):
        if since and not all(x in line for x in needles):
            continue
        record = record_of(line)
        if record is None:
            continue
        since = since or record.ts
        if before is not None and record.seq >= before:
            break
        text = line.removesuffix(b"\n").decode()
        if _is_sought(record, text, query):
            found.append(_audit_row(record, text))
    rows = list(found)[::-1]
    following = str(rows[limit - 1].record) if len(rows) > limit else None
    return AuditPage(following, rows[:limit], since)


def _is_sought(record: LogRecord, line: str, query: Query) -> bool:
    def get(name: str) -> str:
        return query.get(name, "")

    return (
        record.kind.startswith(get("kind"))
        and get("subject") in {"", record.subject}
        and get("actor") in record.actor
        and (not get("code") or get("code") in record.codes)
        and get("q").casefold() in line.casefold()
    )


def _audit_row(record: LogRecord, line: str) -> AuditRow:
    return AuditRow(
        record.seq,
        record.ts,
        record.kind,
        record.actor,
        record.subject,
        record.decision,
        list(record.codes),
        line,
    )
