"""Tells log, metrics, audit log and Events what the comparison of nodes with the ledger found.

Must not decide anything, and must return at once: records are noted, never waited for.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from controller.audit.record import Record
from controller.binding.fault_watch import FaultChanges
from controller.binding.use_faults import UseFault, UseFaultKind
from controller.binding.use_records import eviction_record, fault_record, settled_record
from controller.ledger.record import PodRef
from controller.ledger.settlement import GivenGpu
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

_SETTLED: Final = "Settled"


class RecordLog(Protocol):
    """The part of the audit log that is needed here."""

    def note(self, record: Record) -> None:
        """Append without waiting."""


class UseJournal:
    """Implements UseSink."""

    def __init__(
        self,
        instruments: Instruments,
        audit: RecordLog,
        tell: Callable[[Iterable[UseFault]], None],
        logged: Callable[[str, str], None] = lambda _gpu, _reservation: None,
    ) -> None:
        """`tell` says in Events what began; `logged` is told what the audit log has begun."""
        self._logged = logged
        self._log = logger("use")
        self._audit = audit
        self._tell = tell
        self._changes = instruments.counter(names.RESERVATION_CHANGES)
        self._writes = instruments.counter(names.RESERVATION_WRITES)
        self._faults = instruments.gauge(names.USE_FAULTS)
        self._evictions = instruments.counter(names.EVICTIONS)

    def settled(self, given: GivenGpu, reservation: str) -> None:
        """This replica wrote a record for a GPU that kubelet gave away."""
        self._audit.note(settled_record(given, reservation))
        self._logged(given.gpu, reservation)
        self._changes.labels(_SETTLED).inc()
        self._log.info(
            Event.RESERVATION_CHANGED,
            pod=_name(given.pod),
            node=given.node,
            state=_SETTLED,
            cause="kubelet gave it the GPU",
            gpus=(given.gpu,),
        )

    def wrote(self, result: str) -> None:
        """One write: written, overtaken or failed."""
        self._writes.labels(result).inc()

    def compared(self, changes: FaultChanges, counts: Mapping[UseFaultKind, int]) -> None:
        """Disagreements began or ended."""
        for kind in UseFaultKind:
            self._faults.labels(kind.value).set(counts.get(kind, 0))
        for fault in changes.begun:
            self._audit.note(fault_record(fault))
            self._log.warning(Event.USE_FAULT_BEGAN, **_about(fault))
        for fault in changes.ended:
            self._log.info(Event.USE_FAULT_ENDED, **_about(fault))
        self._tell(changes.begun)

    def evicted(self, pod: PodRef, error: str) -> None:
        """A pod was evicted, or `error` says why not."""
        self._audit.note(eviction_record(pod, error))
        self._evictions.labels("failed" if error else "evicted").inc()
        self._log.warning(Event.POD_EVICTED, pod=_name(pod), reason=error)


def _about(fault: UseFault) -> dict[str, str]:
    return {
        "kind": fault.kind.value,
        "node": fault.node,
        "gpu": fault.gpu,
        "pod": _name(fault.pod) if fault.pod is not None else fault.owner,
    }


def _name(pod: PodRef) -> str:
    return f"{pod.namespace}/{pod.name}"
