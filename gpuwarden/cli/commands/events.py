"""`gpuwarden events`: what the end of an audit log says, once or as it grows. No controller."""

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from gpuwarden.audit.files import log_files
from gpuwarden.audit.reading import LINE_LIMIT, parts_at_end, record_of
from gpuwarden.audit.record import LogRecord
from gpuwarden.cli.commands.gpu import when
from gpuwarden.cli.commands.reverify import DEFAULT_STORE
from gpuwarden.cli.exit_codes import CliError, ExitCode, unreadable
from gpuwarden.cli.options import Output
from gpuwarden.cli.output import STRUCTURED, Format, json_line
from gpuwarden.cli.screen import on_screen
from gpuwarden.cli.terminal import WIDTH, Column, cells, column_widths, joined, line, shown, visible
from gpuwarden.regular_file import open_to_read

_POLL_S: Final = 0.5
_TAIL_BYTES: Final = 8 << 20
_MOST: Final = 10_000
_QUIET: Final = frozenset({"checkpoint", "evidence.round", "log.rotate", "use.account"})
"""Kinds that come by the clock; shown where they are asked for."""


def about(record: LogRecord) -> str:
    """What it is about, and why or where."""
    node = record.refs.get("node")
    where = f" on {node}" if isinstance(node, str) and node else ""
    why = f": {joined(record.codes)}" if record.codes and record.codes != ("ACCEPTED",) else ""
    return f"{record.subject}{where}{why}"


EVENTS: Final[tuple[Column[LogRecord], ...]] = (
    Column("TIME", lambda x: when(x.ts)),
    Column("KIND", lambda x: x.kind),
    Column("DECISION", lambda x: x.decision),
    Column("RECORD", lambda x: str(x.seq), wide=True),
    Column("ACTOR", lambda x: x.actor, wide=True),
    Column("CODES", lambda x: joined(x.codes), wide=True),
    Column("SUBJECT", about),
)
_WIDTHS: Final = (20, 22, 9)


def events(
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    last: int = 20,
    kind: Annotated[list[str] | None, Parameter(negative="")] = None,
    subject: str = "",
    store: Path = DEFAULT_STORE,
    output: Output = Format.TABLE,
) -> ExitCode:
    """Show the last events of an audit log, and follow it as it grows.

    Parameters
    ----------
    follow
        Go on with what comes, until Ctrl-C. JSON is one object per line then.
    last
        How many of those before to show; 0 to 10000.
    kind
        Only kinds that begin so, for example `reservation` or `node.state`; may be repeated.
    subject
        Only what is about this subject, such as `node/gpu-a1`, `pod/team-a/train-0`, or a
        beginning of it.
    store
        Folder of the audit log.
    output
        How to print; `name` gives the numbers of the records.

    """
    if not 0 <= last <= _MOST:
        raise CliError(ExitCode.USAGE, f"--last: expected 0 to {_MOST}, got {last}")
    if not store.is_dir():
        raise CliError(ExitCode.USAGE, f"--store: {shown(str(store))}: no such folder")

    def is_wanted(record: LogRecord) -> bool:
        if not record.subject.startswith(subject):
            return False
        return record.kind.startswith(tuple(kind)) if kind else record.kind not in _QUIET

    try:
        tail = Tail(store)
        found = deque((x for x in tail.new() if is_wanted(x)), maxlen=last)
        sys.stdout.write(_first(list(found), output, follows=follow))
        sys.stdout.flush()
        while follow:
            time.sleep(_POLL_S)
            for record in tail.new():
                if is_wanted(record):
                    sys.stdout.write(_next(record, output))
            sys.stdout.flush()
    except OSError as error:
        raise unreadable(error) from None
    return ExitCode.OK


class Tail:
    """The end of a log, and what is written after it, over files that begin in between."""

    def __init__(self, folder: Path, limit: int = _TAIL_BYTES) -> None:
        """Raises FileNotFoundError for a folder without a log."""
        self._folder = folder
        self._path, start = parts_at_end(log_files(folder), limit)[0]
        self._offset = max(0, start - 1)
        self._skips_first = start > 0
        """The rest of a line that began before."""

    def new(self) -> Iterator[LogRecord]:
        """Whole records that this has not given yet; what is none is skipped."""
        while True:
            yield from self._rest()
            later = [x for x in log_files(self._folder) if x.name > self._path.name]
            if not later:
                return
            yield from self._rest()  # its last lines came before the next file
            self._path, self._offset = later[0], 0

    def _rest(self) -> Iterator[LogRecord]:
        with open_to_read(self._path) as file:
            file.seek(self._offset, os.SEEK_SET)
            while text := file.readline(LINE_LIMIT):
                if not text.endswith(b"\n") and len(text) < LINE_LIMIT:
                    return  # is being written
                self._offset += len(text)
                if self._skips_first:
                    self._skips_first = False
                    continue
                record = record_of(text)
                if record is not None:
                    yield record


def _plain(record: LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found


def _first(records: list[LogRecord], output: Format, *, follows: bool) -> str:
    if output in STRUCTURED or output is Format.NAME:
        return "".join(_next(x, output) for x in records)
    if not follows:
        return on_screen(EVENTS, records, output) or "No events.\n"
    return _row(tuple(x.title for x in visible(EVENTS, wide=output is Format.WIDE)), output) + (
        "".join(_next(x, output) for x in records)
    )


def _next(record: LogRecord, output: Format) -> str:
    if output is Format.NAME:
        return f"{record.seq}\n"
    if output in STRUCTURED:
        return json_line(_plain(record))
    columns = visible(EVENTS, wide=output is Format.WIDE)
    return _row(cells(columns, record), output)


def _row(row: tuple[str, ...], output: Format) -> str:
    widths = list(column_widths([row]))
    for at, least in enumerate(_WIDTHS):
        widths[at] = max(widths[at], least)
    return line(row, widths, most=None if output is Format.WIDE else WIDTH)
