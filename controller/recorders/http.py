"""Records what webhooks, extender and HTTP API answer: logs, metrics, audit records, Events.

Must not decide anything.
"""

from collections.abc import Callable, Mapping
from typing import Final

from controller.admission.pod_webhooks import AdmissionDecision, admission_record
from controller.admission.review import codes_of
from controller.placement.filter_and_score import (
    FilterDecision,
    Totals,
    decision_record,
    not_ready_record,
)
from controller.record import AuditLog, Record
from controller.recorders.listeners import ListenerRecorder
from controller.web.api.documents import FinalizeRequest
from controller.web.api.operations import Operation
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event
from gpuwarden.telemetry.tracing import exemplar

Exemplar = dict[str, str] | None
_BAD: Final = frozenset({"bad", "too_large", "busy", "slow"})
"""Results of requests that could not be read."""


class AdmissionRecorder(ListenerRecorder):
    """Implements the webhooks' `AdmissionMetrics` and `DecisionSink`."""

    def __init__(
        self,
        instruments: Instruments,
        audit: AuditLog,
        emit: Callable[[AdmissionDecision], None],
    ) -> None:
        """`emit` sends Events about it, where any are due."""
        super().__init__("admission", instruments)
        self._audit = audit
        self._emit = emit
        self._requests = instruments.counter(names.ADMISSION_REQUESTS)
        self._seconds = instruments.histogram(names.ADMISSION_SECONDS)
        self._children: dict[
            tuple[str, str], tuple[Callable[[], None], Callable[[float, Exemplar], None]]
        ] = {}
        """Paths and results are few, whoever asks."""
        self._refusals = instruments.counter(names.ADMISSION_REFUSALS)

    def note(self, decision: AdmissionDecision) -> None:
        """One decision."""
        self._audit.note(admission_record(decision))
        self._emit(decision)
        codes = codes_of(decision.refusals)
        for code in codes:
            self._refusals.labels(code, decision.word).inc()
        write = self._log.info if codes else self._log.debug
        write(
            Event.ADMISSION_DECIDED,
            pod=f"{decision.namespace}/{decision.pod}",
            decision=decision.word,
            step=decision.step,
            codes=codes,
        )

    def answered(self, path: str, result: str, seconds: float) -> None:
        """One answer."""
        count, observe = self._metrics_of(path, result)
        count()
        observe(seconds, exemplar())
        if result in _BAD:
            self._limited.warning(Event.ADMISSION_BAD_REQUEST, key=result, path=path, result=result)

    def _metrics_of(
        self, path: str, result: str
    ) -> tuple[Callable[[], None], Callable[[float, Exemplar], None]]:
        """The metrics' children, looked up once."""
        found = self._children.get((path, result))
        if found is None:
            count = self._requests.labels(path, result).inc
            found = self._children[path, result] = (count, self._seconds.labels(path).observe)
        return found

    def failed(self, path: str, error: Exception | None) -> None:
        """No decision."""
        if error is None:
            self._limited.error(Event.ADMISSION_FAILED, key=path, path=path, reason="not in time")
        else:
            self._limited.error(
                Event.ADMISSION_FAILED, key=(path, type(error)), path=path, exc_info=error
            )


class ExtenderRecorder(ListenerRecorder):
    """Implements the extender's `ExtenderMetrics`, and counts nodes per code.

    Answers that nothing is decided yet are in the audit log too: a pod has waited for them.
    """

    def __init__(self, instruments: Instruments, audit: AuditLog) -> None:
        super().__init__("extender", instruments)
        self._audit = audit
        self._requests = instruments.counter(names.EXTENDER_REQUESTS)
        self._seconds = instruments.histogram(names.EXTENDER_SECONDS)
        self._nodes = instruments.counter(names.EXTENDER_NODES)

    def answered(self, verb: str, result: str, seconds: float) -> None:
        """One answer."""
        self._requests.labels(verb, result).inc()
        self._seconds.labels(verb).observe(seconds, exemplar())
        if result in _BAD:
            self._limited.warning(Event.EXTENDER_BAD_REQUEST, key=result, verb=verb, result=result)
            return
        if verb != "prioritize" and result == "not_ready":
            self._audit.note(not_ready_record())
        self._log.debug(Event.EXTENDER_ANSWERED, verb=verb, result=result)

    def count_nodes(self, totals: Mapping[ReasonCode, int]) -> None:
        """Nodes judged by one decision."""
        for code, count in totals.items():
            if count:
                self._nodes.labels(code.value).inc(count)


class FilterRecorder:
    """Records each decision about nodes in the audit log and counts its nodes per code."""

    def __init__(
        self,
        audit: AuditLog,
        count_nodes: Callable[[Mapping[ReasonCode, int]], None],
        emit: Callable[[FilterDecision, Totals], None] | None = None,
    ) -> None:
        """`emit` sends Events about those of /filter."""
        self._audit = audit
        self._count_nodes = count_nodes
        self._emit = emit
        self._log = logger("extender")

    def note(self, decision: FilterDecision) -> None:
        """Work out the totals and append the record."""
        totals = decision.totals()
        record = decision_record(decision, totals)
        self._audit.note(record)
        self._log.info(
            Event.FILTER_DECIDED,
            verb="preempt" if decision.preempts else "filter",
            pod=record.subject.removeprefix("pod/"),
            decision=record.decision,
            passed=totals.passed,
            rejected=record.refs["rejected"],
        )
        self._count_nodes({**totals.rejected, ReasonCode.ACCEPTED: totals.passed})
        if self._emit is not None and not decision.preempts:
            self._emit(decision, totals)


class ApiRecorder(ListenerRecorder):
    """Implements the endpoint's `ApiSink`."""

    def __init__(self, instruments: Instruments, audit: AuditLog) -> None:
        super().__init__("api", instruments)
        self._audit = audit
        self._requests = instruments.counter(names.API_REQUESTS)
        self._seconds = instruments.histogram(names.API_SECONDS)
        self._reviews = instruments.counter(names.TOKEN_REVIEWS)

    def answered(self, operation: Operation, status: int, seconds: float) -> None:
        """One answer."""
        self._requests.labels(operation.value, str(status)).inc()
        self._seconds.labels(operation.value).observe(seconds, exemplar())

    def failed(self, operation: Operation, error: Exception) -> None:
        """The controller failed."""
        self._limited.error(
            Event.API_FAILED,
            key=(operation, type(error)),
            operation=operation.value,
            exc_info=error,
        )

    def reviewed(self, result: str) -> None:
        """What became of the question about one token."""
        self._reviews.labels(result).inc()

    def finalized(self, caller: str, request: FinalizeRequest, refusal: Refusal | None) -> None:
        """A call of `POST /finalize` was decided."""
        self._audit.note(finalize_record(caller, request, refusal))
        self._log.info(
            Event.API_FINALIZED,
            caller=caller,
            pod=f"{request.namespace}/{request.name}",
            gpu=request.gpu_uuid,
            codes=() if refusal is None else (refusal.code.value,),
        )


def finalize_record(caller: str, request: FinalizeRequest, refusal: Refusal | None) -> Record:
    """The `api.finalize` record."""
    return Record(
        kind=RecordKind.API_FINALIZE,
        actor=caller,
        subject=f"pod/{request.namespace}/{request.name}",
        decision="confirmed" if refusal is None else "refused",
        codes=() if refusal is None else (refusal.code.value,),
        refs={
            "uid": request.uid,
            "reservation": request.reservation_id,
            "gpu": request.gpu_uuid,
            "reason": "" if refusal is None else refusal.detail,
        },
    )
