"""Denials in the audit log: the record of what the store said, and what stands by a log. Pure.

Every replica notes what it sees, so each log tells by itself which nodes are out. Must not
decide what counts: the follower of denials compares with the store.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from controller.audit.record import Record
from controller.fleet.denials import DenialFate
from controller.fleet.enrollment import Denial
from gpuwarden.audit.record import LogRecord, RecordKind

_ACTOR: Final = "controller"
_SUBJECT: Final = "node/"
_TEXT_CHARS: Final = 1000
_NAME_CHARS: Final = 512


def denial_record(node: str, denial: Denial, fate: DenialFate) -> Record:
    """The `node.denial` record; what the node had shown stays in the store alone."""
    return Record(
        RecordKind.NODE_DENIAL,
        actor=_ACTOR,
        subject=f"{_SUBJECT}{node}",
        decision=fate.value,
        codes=(denial.code,),
        refs={
            "by": denial.actor[:_NAME_CHARS],
            "reason": denial.reason[:_TEXT_CHARS],
            "time": str(denial.wall_ns),
        },
    )


def standing_denials(records: Iterable[LogRecord]) -> Mapping[str, Denial]:
    """By node, what stands after `records` of one log in their order.

    Records of other kinds are skipped, and so is one that has not the form of ours.
    """
    standing: dict[str, Denial] = {}
    for record in records:
        denial, node = _denial(record), record.subject.removeprefix(_SUBJECT)
        if denial is None:
            continue
        before = standing.get(node)
        if record.decision != DenialFate.LIFTED:
            standing[node] = denial
        elif before is not None and before.wall_ns <= denial.wall_ns:
            del standing[node]
    return standing


def _denial(record: LogRecord) -> Denial | None:
    if record.kind != RecordKind.NODE_DENIAL or not record.subject.startswith(_SUBJECT):
        return None
    time = record.refs.get("time")
    if not isinstance(time, str) or not time.isascii() or not time.isdecimal():
        return None
    if len(record.codes) != 1:
        return None
    by, reason = _text(record, "by"), _text(record, "reason")
    return Denial(record.codes[0], reason, by, int(time))


def _text(record: LogRecord, key: str) -> str:
    """What was too long for a record is a digest there; the denial counts all the same."""
    found = record.refs.get(key)
    return found if isinstance(found, str) else f"too long for {record.origin}'s audit log"
