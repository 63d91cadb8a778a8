"""What the comparison of nodes with the ledger leaves in the audit log. Pure."""

from typing import Final

from controller.audit.record import Json, Record
from controller.binding.use_faults import UseFault, UseFaultKind
from controller.ledger.record import PodRef
from controller.ledger.settlement import GivenGpu
from gpuwarden.audit.record import RecordKind

_SHOWN_CHARS: Final = 253
_CONTROLLER: Final = "controller"


def settled_record(given: GivenGpu, reservation: str) -> Record:
    """The `reservation.settled` record of one GPU."""
    return Record(
        RecordKind.RESERVATION_SETTLED,
        actor=_CONTROLLER,
        subject=_subject(given.pod),
        decision="settled",
        refs={
            "uid": given.pod.uid,
            "node": _cut(given.node),
            "reservation": reservation,
            "gpus": [given.gpu],
        },
    )


def fault_record(fault: UseFault) -> Record:
    """The record of a disagreement that began; `decision` is its kind."""
    pod = fault.pod
    subject = f"node/{_cut(fault.node)}" if pod is None else _subject(pod)
    refs: dict[str, Json] = {
        "uid": fault.owner if pod is None else pod.uid,
        "node": _cut(fault.node),
        "gpus": [fault.gpu] if fault.gpu else [],
    }
    if fault.kind is UseFaultKind.OFF_BOOK:
        return Record(
            RecordKind.RESERVATION_OFF_BOOK, _CONTROLLER, subject, fault.kind.value, refs=refs
        )
    return Record(
        RecordKind.RESERVATION_MISMATCH, _CONTROLLER, subject, fault.kind.value, refs=refs
    )


def eviction_record(pod: PodRef, error: str) -> Record:
    """The `reservation.evicted` record; `error` is empty, or says why not."""
    return Record(
        RecordKind.RESERVATION_EVICTED,
        actor=_CONTROLLER,
        subject=_subject(pod),
        decision="failed" if error else "evicted",
        refs={"uid": pod.uid, "cause": _cut(error)},
    )


def _subject(pod: PodRef) -> str:
    return f"pod/{_cut(pod.namespace)}/{_cut(pod.name or '-')}"


def _cut(text: str) -> str:
    return text[:_SHOWN_CHARS]
