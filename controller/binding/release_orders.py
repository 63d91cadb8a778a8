"""What an operator orders about one holder of one GPU, and what the audit log says of it. Pure."""

from dataclasses import dataclass
from typing import Final

from controller.audit.record import Record
from controller.binding.records import ReservationChange
from controller.ledger.record import Holder
from controller.ledger.states import HolderState
from controller.ledger.store import Entry
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import Refusal

_SHOWN_CHARS: Final = 300


@dataclass(frozen=True, slots=True)
class ReleaseOrder:
    """End one reservation's part in one GPU."""

    gpu: str
    reservation: str
    reason: str
    actor: str
    """SPIFFE ID, or `local uid N`."""


@dataclass(frozen=True, slots=True)
class ReleaseDone:
    """What came of it."""

    node: str = ""
    namespace: str = ""
    pod: str = ""
    already: bool = False
    """The GPU was free of that reservation, or never its: nothing was done."""


def order_record(order: ReleaseOrder, entry: Entry, holder: Holder, evidence: str | None) -> Record:
    """The `reservation.operator` record of what is about to be done."""
    return Record(
        RecordKind.RESERVATION_OPERATOR,
        actor=order.actor,
        subject=f"pod/{holder.pod.namespace}/{holder.pod.name or '-'}",
        decision="released",
        refs={
            "reason": order.reason,
            "uid": holder.pod.uid,
            "node": entry.record.node,
            "reservation": order.reservation,
            "gpus": [entry.record.gpu],
            "evidence": evidence,
        },
    )


def refused_record(order: ReleaseOrder, refusal: Refusal) -> Record:
    """The `reservation.operator` record of what was not done."""
    return Record(
        RecordKind.RESERVATION_OPERATOR,
        actor=order.actor,
        subject=f"reservation/{order.reservation}",
        decision="refused",
        codes=(refusal.code.value,),
        refs={
            "reason": order.reason,
            "reservation": order.reservation,
            "gpus": [order.gpu],
            "detail": refusal.detail[:_SHOWN_CHARS],
        },
    )


def change_of(order: ReleaseOrder, entry: Entry, holder: Holder) -> ReservationChange:
    """What is told of it once it is written, as of any other release."""
    return ReservationChange(
        holder.pod,
        order.reservation,
        entry.record.node,
        (entry.record.gpu,),
        HolderState.RELEASED,
        f"an operator said so: {order.reason}",
        order.actor,
    )
