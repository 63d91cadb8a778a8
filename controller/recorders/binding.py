"""Records bindings, reservations and use of GPUs: logs, metrics, audit records, Events.

Must not decide anything, and must return at once: records are noted, never waited for. The
one that a reservation waits for is written where the Binding is decided.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from controller.binding.idle import Account, Holding, IdleChanges, account_record, idle_record
from controller.binding.records import (
    BindDecision,
    ReleaseOrder,
    ReservationChange,
    bind_record,
    ended_record,
    kept_record,
    ledger_record,
    reservation_record,
    restored_record,
)
from controller.binding.use import FaultChanges, UseFault, UseFaultKind
from controller.binding.use_records import allocation_record, eviction_record, fault_record
from controller.ledger.record import HolderState, PodRef, key_of
from controller.ledger.release import DriftKind, GivenGpu
from controller.ledger.restore import Grants, LivePod, LoggedGrant
from controller.ledger.store import LedgerSnapshot
from controller.record import AuditLog, Json
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

_RESTORED: Final = "Restored"
_KEPT: Final = "Kept"
_RELEASE: Final = "release-gpu"
_SHOWN_GPUS: Final = 16
_SHOWN_CHARS: Final = 300


class BindingRecorder:
    """Implements `ReservationSink`."""

    def __init__(
        self,
        instruments: Instruments,
        audit: AuditLog,
        emit: Callable[[BindDecision], None] | None = None,
    ) -> None:
        """`emit` sends Events about it, where any are due."""
        self._log = logger("binding")
        self._audit = audit
        self._emit = emit
        self._decisions = instruments.counter(names.BIND_DECISIONS)
        self._reservations = instruments.gauge(names.RESERVATIONS)
        self._never_stored = instruments.gauge(names.BINDINGS_NEVER_STORED)
        self._changes = instruments.counter(names.RESERVATION_CHANGES)
        self._freed = instruments.histogram(names.RELEASE_SECONDS)
        self._releasing_oldest = instruments.gauge(names.RELEASING_OLDEST)
        self._acts = instruments.counter(names.OPERATOR_ACTS)
        self._early = instruments.counter(names.EARLY_RESERVATIONS)
        self._writes = instruments.counter(names.RESERVATION_WRITES)
        self._drift = instruments.gauge(names.RESERVATION_DRIFT)
        self._available = instruments.gauge(names.LEDGER_AVAILABLE)
        self._rollbacks = instruments.counter(names.LEDGER_ROLLBACKS)
        self._logged: set[tuple[str, str]] = set()
        """`key_of(gpu)` and reservation of what this replica's log has, without an end."""
        self._releasing: Mapping[tuple[str, str], int] = {}
        """`key_of(gpu)` and reservation of what was Releasing when it was last shown, and since
        when."""
        self._ledger_error: str | None = None
        """None before the first reading."""
        self._drifts: Mapping[DriftKind, int] = {}

    def bound(self, decision: BindDecision) -> None:
        """The binding webhook answered."""
        self._audit.note(bind_record(decision))
        if self._emit is not None:
            self._emit(decision)
        codes = tuple(dict.fromkeys(x.code.value for x in decision.refusals))
        for code in codes or (ReasonCode.ACCEPTED.value,):
            self._decisions.labels(code, decision.word).inc()
        if decision.reservation:
            self._logged |= _parts(decision.gpus, decision.reservation)
            self._changes.labels(HolderState.PROPOSED.value).inc()
        self._log.info(
            Event.BIND_DECIDED,
            pod=f"{decision.namespace}/{decision.pod}",
            node=decision.node,
            decision=decision.word,
            codes=codes,
            detail=decision.refusals[0].detail if decision.refusals else "",
            gpus=decision.gpus[:_SHOWN_GPUS],
        )

    def reserved_early(self, code: ReasonCode, *, is_new: bool) -> None:
        """A pod's creation asked for a reservation; its record is written where it is made."""
        self._early.labels(code.value).inc()
        if is_new:
            self._changes.labels(HolderState.PROPOSED.value).inc()

    def changed(self, change: ReservationChange) -> None:
        """A reservation changed its state."""
        self._audit.note(reservation_record(change))
        parts = _parts(change.gpus, change.reservation)
        if change.state.is_end:
            self._logged -= parts
        else:
            self._logged |= parts
        self._changes.labels(change.state.value).inc()
        self._log.info(
            Event.RESERVATION_CHANGED,
            pod=f"{change.pod.namespace}/{change.pod.name}",
            node=change.node,
            state=change.state.value,
            cause=change.cause,
            gpus=change.gpus[:_SHOWN_GPUS],
        )

    def ordered(self, order: ReleaseOrder, refusal: Refusal | None) -> None:
        """An operator's order about a GPU of a silent node; its records are written elsewhere."""
        code = None if refusal is None else refusal.code.value
        self._acts.labels(_RELEASE, code or "OK").inc()
        self._log.info(
            Event.RESERVATION_OPERATOR,
            reservation=order.reservation,
            gpus=(order.gpu,),
            actor=order.actor,
            reason=order.reason,
            code=code,
        )

    def freed(self, seconds: float) -> None:
        """This replica released a claimed GPU, so long after it knew that the pod had ended."""
        self._freed.observe(seconds)

    def wrote(self, result: str) -> None:
        """One write: written, overtaken or failed."""
        self._writes.labels(result).inc()

    def ledger_read(self, error: str) -> None:
        """The ledger was read, or not; recorded once per change."""
        self._available.set(not error)
        if error and not self._ledger_error:
            self._log.error(Event.LEDGER_UNAVAILABLE, reason=error)
            self._audit.note(ledger_record("unavailable", {"reason": error[:_SHOWN_CHARS]}))
        elif not error and self._ledger_error != "":
            self._log.info(Event.LEDGER_AVAILABLE)
        if self._ledger_error and not error:
            self._audit.note(ledger_record("available", {}))
        self._ledger_error = error

    def drifts(self, counts: Mapping[DriftKind, int]) -> None:
        """What a reconciliation found; logged when it differs from the last one."""
        for kind in DriftKind:
            self._drift.labels(kind.value).set(counts.get(kind, 0))
        if dict(counts) != dict(self._drifts):
            shown = {kind.value: count for kind, count in sorted(counts.items())}
            self._log.warning(Event.LEDGER_DRIFT, counts=shown)
        self._drifts = counts

    def restored(self, pod: LivePod, gpu: str) -> None:
        """A live pod's record was restored."""
        self._audit.note(restored_record(pod, gpu))
        self._logged |= _parts((gpu,), pod.reservation)
        self._changes.labels(_RESTORED).inc()
        self._log.warning(
            Event.RESERVATION_CHANGED,
            pod=f"{pod.pod.namespace}/{pod.pod.name}",
            node=pod.node,
            state=_RESTORED,
            cause="the ledger had lost it",
            gpus=(gpu,),
        )

    def rollback_detected(self, gpus: frozenset[str]) -> None:
        """The ledger was rolled back: nothing is granted for a while."""
        shown: list[Json] = [*sorted(gpus)]
        self._rollbacks.inc()
        self._audit.note(ledger_record("rolled-back", {"count": len(shown), "gpus": shown}))
        self._log.error(Event.LEDGER_WENT_BACK, count=len(shown), gpus=shown[:_SHOWN_GPUS])

    def log_replayed(self, grants: Grants) -> None:
        """What the audit log has from before this start."""
        self._logged |= grants.keys()

    def logged(self, gpu: str, reservation: str) -> None:
        """The audit log has the beginning of one more."""
        self._logged |= _parts((gpu,), reservation)

    def kept(self, grant: LoggedGrant) -> None:
        """A GPU that the ledger had lost is kept because the audit log has its reservation."""
        self._audit.note(kept_record(grant))
        self._logged |= _parts((grant.gpu,), grant.reservation)
        self._changes.labels(_KEPT).inc()
        self._log.warning(
            Event.LEDGER_KEPT,
            pod=f"{grant.pod.namespace}/{grant.pod.name}",
            node=grant.node,
            gpus=(grant.gpu,),
        )

    def ended_elsewhere(self, grants: tuple[LoggedGrant, ...]) -> None:
        """The ledger no longer has them; the ends that this log lacks are recorded."""
        for grant in grants:
            part = (key_of(grant.gpu), grant.reservation)
            if part in self._logged:
                self._audit.note(ended_record(grant))
                self._logged.discard(part)

    def show(self, snapshot: LedgerSnapshot, never_stored: int, now_ns: int) -> None:
        """Set the gauges: what is held now, and how many waiting pods have lost their turn."""
        self._never_stored.set(never_stored)
        self._show_releasing(snapshot, now_ns)
        counts = Counter(
            holder.state for entry in snapshot.entries.values() for holder in entry.record.holders
        )
        for state in HolderState:
            if not state.is_end:
                self._reservations.labels(state.value).set(counts[state])

    def _show_releasing(self, snapshot: LedgerSnapshot, now_ns: int) -> None:
        found = (
            (entry.record.key, holder.reservation)
            for entry in snapshot.entries.values()
            for holder in entry.record.holders
            if holder.state is HolderState.RELEASING
        )
        self._releasing = {part: self._releasing.get(part, now_ns) for part in found}
        oldest_ns = min(self._releasing.values(), default=now_ns)
        self._releasing_oldest.set((now_ns - oldest_ns) / NS_PER_S)


def _parts(gpus: tuple[str, ...], reservation: str) -> set[tuple[str, str]]:
    return {(key_of(gpu), reservation) for gpu in gpus}


# --- use of GPUs

_ALLOCATED: Final = "Allocated"


class UseRecorder:
    """Implements `UseSink`."""

    def __init__(
        self,
        instruments: Instruments,
        audit: AuditLog,
        emit: Callable[[Iterable[UseFault]], None],
        logged: Callable[[str, str], None] = lambda _gpu, _reservation: None,
    ) -> None:
        """`emit` sends Events about what began; `logged` takes what the audit log has begun."""
        self._logged = logged
        self._log = logger("use")
        self._audit = audit
        self._emit = emit
        self._changes = instruments.counter(names.RESERVATION_CHANGES)
        self._writes = instruments.counter(names.RESERVATION_WRITES)
        self._faults = instruments.gauge(names.USE_FAULTS)
        self._evictions = instruments.counter(names.EVICTIONS)
        self._idle = instruments.gauge(names.IDLE_GPUS)

    def allocation_recorded(self, given: GivenGpu, reservation: str, evidence: str) -> None:
        """This replica recorded kubelet's allocation of a GPU, by evidence of that digest."""
        self._audit.note(allocation_record(given, reservation, evidence))
        self._logged(given.gpu, reservation)
        self._changes.labels(_ALLOCATED).inc()
        self._log.info(
            Event.RESERVATION_CHANGED,
            pod=_name(given.pod),
            node=given.node,
            state=_ALLOCATED,
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
            self._audit.note(fault_record(fault, ended=True))
            self._log.info(Event.USE_FAULT_ENDED, **_about(fault))
        self._emit(changes.begun)

    def idled(self, changes: IdleChanges, standing: int) -> None:
        """Reserved GPUs began or ceased to be idle."""
        self._idle.set(standing)
        for idle in changes.begun:
            self._audit.note(idle_record(idle, ended=False))
            self._log.info(Event.GPU_IDLE, **_about_holding(idle.holding))
        for idle in changes.ended:
            self._audit.note(idle_record(idle, ended=True))
            self._log.info(Event.GPU_IDLE_ENDED, **_about_holding(idle.holding))

    def accounted(self, accounts: Mapping[str, Account]) -> None:
        """GPU time of namespaces since this was told last."""
        for namespace, account in accounts.items():
            self._audit.note(account_record(namespace, account))

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


def _about_holding(holding: Holding) -> dict[str, str]:
    return {"node": holding.node, "gpu": holding.gpu, "pod": _name(holding.pod)}


def _name(pod: PodRef) -> str:
    return f"{pod.namespace}/{pod.name}"
