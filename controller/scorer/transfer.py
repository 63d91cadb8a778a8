"""`gpuwarden-score export` and `import`: what was learned as lines of JSON, the first a header."""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from controller.scorer.databases import all_rows, put_rows
from controller.scorer.failures import USAGE, failed
from controller.scoring.learned import Row
from controller.store.learned_rows import InUseError, decode_row, encode_row
from controller.store.sqlite import StoreError
from gpuwarden.settings.loader import SCORE, Inputs, SettingsError, load
from gpuwarden.settings.score import ScoreSettings
from gpuwarden.settings.start import read_secret_file

HEADER: Final = '{"format":"gpuwarden-score","version":1}'
_MOST_BYTES: Final = 1 << 30
_USUAL: Final = next(key.default for key in SCORE.keys if key.name == "database")


def main(arguments: Sequence[str]) -> int:
    """Run one of the two; returns the exit status."""
    given = parser().parse_args(arguments)
    try:
        settings = _settings(given.database)
        database, password = settings.database, settings.database_password
        if given.command == "export":
            _write(given.output, all_rows(database, password))
        else:
            rows = _rows_of(given.file)
            put_rows(database, password, rows, replace=given.replace)
            sys.stdout.write(f"{len(rows)} rows are in {database}\n")
    except (SettingsError, ValueError) as error:
        return failed(given.command, error, USAGE)
    except (StoreError, InUseError, OSError) as error:
        return failed(given.command, error)
    return 0


def _settings(database: str | None) -> ScoreSettings:
    """Where the database is: the flag, else what the service's variables say."""
    flags = [] if database is None else [("database", database, "--database")]
    return load(SCORE, Inputs(flags, os.environ, None, read_secret_file)).settings


def read_rows(text: str) -> tuple[Row, ...]:
    """The rows of an export; raises ValueError with the number of a wrong line."""
    first, *lines = text.splitlines() or [""]
    if first != HEADER:
        raise ValueError(f"line 1: {first[:80]!a}, expected {HEADER}")
    rows: dict[object, Row] = {}
    for number, line in enumerate(lines, start=2):
        try:
            row = decode_row(line)
        except StoreError as error:
            raise ValueError(f"line {number}: {error}") from None
        if row.key in rows:
            raise ValueError(f"line {number}: {row.key} is there twice")
        rows[row.key] = row
    return tuple(rows.values())


def written_rows(rows: Iterable[Row]) -> str:
    """The lines of an export, in the order of names."""
    ordered = sorted(rows, key=lambda x: (x.kind.value, x.job_type, x.other))
    return "".join(f"{line}\n" for line in (HEADER, *map(encode_row, ordered)))


def _write(output: Path | None, rows: Iterable[Row]) -> None:
    text = written_rows(rows)
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text)


def _rows_of(path: Path | None) -> tuple[Row, ...]:
    try:
        if path is None:
            return read_rows(sys.stdin.read(_MOST_BYTES))
        with path.open() as file:
            return read_rows(file.read(_MOST_BYTES))
    except ValueError as error:
        raise ValueError(f"{path or 'standard input'}: {error}") from None


def parser() -> argparse.ArgumentParser:
    """The arguments of both commands."""
    found = argparse.ArgumentParser(prog="gpuwarden-score", allow_abbrev=False)
    commands = found.add_subparsers(dest="command", required=True)
    export = commands.add_parser(
        "export",
        help="write what was learned",
        description="Write what was learned, also while the service runs."
        " Example: export --output learned.jsonl",
    )
    export.add_argument(
        "--output", type=Path, metavar="FILE", help="file to write (default: standard output)"
    )
    imports = commands.add_parser(
        "import",
        help="read what was learned elsewhere",
        description="Read what was learned elsewhere. Into a file: stop the service first."
        " Example: import learned.jsonl --replace",
    )
    imports.add_argument(
        "file", type=Path, nargs="?", help="file of an export (default: standard input)"
    )
    imports.add_argument(
        "--replace", action="store_true", help="take the place of what the database has"
    )
    for command in (export, imports):
        command.add_argument(
            "--database",
            help="SQLite file, or postgresql://USER@HOST:PORT/DATABASE with its password in"
            " $GPUWARDEN_DATABASE_PASSWORD or in the file that $GPUWARDEN_DATABASE_PASSWORD_FILE"
            f" names (default: $GPUWARDEN_DATABASE, else {_USUAL})",
        )
    return found
