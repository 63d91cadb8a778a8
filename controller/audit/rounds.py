"""Counts what repeats, so that the volume of the log stays bounded. Pure.

An unchanged accepted round of a node, and a refusal that repeats the one before, become
one `evidence.round` record per node, decision, codes and hour. An acceptance that goes into
the log ends the counting of that node's refusals: the next one is news again.
"""

from dataclasses import dataclass, replace

from controller.audit.record import Record
from gpuwarden.audit.record import RecordKind, format_timestamp

HOUR_NS = 3_600_000_000_000
MAX_OPEN = 100_000
"""Counters that may be open at once; beyond it events are counted together, by first code."""
OVERFLOW_SUBJECT = "*"

_Key = tuple[str, str, tuple[str, ...]]


@dataclass(slots=True)
class _Open:
    last: Record
    count: int
    since_ns: int
    until_ns: int


class Rounds:
    """Open counters, taken out when their hour is over."""

    def __init__(self, max_open: int = MAX_OPEN) -> None:
        self._max_open = max_open
        self._open: dict[_Key, _Open] = {}
        self._refused: dict[str, set[_Key]] = {}
        self._ended: list[_Open] = []
        self._oldest_ns: int | None = None

    def absorb(self, record: Record, wall_ns: int) -> bool:
        """Count the record and return True, or return False: it goes into the log itself.

        Every `evidence.round` is counted. A refusal is counted if the same one of the
        same subject went into the log within the hour.
        """
        match record.kind:
            case RecordKind.EVIDENCE_ROUND:
                self._count(record, wall_ns, 1)
                return True
            case RecordKind.EVIDENCE_REFUSED:
                return self._absorb_refusal(record, wall_ns)
            case RecordKind.EVIDENCE_ACCEPTED:
                for key in self._refused.pop(record.subject, set()):
                    self._ended.append(self._open.pop(key))
                return False
            case _:
                return False

    def due(self, wall_ns: int) -> list[Record]:
        """Take out the counters that have ended or that an hour has passed for, as records."""
        over: list[_Key] = []
        if self._oldest_ns is not None and not 0 <= wall_ns - self._oldest_ns < HOUR_NS:
            over = [
                key
                for key, counter in self._open.items()
                # A wall clock set back ends the counter too: its hour can no longer be told.
                if not 0 <= wall_ns - counter.since_ns < HOUR_NS
            ]
        return self._take(over)

    def flush(self) -> list[Record]:
        """Take out all counters, as records."""
        return self._take(list(self._open))

    def _absorb_refusal(self, record: Record, wall_ns: int) -> bool:
        key = _key(record)
        known = key in self._open
        if not known and len(self._open) >= self._max_open:
            self._count(record, wall_ns, 1)
            return True
        self._refused.setdefault(record.subject, set()).add(key)
        self._count(record, wall_ns, 1 if known else 0)
        return known

    def _count(self, record: Record, wall_ns: int, by: int) -> None:
        key = _key(record)
        if key not in self._open and len(self._open) >= self._max_open:
            record = replace(record, subject=OVERFLOW_SUBJECT, codes=record.codes[:1])
            key = _key(record)
        counter = self._open.get(key)
        if counter is None:
            self._open[key] = _Open(record, by, wall_ns, wall_ns)
            self._oldest_ns = wall_ns if self._oldest_ns is None else min(self._oldest_ns, wall_ns)
            return
        counter.last, counter.until_ns = record, wall_ns
        counter.count += by

    def _take(self, keys: list[_Key]) -> list[Record]:
        taken = [*self._ended, *(self._open.pop(key) for key in keys)]
        self._ended = []
        for key in keys:
            self._forget_refusal(key)
        if keys:
            self._oldest_ns = min((rest.since_ns for rest in self._open.values()), default=None)
        return [_summary(counter) for counter in taken if counter.count]

    def _forget_refusal(self, key: _Key) -> None:
        keys = self._refused.get(key[0])
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._refused[key[0]]


def _key(record: Record) -> _Key:
    return record.subject, record.decision, record.codes


def _summary(counter: _Open) -> Record:
    return replace(
        counter.last,
        kind=RecordKind.EVIDENCE_ROUND,
        refs={
            "count": counter.count,
            "since": format_timestamp(counter.since_ns),
            "until": format_timestamp(counter.until_ns),
            "last": counter.last.refs,
        },
    )
