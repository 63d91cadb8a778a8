"""Finds audit records among other log lines, so that a log collector alone is enough to audit.

The controller writes each durable record to standard output too. Collectors put
prefixes before a line, wrap it in JSON, write its keys in another order, deliver it
twice or late; a record is recognised by `v` and brought back into canonical form.
Pure.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from gpuwarden.audit.chain import Broken, Head, Verified, verify_numbered
from gpuwarden.audit.record import FORMAT, MAX_RECORD_BYTES
from gpuwarden.audit.tree_check import NOTHING_WANTED, Wanted
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.errors import CanonicalError

_MARK = FORMAT.encode()
_WRAPPERS = ("log", "message")
"""Fields in which container runtimes and collectors keep the original line."""
_MAX_LINE = 8 * MAX_RECORD_BYTES


def records_among(lines: Iterable[bytes]) -> Iterator[tuple[str, int, int, bytes]]:
    """Yield origin, seq, line number and canonical bytes of each record found."""
    for number, line in enumerate(lines, start=1):
        found = _find(line) if _MARK in line and len(line) <= _MAX_LINE else None
        if found is not None:
            yield found["origin"], found["seq"], number, canonical_json(found)


def verify_collected(
    lines: Iterable[bytes], *, expect: Head | None = None, wanted: Wanted = NOTHING_WANTED
) -> dict[str, Verified | Broken]:
    """Verify the records of each origin in a collected log, in the order of their numbers.

    `expect` and `wanted` are checked for every origin, so they make sense with one only.
    """
    by_origin: dict[str, dict[tuple[int, bytes], int]] = {}
    for origin, seq, number, record in records_among(lines):
        by_origin.setdefault(origin, {}).setdefault((seq, record), number)
    return {
        origin: verify_numbered(_in_order(found), expect=expect, wanted=wanted)
        for origin, found in sorted(by_origin.items())
    }


def _in_order(found: dict[tuple[int, bytes], int]) -> Iterator[tuple[int, bytes]]:
    for (_, record), number in sorted(found.items()):
        yield number, record + b"\n"


def _find(line: bytes) -> dict[str, Any] | None:
    outer = _json_object(line)
    if outer is None or _is_record(outer):
        return outer
    for field in _WRAPPERS:
        inner = outer.get(field)
        if isinstance(inner, str):
            found = _json_object(inner.encode("utf-8", "replace"))
            if found is not None and _is_record(found):
                return found
    return None


def _json_object(line: bytes) -> dict[str, Any] | None:
    start = line.find(b"{")
    if start < 0:
        return None
    try:
        found: dict[str, Any] = json.loads(line[start:])
    except (ValueError, RecursionError):
        return None
    return found


def _is_record(found: dict[str, Any]) -> bool:
    seq, origin = found.get("seq"), found.get("origin")
    if found.get("v") != FORMAT or not isinstance(origin, str) or type(seq) is not int:
        return False
    try:
        canonical_json(found)
    except CanonicalError:
        return False
    return True
