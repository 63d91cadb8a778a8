"""Reservations in the audit log: which of them had not ended when the log did. Pure.

A log tells what its own replica did and saw: who made a reservation has its beginning, and
notes its end also where another replica saw to that. So what has no end in the log of
whoever made it was in force, or came to its end while that replica was down.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from controller.ledger.record import PodRef, RecordInvalidError, in_claiming_order, key_of
from controller.ledger.recovery import Grants, LoggedGrant, held_again
from gpuwarden.audit.record import LogRecord, RecordKind

_BEGINS: Final = frozenset(
    {
        RecordKind.RESERVATION_RESERVED,
        RecordKind.RESERVATION_CONFIRMED,
        RecordKind.RESERVATION_RELEASING,
        RecordKind.RESERVATION_ADOPTED,
        RecordKind.RESERVATION_SETTLED,
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
_POD: Final = re.compile("pod/([^/]+)/([^/]+)")
_ANY_CALL: Final = "0" * 8
"""To see whether a record could be made."""


def open_grants(records: Iterable[LogRecord]) -> Grants:
    """What is in force after `records` of one log in their order.

    Records that name no pod by UID, or no GPUs, hold nothing: of a pod that was never born
    nothing runs.
    """
    found: dict[tuple[str, str], LoggedGrant] = {}
    for record in records:
        begins, ends = record.kind in _BEGINS, record.kind in _ENDS
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
            held_again(None, grant, _ANY_CALL)
    except RecordInvalidError:
        return ()
    return tuple(grants)
