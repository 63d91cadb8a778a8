"""Checks the order that a log's records claim: who wrote after its end, where its clock went back.

Neither breaks the chain: whoever can write to the folder can append a record that fits, and a wall
clock may be set. Both are worth a look. Pure.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gpuwarden.audit.record import LogRecord, RecordKind

BACKWARDS_S: Final = 5.0
"""Records come from several threads; up to here their order may differ from that of their times."""
MAX_KEPT: Final = 8
_WAITED_FOR: Final = frozenset({RecordKind.LOG_START, RecordKind.LOG_GAP, RecordKind.LOG_KEY})
"""Written when a log can be written again: records that waited for it are older and follow."""
_BEGINS: Final = frozenset({RecordKind.LOG_START, RecordKind.LOG_KEY})


@dataclass(frozen=True, slots=True)
class Remark:
    """One record, and what about it."""

    seq: int
    what: str


@dataclass(frozen=True, slots=True)
class Remarks:
    """How many, and the first of them."""

    count: int = 0
    first: tuple[Remark, ...] = ()

    def and_(self, seq: int, what: str) -> "Remarks":
        """These and one more."""
        kept = (*self.first, Remark(seq, what))[:MAX_KEPT]
        return Remarks(self.count + 1, kept)

    def __str__(self) -> str:
        text = "; ".join(f"record {one.seq}: {one.what}" for one in self.first)
        more = self.count - len(self.first)
        return f"{text}; and {more} more" if more else text


@dataclass(frozen=True, slots=True)
class OrderFacts:
    """What was found."""

    appended: Remarks = Remarks()
    """Records behind a `log.stop` that no `log.start` precedes: the controller does not do that."""
    unsigned: Remarks = Remarks()
    """`log.start` that found records which no checkpoint covered."""
    backwards: Remarks = Remarks()
    """Records whose time lies before that of earlier ones."""


class OrderCheck:
    """Takes the records of one log in order."""

    def __init__(self) -> None:
        self.facts = OrderFacts()
        self._closed = False
        self._latest: LogRecord | None = None

    def take(self, record: LogRecord) -> None:
        """Take the next record."""
        appended, unsigned = self.facts.appended, self.facts.unsigned
        if self._closed and record.kind not in _BEGINS:
            appended = appended.and_(record.seq, f"{record.kind} behind the end of a closed log")
        if record.kind == RecordKind.LOG_STOP:
            self._closed = True
        elif record.kind == RecordKind.LOG_START:
            self._closed = False
            if "unsigned" in record.refs:
                what = "the log was opened with records that no checkpoint covered"
                unsigned = unsigned.and_(record.seq, what)
        self.facts = OrderFacts(appended, unsigned, self._backwards(record))

    def _backwards(self, record: LogRecord) -> Remarks:
        found = self.facts.backwards
        if self._latest is not None and record.ts < self._latest.ts:
            seconds = _seconds_between(record.ts, self._latest.ts)
            if seconds is None or seconds <= BACKWARDS_S:
                return found
            earlier = f"{record.ts} is {seconds:.0f} s before record {self._latest.seq}"
            found = found.and_(record.seq, earlier)
        elif record.kind in _WAITED_FOR:
            return found
        self._latest = record
        return found


def _seconds_between(earlier: str, later: str) -> float | None:
    """None where one is no time, which has the form of one all the same."""
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
    except ValueError:
        return None
