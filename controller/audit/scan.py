"""Finds where a log file ends: its last whole record, and what a crash left behind it.

A torn end is what an unfinished group leaves: short, and without any whole record in
it. Anything else is not repaired: it may be evidence of tampering.
"""

from dataclasses import dataclass
from pathlib import Path

from gpuwarden.audit.chain import Accepted, ChainVerifier, Head
from gpuwarden.audit.files import file_name
from gpuwarden.audit.record import MAX_RECORD_BYTES, RecordError, decode_record

MAX_TORN_BYTES = 64 * (MAX_RECORD_BYTES + 1)
"""One group of records at its longest."""
_LINE_LIMIT = 2 * MAX_RECORD_BYTES


class LogBrokenError(Exception):
    """The log on disk is not what this product wrote; nothing may be appended to it."""


@dataclass(frozen=True, slots=True)
class Scan:
    """The whole records of a file, and the bytes behind them."""

    head: Head
    """BEFORE_FIRST, or the last record of the file before, if there are none here."""
    records: int
    durable: int
    """Bytes of the whole records."""
    torn: bytes


def scan_file(
    path: Path,
    origin: str,
    older: Path | None,
    accepted: Accepted = lambda _record, _line: None,
) -> Scan:
    """Scan a file as the continuation of `older`; raises LogBrokenError, OSError.

    `accepted` is told each whole record of this file.
    """
    verifier = ChainVerifier()
    if older is not None:
        verifier.feed(_last_line(older))
    already = verifier.records
    verifier.accepted = accepted
    durable, torn = _feed(verifier, path)
    records = verifier.records - already
    _refuse_unless_torn(path, torn)
    if verifier.records and verifier.origin != origin:
        raise LogBrokenError(f"{path} is the log of {verifier.origin!r}, not of {origin!r}")
    first = verifier.head.seq - records + 1
    if path.name != file_name(first) and (records or older is None):
        raise LogBrokenError(f"{path} starts with record {first}, not as its name says")
    return Scan(verifier.head, records, durable, torn)


def _feed(verifier: ChainVerifier, path: Path) -> tuple[int, bytes]:
    """Feed all lines; return the length of what fits, and what comes behind it."""
    durable = 0
    with path.open("rb") as file:
        while verifier.fault is None and (line := file.readline(_LINE_LIMIT)):
            known = verifier.records
            verifier.feed(line)
            durable += len(line) if verifier.records > known else 0
        file.seek(durable)
        return durable, file.read(MAX_TORN_BYTES + 1)


def _refuse_unless_torn(path: Path, rest: bytes) -> None:
    if len(rest) > MAX_TORN_BYTES:
        raise LogBrokenError(f"{path} ends with more than a crash can leave behind")
    for line in rest.split(b"\n")[:-1]:
        try:
            record = decode_record(line)
        except RecordError:
            continue
        raise LogBrokenError(f"{path} is broken before record {record.seq}")


def _last_line(path: Path) -> bytes:
    """Last line of a finished file; raises LogBrokenError if it is no record."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LINE_LIMIT))
        lines = file.read().splitlines(keepends=True)
    last = lines[-1] if lines else b""
    try:
        decode_record(last.removesuffix(b"\n"))
    except RecordError as error:
        raise LogBrokenError(f"{path} does not end with a record: {error}") from None
    return last
