"""Where a GPU was and who had it, from the records of an audit log. Pure.

Says what this log says: what is older than its files, or was decided by another replica, is in
another log.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from gpuwarden.audit.record import LogRecord, RecordKind

MOST: Final = 200
"""Places, and holdings, of one history: the last ones."""
_BEGINS: Final = frozenset(
    {
        RecordKind.RESERVATION_RESERVED,
        RecordKind.RESERVATION_RESTORED,
        RecordKind.RESERVATION_ALLOCATED,
    }
)
_ENDS: Final = frozenset(
    {
        RecordKind.RESERVATION_RELEASED,
        RecordKind.RESERVATION_EXPIRED,
        RecordKind.RESERVATION_REVOKED,
        RecordKind.RESERVATION_ENDED,
    }
)
KINDS: Final = (RecordKind.EVIDENCE_ACCEPTED.value, "reservation.")
"""Beginnings of the kinds that say something about a GPU."""


class Place(msgspec.Struct, rename="kebab"):
    """A node on which accepted evidence has shown the GPU."""

    node: str
    since: str
    until: str
    """When evidence of the node no longer showed it, or another node's did; else empty."""
    evidence_digest: str
    """Of the first such evidence."""
    record: int
    """Its number in the log."""


class Holding(msgspec.Struct, rename="kebab"):
    """A pod that had the GPU."""

    namespace: str
    pod: str
    uid: str
    node: str
    reservation: str
    since: str
    until: str
    """Empty while it has it."""
    ended_as: str
    """released, expired, revoked or ended; else empty."""
    record: int
    """Number of the record that begins it."""


class GpuHistory(msgspec.Struct, frozen=True, rename="kebab"):
    """Both, newest first."""

    places: list[Place]
    holdings: list[Holding]
    records_since: str
    """Of the oldest record that was read; empty where there is none."""


def history(records: Iterable[LogRecord], uuids: frozenset[str]) -> GpuHistory:
    """Of a GPU and its MIG devices, from records in their order."""
    places: list[Place] = []
    holdings: list[Holding] = []
    open_: dict[str, Holding] = {}
    since = ""
    for record in records:
        since = since or record.ts
        if record.kind == RecordKind.EVIDENCE_ACCEPTED:
            _place(places, record, is_shown=_names(record, uuids))
        elif _names(record, uuids):
            _hold(holdings, open_, record)
    return GpuHistory(places[: -MOST - 1 : -1], holdings[: -MOST - 1 : -1], since)


def _place(places: list[Place], record: LogRecord, *, is_shown: bool) -> None:
    node = record.subject.removeprefix("node/")
    last = places[-1] if places else None
    if last is not None and not last.until and (last.node == node) is not is_shown:
        last.until = record.ts
    if is_shown and (last is None or last.until):
        places.append(Place(node, record.ts, "", _text(record, "evidence"), record.seq))


def _hold(holdings: list[Holding], open_: dict[str, Holding], record: LogRecord) -> None:
    reservation = _text(record, "reservation")
    held = open_.get(reservation)
    if record.kind in _BEGINS and held is None:
        namespace, _, pod = record.subject.removeprefix("pod/").partition("/")
        node, uid = _text(record, "node"), _text(record, "uid")
        held = Holding(namespace, pod, uid, node, reservation, record.ts, "", "", record.seq)
        open_[reservation] = held
        holdings.append(held)
    elif record.kind in _ENDS and held is not None:
        held.until, held.ended_as = record.ts, record.decision
        del open_[reservation]


def _names(record: LogRecord, uuids: frozenset[str]) -> bool:
    """Whether it names one of them; a list that was too long holds its first items only."""
    found = record.refs.get("gpus")
    if isinstance(found, dict):
        found = found.get("first")
    if isinstance(found, list):
        return any(isinstance(x, str) and x in uuids for x in found)
    return record.refs.get("gpu") in uuids


def _text(record: LogRecord, key: str) -> str:
    value = record.refs.get(key)
    return value if isinstance(value, str) else ""
