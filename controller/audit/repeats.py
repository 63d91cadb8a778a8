"""Counts records that repeat, so that the volume of the log stays bounded. Pure.

An unchanged accepted round of a node, and a refusal that repeats the one before, become
one `evidence.repeated` record per node, decision, codes and hour; so do states that a peer can
bring about as often as it likes, or one node could fill the log of all, and answers of the
extender that nothing is decided yet. An acceptance that
goes into the log, or a release, ends the counting for that node: the next one is logged again.

What the scheduler and others ask about one pod again and again is counted, too: equal answers of
`/filter`, and equal refusals of admission, of a Binding, of `POST /finalize`. That the pod may be
bound ends that counting.
"""

from dataclasses import dataclass, replace
from typing import Final

from controller.record import Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.moment import rfc3339

HOUR_NS = 3_600_000_000_000
MAX_OPEN = 100_000
"""Counters that may be open at once; beyond it events are counted together, by first code."""
OVERFLOW_SUBJECT = "*"

_GPU_UNHEALTHY: Final = "gpu-unhealthy"
_RELEASED: Final = "released"
_AT_WILL: Final = frozenset(
    {"revoked", "quarantined", "claim-repelled", "failure-notice", _GPU_UNHEALTHY}
)
"""Decisions of `node.state` that a peer can bring about again and again."""
_REFUSED: Final = "refused"
_ALLOWED: Final = "allowed"
_ABOUT_PODS: Final = {
    RecordKind.FILTER_DECISION: ("uid", "verb"),
    RecordKind.ADMISSION_DECISION: ("step", "owner"),
    RecordKind.BIND_DECISION: ("uid", "node"),
    RecordKind.API_FINALIZE: ("uid", "reservation", "gpu"),
}
"""Kinds about pods, and what else two of them must have in common to be equal."""

_Key = tuple[str, str, tuple[str, ...]]


@dataclass(slots=True)
class _Open:
    last: Record
    count: int
    since_ns: int
    until_ns: int


class RepeatCounter:
    """Open counters, taken out when their hour is over."""

    def __init__(self, max_open: int = MAX_OPEN) -> None:
        self._max_open = max_open
        self._open: dict[_Key, _Open] = {}
        self._repeating: dict[str, set[_Key]] = {}
        self._ended: list[_Open] = []
        self._oldest_ns: int | None = None

    def absorb(self, record: Record, wall_ns: int) -> bool:
        """Count the record and return True, or return False: it goes into the log itself.

        Every `evidence.repeated` is counted. A refusal, a state out of `_AT_WILL`, or an answer
        about a pod, is counted if the same one of the same subject went into the log within the
        hour.
        """
        match record.kind:
            case RecordKind.EVIDENCE_REPEATED:
                self._count(record, wall_ns, 1)
                return True
            case RecordKind.EVIDENCE_REFUSED:
                return self._absorb_repeat(record, wall_ns)
            case RecordKind.NODE_STATE if record.decision in _AT_WILL:
                return self._absorb_repeat(record, wall_ns)
            case RecordKind.EVIDENCE_ACCEPTED:
                self._end(record.subject)
            case RecordKind.NODE_STATE if record.decision == _RELEASED:
                self._end(record.subject)
            case RecordKind.FILTER_DECISION:
                return self._absorb_repeat(record, wall_ns)
            case RecordKind.BIND_DECISION if record.decision == _ALLOWED:
                self._end(record.subject)
            case kind if kind in _ABOUT_PODS and record.decision == _REFUSED:
                return self._absorb_repeat(record, wall_ns)
        return False

    def take_due(self, wall_ns: int) -> list[Record]:
        """Take out the counters that have ended or that an hour has passed for, as records."""
        over: list[_Key] = []
        if self._oldest_ns is not None and not 0 <= wall_ns - self._oldest_ns < HOUR_NS:
            over = [
                key
                for key, counter in self._open.items()
                # A wall clock set back ends the counter too: its hour is not known any more.
                if not 0 <= wall_ns - counter.since_ns < HOUR_NS
            ]
        return self._take(over)

    def take_all(self) -> list[Record]:
        """Take out all counters, as records."""
        return self._take(list(self._open))

    def _end(self, subject: str) -> None:
        for key in self._repeating.pop(subject, set()):
            self._ended.append(self._open.pop(key))

    def _absorb_repeat(self, record: Record, wall_ns: int) -> bool:
        key = _key(record)
        known = key in self._open
        if not known and len(self._open) >= self._max_open:
            self._count(record, wall_ns, 1)
            return True
        self._repeating.setdefault(record.subject, set()).add(key)
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
            self._forget_repeat(key)
        if keys:
            self._oldest_ns = min((rest.since_ns for rest in self._open.values()), default=None)
        return [_summary(counter) for counter in taken if counter.count]

    def _forget_repeat(self, key: _Key) -> None:
        keys = self._repeating.get(key[0])
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._repeating[key[0]]


def _key(record: Record) -> _Key:
    """A GPU that goes bad is one that the node is known to have, so there are few."""
    more: tuple[str, ...] = ()
    if record.decision == _GPU_UNHEALTHY:
        more = (str(record.refs.get("gpu")),)
    elif record.kind in _ABOUT_PODS:
        alike = () if record.subject == OVERFLOW_SUBJECT else _ABOUT_PODS[record.kind]
        more = (record.kind, *(str(record.refs.get(x)) for x in alike))
    return record.subject, record.decision, record.codes + more


def _summary(counter: _Open) -> Record:
    kind = counter.last.kind
    return replace(
        counter.last,
        kind=RecordKind.EVIDENCE_REPEATED if kind is RecordKind.EVIDENCE_REFUSED else kind,
        refs={
            "count": counter.count,
            "since": rfc3339(counter.since_ns),
            "until": rfc3339(counter.until_ns),
            "last": counter.last.refs,
        },
    )
