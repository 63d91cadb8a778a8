"""`gpuwarden-score export` and `import`: what was learned as lines of JSON, the first a header."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from controller.scoring.learned import Row
from controller.store.scores import (
    InUseError,
    decode_row,
    encode_row,
    export_rows,
    import_rows,
)
from controller.store.sqlite import StoreError
from gpuwarden.settings.loader import SCORE

HEADER: Final = '{"format":"gpuwarden-score","version":1}'
_MOST_BYTES: Final = 1 << 30
_USUAL: Final = next(key.default for key in SCORE.keys if key.name == "database")


def main(arguments: Sequence[str]) -> int:
    """Run one of the two; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        if given.command == "export":
            _write(given.output, export_rows(given.database))
        else:
            rows = read_rows(_read(given.file))
            import_rows(given.database, rows, replace=given.replace)
            sys.stdout.write(f"{len(rows)} rows are in {given.database}\n")
    except (StoreError, InUseError, OSError, ValueError) as error:
        sys.stderr.write(f"gpuwarden-score {given.command}: {error}\n")
        return 1
    return 0


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


def _read(path: Path | None) -> str:
    if path is None:
        return sys.stdin.read(_MOST_BYTES)
    with path.open() as file:
        return file.read(_MOST_BYTES)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpuwarden-score", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    export = commands.add_parser(
        "export",
        help="write what was learned",
        description="Also while the service runs. Example: export --output learned.jsonl",
    )
    export.add_argument("--output", type=Path, help="file to write (default: standard output)")
    imports = commands.add_parser(
        "import",
        help="read what was learned elsewhere",
        description="Stop the service first. Example: import learned.jsonl --replace",
    )
    imports.add_argument(
        "file", type=Path, nargs="?", help="file of an export (default: standard input)"
    )
    imports.add_argument(
        "--replace", action="store_true", help="take the place of what the database has"
    )
    for command in (export, imports):
        command.add_argument(
            "--database", type=Path, default=_USUAL, help=f"SQLite file (default: {_USUAL})"
        )
    return parser
