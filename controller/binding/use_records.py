"""Audit records of GPU use (allocations, mismatches, evictions), and what they say after a restart.

Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from controller.binding.idle import USE_KINDS, Remembered, ns_in, remembered
from controller.binding.use import UseFault, UseFaultKind
from controller.ledger.record import PodRef
from controller.ledger.release import GivenGpu
from controller.record import Json, Record
from gpuwarden.audit.record import LogRecord, RecordKind

LOGGED_KINDS: Final = (
    *USE_KINDS,
    RecordKind.USE_ENDED.value,
    RecordKind.RESERVATION_MISMATCH.value,
    RecordKind.RESERVATION_UNRESERVED.value,
)
"""What `RememberedUse` is made of."""
_FAULT_KINDS: Final = frozenset(UseFaultKind)
_POD_PARTS: Final = 3
_SHOWN_CHARS: Final = 253
_SHOWN_VICTIMS: Final = 4
_CONTROLLER: Final = "controller"


def allocation_record(given: GivenGpu, reservation: str, evidence: str) -> Record:
    """The `reservation.allocated` record of one GPU; `evidence`: digest of what shows it."""
    return Record(
        RecordKind.RESERVATION_ALLOCATED,
        actor=_CONTROLLER,
        subject=_subject(given.pod),
        decision="recorded",
        refs={
            "uid": given.pod.uid,
            "node": _cut(given.node),
            "reservation": reservation,
            "gpus": [given.gpu],
            "evidence": evidence,
        },
    )


def fault_record(fault: UseFault, *, ended: bool = False) -> Record:
    """The record of a disagreement that began or ended; `decision` is its kind."""
    pod = fault.pod
    subject = f"node/{_cut(fault.node)}" if pod is None else _subject(pod)
    refs: dict[str, Json] = {
        "uid": fault.owner if pod is None else pod.uid,
        "node": _cut(fault.node),
        "gpus": [fault.gpu] if fault.gpu else [],
        "sinceMs": str(fault.since_wall_ns // 1_000_000),
    }
    if ended:
        return Record(RecordKind.USE_ENDED, _CONTROLLER, subject, fault.kind.value, refs=refs)
    if fault.victims:
        refs["heldBy"] = [_subject(x) for x in fault.victims[:_SHOWN_VICTIMS]]
    if fault.kind is UseFaultKind.UNRESERVED_USE:
        return Record(
            RecordKind.RESERVATION_UNRESERVED, _CONTROLLER, subject, fault.kind.value, refs=refs
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


# --- after a restart


@dataclass(frozen=True, slots=True)
class RememberedUse:
    """What the audit log has of use from before this start."""

    idle: Remembered = field(default_factory=Remembered)
    faults: tuple[UseFault, ...] = ()
    """Those whose end the log does not have."""


def remembered_use(records: Iterable[LogRecord]) -> RememberedUse:
    """What the records of one log, of `LOGGED_KINDS`, add up to."""
    read = list(records)
    faults: dict[tuple[str, ...], UseFault] = {}
    for record in read:
        fault = _logged_fault(record)
        if fault is None:
            continue
        key = fault.kind, fault.node, fault.gpu, record.subject, str(record.refs.get("uid"))
        if record.kind == RecordKind.USE_ENDED:
            faults.pop(key, None)
        else:
            faults[key] = fault
    return RememberedUse(remembered(read), tuple(faults.values()))


def _logged_fault(record: LogRecord) -> UseFault | None:
    """None where the record is no fault's, or has not the form of ours."""
    since_ns = ns_in(record, "sinceMs")
    node, gpus, uid = (record.refs.get(x) for x in ("node", "gpus", "uid"))
    if record.decision not in _FAULT_KINDS or not since_ns or not isinstance(node, str):
        return None
    gpu = gpus[0] if isinstance(gpus, list) and gpus else ""
    parts = record.subject.split("/")
    known = uid if isinstance(uid, str) else None
    pod, owner = None, known or ""
    if parts[0] == "pod" and len(parts) == _POD_PARTS:
        pod, owner = PodRef(parts[1], None if parts[2] == "-" else parts[2], known), ""
    return UseFault(
        UseFaultKind(record.decision), node, str(gpu), pod, owner, since_wall_ns=since_ns
    )
