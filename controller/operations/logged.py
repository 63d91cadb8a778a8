"""What one audit log proves of the time before: quarantine entries and reservations in force.

Pure: records go in, what they add up to comes out. Must not decide what counts: the reconcilers
compare it with the store. Restore after a lost store goes by these steps:

1. `log_replay.LogReplay` reads the records of this replica's log; a log that cannot be read is
   tried again, and managed pods get CONTROLLER_NOT_READY meanwhile.
2. `quarantine_entries`: entries that no operator has ended. Those that the store lacks are written
   again by `quarantine_reconciler` (NODE_DENIED, or the entry's code).
3. `open_grants`: reservations without an end. Those that the ledger lacks are restored by
   `controller.binding.reconciler`; until then their GPUs are given to nobody
   (CONTROLLER_NOT_READY).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from controller.fleet.enrollment import QuarantineEntry
from controller.fleet.quarantine import QuarantineFate
from controller.ledger.record import PodRef, RecordInvalidError, in_claiming_order, key_of
from controller.ledger.restore import Grants, LoggedGrant, restored_as_releasing
from controller.record import Record
from gpuwarden.audit.record import (
    RESERVATION_BEGINS,
    RESERVATION_ENDS,
    LogRecord,
    RecordKind,
    known_kind,
    names_of,
)

# --- quarantine entries
# Every replica records what it sees, so each log says by itself which nodes are out.

QUARANTINE_KINDS: Final = names_of(RecordKind.NODE_QUARANTINE)
_ACTOR: Final = "controller"
_SUBJECT: Final = "node/"
_TEXT_CHARS: Final = 1000
_NAME_CHARS: Final = 512


def quarantine_record(node: str, denial: QuarantineEntry, fate: QuarantineFate) -> Record:
    """The `node.quarantine` record; what the node had shown stays in the store alone."""
    return Record(
        RecordKind.NODE_QUARANTINE,
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


def quarantine_entries(records: Iterable[LogRecord]) -> Mapping[str, QuarantineEntry]:
    """By node, what stands after `records` of one log in their order.

    Records of other kinds are skipped, and so is one that has not the form of ours.
    """
    standing: dict[str, QuarantineEntry] = {}
    for record in records:
        denial, node = _denial(record), record.subject.removeprefix(_SUBJECT)
        if denial is None:
            continue
        before = standing.get(node)
        if record.decision != QuarantineFate.LIFTED:
            standing[node] = denial
        elif before is not None and before.wall_ns <= denial.wall_ns:
            del standing[node]
    return standing


def _denial(record: LogRecord) -> QuarantineEntry | None:
    is_quarantine = known_kind(record) is RecordKind.NODE_QUARANTINE
    if not is_quarantine or not record.subject.startswith(_SUBJECT):
        return None
    time = record.refs.get("time")
    if not isinstance(time, str) or not time.isascii() or not time.isdecimal():
        return None
    if len(record.codes) != 1:
        return None
    by, reason = _text(record, "by"), _text(record, "reason")
    return QuarantineEntry(record.codes[0], reason, by, int(time))


def _text(record: LogRecord, key: str) -> str:
    """What was too long for a record is a digest there; the entry counts all the same."""
    found = record.refs.get(key)
    return found if isinstance(found, str) else f"too long for {record.origin}'s audit log"


# --- reservations
# A log holds what its own replica did and saw: the one that made a reservation records its
# beginning, and its end also where another replica brought it about. So what has no end in the
# log of its maker was in force, or came to its end while that replica was down.

_POD: Final = re.compile("pod/([^/]+)/([^/]+)")
RESERVATION: Final = "reservation."
"""What the kinds of records of reservations begin with, in all versions."""
_ANY_CALL: Final = "0" * 8
"""To see whether a record could be made."""


def open_grants(records: Iterable[LogRecord]) -> Grants:
    """What is in force after `records` of one log in their order.

    Records that name no pod by UID, or no GPUs, hold nothing: of a pod that was never born
    nothing runs. A reservation's record of a kind that only another version knows may be its
    beginning, so it holds the GPUs: the node shows whether they are free.
    """
    found: dict[tuple[str, str], LoggedGrant] = {}
    for record in records:
        kind = known_kind(record)
        begins, ends = kind in RESERVATION_BEGINS, kind in RESERVATION_ENDS
        begins |= kind is None and record.kind.startswith(RESERVATION)
        for grant in _grants(record) if begins or ends else ():
            key = (key_of(grant.gpu), grant.reservation)
            if ends:
                found.pop(key, None)
            else:
                first = found.setdefault(key, grant)
                found[key] = replace(first, bound=first.bound or grant.bound)
    return found


def _grants(record: LogRecord) -> tuple[LoggedGrant, ...]:
    refs = record.refs
    uid, node, reservation = (refs.get(x) for x in ("uid", "node", "reservation"))
    gpus, found = refs.get("gpus"), _POD.fullmatch(record.subject)
    if not all(isinstance(x, str) and x for x in (uid, node, reservation)):
        return ()
    if found is None or not isinstance(gpus, list) or not all(isinstance(x, str) for x in gpus):
        return ()
    ordered, pod = in_claiming_order(tuple(gpus)), PodRef(found[1], found[2], uid)
    bound = record.kind != RecordKind.RESERVATION_RESERVED
    grants = [
        LoggedGrant(x, str(node), str(reservation), pod, ordered, bound=bound) for x in ordered
    ]
    try:
        for grant in grants:
            restored_as_releasing(None, grant, _ANY_CALL)
    except RecordInvalidError:
        return ()
    return tuple(grants)
