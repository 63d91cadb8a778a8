"""`gpuwarden export list|replay`: records that a controller could not deliver.

Works on the folder of one controller; the controller itself delivers.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from gpuwarden.cli.connection.options import Output
from gpuwarden.cli.exit_codes import CliError, ExitCode, unreadable
from gpuwarden.cli.text.output import Format, printed
from gpuwarden.cli.text.screen import on_screen
from gpuwarden.cli.text.tables import Column
from gpuwarden.cli.text.terminal import shown
from gpuwarden.counted import counted
from gpuwarden.dead_letter_files import (
    EXPORTERS,
    LETTERS,
    REPLAYING,
    REQUEST,
    Request,
    request_text,
)
from gpuwarden.regular_file import open_new, open_to_read

Exporter = Literal["stdout", "http", "postgres", "s3"]


@dataclass(frozen=True, slots=True)
class _Row:
    """Records of an exporter that are there for one reason."""

    exporter: str
    records: int
    replay: str
    """`requested`, `running` or `no`."""
    reason: str


_FOLDER: Final = Path("/var/lib/gpuwarden/export")
_COLUMNS: Final[tuple[Column[_Row], ...]] = (
    Column("EXPORTER", lambda row: row.exporter),
    Column("RECORDS", lambda row: str(row.records)),
    Column("REPLAY", lambda row: row.replay),
    Column("REASON", lambda row: row.reason),
)
_MOST_REASON: Final = 80
_UNREADABLE: Final = "a line that is no record"


def list_(*, folder: Path = _FOLDER, output: Output = Format.TABLE) -> None:
    """List the records that a controller could not export, by exporter and reason.

    Parameters
    ----------
    folder
        Folder of the controller, as `export.deadLetter.dir`.
    output
        How to show them.

    """
    rows = [
        _Row(name, count, _replay(folder, name), reason)
        for name in EXPORTERS
        for reason, count in sorted(Counter(_reasons(folder, name)).items())
    ]
    found = [asdict(row) for row in rows]
    names = dict.fromkeys(f"export/{row.exporter}" for row in rows)
    text = printed(
        found,
        output,
        names=names,
        text=lambda: on_screen(_COLUMNS, rows, output) or "No records.\n",
    )
    sys.stdout.write(text)


def replay(exporter: Exporter, *, reason: str, folder: Path = _FOLDER) -> None:
    """Replay the records that a controller could not export.

    Parameters
    ----------
    exporter
        Whose records.
    reason
        Why; it goes into the audit log.
    folder
        Folder of the controller, as `export.deadLetter.dir`.

    """
    if not reason.strip():
        raise CliError(ExitCode.USAGE, "--reason: expected why the records are to be replayed")
    count = sum(1 for _ in _reasons(folder, exporter))
    if not count:
        raise CliError(ExitCode.ERROR, f"no records of {exporter} in {shown(str(folder))}")
    path = folder / REQUEST.format(exporter=exporter)
    new = path.with_suffix(".new")
    request = Request(f"local/uid-{os.getuid()}", reason.strip())
    try:
        with open_new(new) as file:
            file.write(request_text(request).encode())
        new.replace(path)
    except OSError as error:
        raise unreadable(error) from None
    sys.stdout.write(f"export/{exporter} replay requested: {counted(count, 'record')}\n")


def _replay(folder: Path, exporter: str) -> str:
    if (folder / REQUEST.format(exporter=exporter)).exists():
        return "requested"
    return "running" if (folder / REPLAYING.format(exporter=exporter)).exists() else "no"


def _reasons(folder: Path, exporter: str) -> Iterator[str]:
    """Of each record in the files of an exporter, why it is there."""
    for name in (LETTERS, REPLAYING):
        path = folder / name.format(exporter=exporter)
        try:
            with open_to_read(path) as file:
                for line in file:
                    yield _reason(line)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise unreadable(error) from None


def _reason(line: bytes) -> str:
    try:
        return str(json.loads(line)["reason"])[:_MOST_REASON]
    except (ValueError, TypeError, KeyError, RecursionError):
        return _UNREADABLE
