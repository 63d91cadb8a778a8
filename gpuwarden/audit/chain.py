"""Verifies the hash chain of an audit log: the first number at which it is broken, or its head.

Takes a log's own lines, or the lines of a log collector, among which it finds the records.

A chain cannot show that its own tail was cut off, nor that its last record was
changed: to detect that, compare the head with one noted elsewhere (`expect`).
`tree_check` checks what its checkpoints state about its records. Pure.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

from gpuwarden.audit.order_check import OrderCheck, OrderFacts, Remarks
from gpuwarden.audit.record import (
    FORMAT,
    GENESIS,
    MAX_RECORD_BYTES,
    LogRecord,
    RecordError,
    decode_record,
    known_kind,
)
from gpuwarden.audit.tree_check import NOTHING_WANTED, TreeCheck, TreeFacts, TreeFault, Wanted
from gpuwarden.evidence.canonical import CanonicalError, canonical_json, sha256_hex

Accepted = Callable[[LogRecord, bytes], None]
"""Receives a record that fits, and its line without LF."""


@dataclass(frozen=True, slots=True)
class Head:
    """A place in a log: number and digest of a record. Number 0 is the place before the first."""

    seq: int
    digest: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `SEQ:DIGEST`; raises ValueError saying what was expected."""
        match = re.fullmatch(r"(0|[1-9][0-9]{0,15}):([0-9a-f]{64})", text)
        if match is None:
            raise ValueError("expected SEQ:DIGEST, a number and 64 lower-case hex digits")
        return cls(int(match[1]), match[2])

    def __str__(self) -> str:
        return f"{self.seq}:{self.digest}"


BEFORE_FIRST = Head(0, GENESIS)


@dataclass(frozen=True, slots=True)
class Verified:
    """The records hang together; there is at least one. What followed the head is not known."""

    records: int
    first_seq: int
    """1, or more where older files have been deleted."""
    head: Head
    origin: str
    torn_bytes: int = 0
    """Length of an incomplete last line, as a crash leaves it; it is not counted as a record."""
    tree: TreeFacts = field(default_factory=TreeFacts, compare=False)
    order: OrderFacts = field(default_factory=OrderFacts)
    unknown: Remarks = field(default_factory=Remarks)
    """Records of kinds that only another version knows. They count as all others do."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The first fault: the number that is missing, wrong or there twice."""

    seq: int
    line: int
    """Line of the input, from 1."""
    what: str
    intact: Head
    """Head of the verified records before the fault."""


@dataclass(frozen=True, slots=True)
class _Place:
    head: Head
    line: int


class ChainVerifier:
    """Takes the lines of one log in order; `fault` is set by the first that does not fit.

    A wrong link accuses two records. The line after it shows which: if it carries the
    digest of the linking record, that one is as written and its predecessor was changed.
    """

    def __init__(self, expect: Head | None = None) -> None:
        self.fault: Broken | None = None
        self.accepted: Accepted = lambda _record, _line: None
        """Hears of each record that fits, in order."""
        self._expect = expect
        self._before = BEFORE_FIRST
        self._head = BEFORE_FIRST
        self._line = 0
        self._suspect: _Place | None = None
        self._records = 0
        self._first_seq = 0
        self._origin = ""
        self._torn_bytes = 0

    @property
    def head(self) -> Head:
        """Last record that fits."""
        return self._head

    @property
    def records(self) -> int:
        """How many records fit so far."""
        return self._records

    @property
    def origin(self) -> str:
        """Origin of the records so far; empty without any."""
        return self._origin

    def feed(self, line: bytes, number: int = 0) -> None:
        """Take one line with its LF; does nothing after a fault.

        `number` is its place in the input, so that a fault can name it.
        """
        if self.fault is not None:
            return
        if self._torn_bytes:
            self._break(self._due, number - 1, "line has no end, but others follow")
        elif not line.endswith(b"\n"):
            self._torn_bytes = len(line)
        else:
            self._feed_whole(line[:-1], number)

    def finish(self) -> Verified | Broken:
        """The result, after the last line."""
        if self.fault is None and self._suspect is not None:
            self._accuse("changed, or the link to it was")
        if self.fault is None:
            self._compare_with_expected()
        if self.fault is None and self._records == 0:
            self._break(1, min(self._torn_bytes, 1), self._nothing())
        return self.fault or Verified(
            self._records, self._first_seq, self.head, self._origin, self._torn_bytes
        )

    def _nothing(self) -> str:
        """What there is instead of records: verified is only what is there."""
        if not self._torn_bytes:
            return "holds no record"
        return f"holds no record, but {self._torn_bytes} bytes without a line end"

    @property
    def _due(self) -> int:
        return self.head.seq + 1

    def _feed_whole(self, line: bytes, number: int) -> None:
        try:
            record = decode_record(line)
        except RecordError as error:
            if self._suspect is None:
                self._break(self._due, number, f"not a record: {error}")
            else:
                self._accuse("changed, or the link to it was")
            return
        if self._suspect is not None:
            self._judge_suspect(self._suspect, record)
            return
        place = _Place(Head(record.seq, sha256_hex(line)), number)
        known = self._records
        if known == 0:
            self._begin(record, place)
        else:
            self._continue(record, place)
        if self._records > known:
            self.accepted(record, line)

    def _begin(self, record: LogRecord, place: _Place) -> None:
        self._first_seq, self._origin = record.seq, record.origin
        if (record.seq == 1) is not (record.prev == GENESIS):
            self._break(1, place.line, f"record {record.seq} cannot be first with this link")
            return
        self._head = Head(record.seq - 1, record.prev)
        self._accept(place)

    def _continue(self, record: LogRecord, place: _Place) -> None:
        if record.seq != self._due:
            self._break(self._due, place.line, f"expected record {self._due}, found {record.seq}")
        elif record.prev != self.head.digest:
            self._suspect = place
        elif record.origin != self._origin:
            self._break(record.seq, place.line, "origin differs from the records before")
        else:
            self._accept(place)

    def _accept(self, place: _Place) -> None:
        if self._expect and place.head.seq == self._expect.seq and place.head != self._expect:
            self._break(place.head.seq, place.line, "digest differs from the expected head")
            return
        self._before, self._head, self._line = self._head, place.head, place.line
        self._records += 1

    def _judge_suspect(self, suspect: _Place, following: LogRecord) -> None:
        if following.prev == suspect.head.digest:
            self._accuse("changed after it was written")
        else:
            self._break(suspect.head.seq, suspect.line, "changed after it was written")

    def _accuse(self, what: str) -> None:
        """Blame the last record that seemed to fit."""
        accused, self._head = self._head, self._before
        self._break(accused.seq, self._line, what)

    def _break(self, seq: int, line: int, what: str) -> None:
        self.fault = Broken(seq, line, what, self.head)

    def _compare_with_expected(self) -> None:
        if self._expect is None or self._first_seq <= self._expect.seq <= self.head.seq:
            return
        if self._expect.seq > self.head.seq:
            what = f"log ends at {self.head.seq}, but record {self._expect.seq} was expected"
            self._break(self._due, self._line, what)
        elif self._expect != BEFORE_FIRST:
            what = f"log starts at {self._first_seq}, after the expected head"
            self._break(self._expect.seq, 0, what)


def verify_numbered(
    lines: Iterable[tuple[int, bytes]],
    *,
    expect: Head | None = None,
    wanted: Wanted = NOTHING_WANTED,
) -> Verified | Broken:
    """Verify lines, each with its LF and its place in the input, as one log."""
    verifier, check, order = ChainVerifier(expect), TreeCheck(wanted), OrderCheck()
    unknown = Remarks()

    def accepted(record: LogRecord, line: bytes) -> None:
        nonlocal unknown
        check.take(record, line)
        order.take(record)
        if known_kind(record) is None:
            unknown = unknown.and_(record.seq, f"{record.kind} is a kind of another version")

    verifier.accepted = accepted
    last = 0
    for number, line in lines:
        before, last = verifier.head, number
        verifier.feed(line, number)
        if verifier.fault is not None:
            break
        if check.fault is not None:
            return Broken(check.fault.seq, number, check.fault.what, before)
    result, facts = verifier.finish(), check.finish()
    if isinstance(result, Broken):
        return result
    if isinstance(facts, TreeFault):
        return Broken(facts.seq, last, facts.what, result.head)
    return replace(result, tree=facts, order=order.facts, unknown=unknown)


def verify_lines(
    lines: Iterable[bytes], *, expect: Head | None = None, wanted: Wanted = NOTHING_WANTED
) -> Verified | Broken:
    """Verify lines (each with its LF, as files yield them) as one log."""
    return verify_numbered(enumerate(lines, start=1), expect=expect, wanted=wanted)


# --- records among the lines of a log collector

_MARK = FORMAT.encode()
_WRAPPERS = ("log", "message")
"""Fields in which container runtimes and collectors keep the original line."""
_MAX_LINE = 8 * MAX_RECORD_BYTES


def records_among(lines: Iterable[bytes]) -> Iterator[tuple[str, int, int, bytes]]:
    """Yield origin, seq, line number and canonical bytes of each record found.

    The controller also writes each durable record to standard output. A log collector may put a
    prefix before a line, wrap it in JSON, reorder its keys, and deliver it twice or late. A record
    is recognised by `v` and brought back into canonical form.
    """
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
    for wrapper in _WRAPPERS:
        inner = outer.get(wrapper)
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
