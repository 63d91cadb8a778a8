"""Reservations made at a pod's creation, as whoever reserves for the next pod finds them. Pure.

An API server that is refused by a later admission step asks again for what looks like another
pod. So an owner has one proposal at a time whose pod nobody has seen: the next pod of that
owner gets that one, or waits.
"""

from collections.abc import Iterator

from controller.ledger.record import Holder, PodRef
from controller.ledger.reservation_id import nonce_of
from controller.ledger.states import HolderState, Origin
from controller.ledger.store import LedgerSnapshot


def held_early(snapshot: LedgerSnapshot, reservation: str, pod_uid: str | None) -> Holder | None:
    """The part of a whole reservation that is an attempt, or confirmed, for just this pod."""
    parts = tuple(
        holder
        for entry in snapshot.holding(reservation)
        if (holder := entry.record.holder(reservation)) is not None
    )
    if not parts or len(parts) != len(parts[0].gpus):
        return None
    live = {HolderState.PROPOSED, HolderState.CONFIRMED}
    fits = all(x.pod.uid == pod_uid and x.state in live for x in parts)
    return parts[0] if fits else None


def answered_before(snapshot: LedgerSnapshot, namespace: str, nonce: str) -> Holder | None:
    """What was reserved for the very same request."""
    found = (x for x in _attempts(snapshot, namespace) if nonce_of(x.reservation) == nonce)
    return min(found, key=lambda x: x.reservation, default=None)


def open_proposals(snapshot: LedgerSnapshot, pod: PodRef) -> tuple[Holder, ...]:
    """The attempts made at their creation for pods of the same owner, the unborn ones first.

    Without an owner: for pods of the same name, where that is known.
    """
    found = {x.reservation: x for x in _attempts(snapshot, pod.namespace) if _is_akin(x.pod, pod)}
    return tuple(sorted(found.values(), key=lambda x: (x.pod.uid is not None, x.reservation)))


def _is_akin(one: PodRef, other: PodRef) -> bool:
    if one.owner is not None or other.owner is not None:
        return one.owner == other.owner
    return one.name is not None and one.name == other.name


def _attempts(snapshot: LedgerSnapshot, namespace: str) -> Iterator[Holder]:
    for entry in snapshot.entries.values():
        for holder in entry.record.holders:
            is_early = holder.origin is Origin.ADMISSION
            is_open = holder.state is HolderState.PROPOSED
            if is_early and is_open and holder.pod.namespace == namespace:
                yield holder
