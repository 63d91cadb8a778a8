"""Tells log, metrics, audit log and Events what the webhooks decide. Must not decide anything."""

from collections.abc import Callable
from typing import Final, Protocol

from controller.admission.decision import AdmissionDecision, admission_record
from controller.admission.review import codes_of
from controller.audit.record import Record
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

_LISTENER: Final = "admission"
_BAD: Final = frozenset({"bad", "too_large", "busy", "slow"})


class RecordLog(Protocol):
    """The part of the audit log that decisions need."""

    def note(self, record: Record) -> None:
        """Append without waiting."""


class AdmissionJournal:
    """Implements the webhooks' `AdmissionMetrics` and `DecisionSink`."""

    def __init__(
        self,
        instruments: Instruments,
        audit: RecordLog,
        tell: Callable[[AdmissionDecision], None],
    ) -> None:
        """`tell` says in Events what should be said."""
        self._log = logger(_LISTENER)
        self._audit = audit
        self._tell = tell
        self._requests = instruments.counter(names.ADMISSION_REQUESTS)
        self._seconds = instruments.histogram(names.ADMISSION_SECONDS)
        self._children: dict[
            tuple[str, str], tuple[Callable[[], None], Callable[[float], None]]
        ] = {}
        """Paths and results are few, whoever asks."""
        self._refusals = instruments.counter(names.ADMISSION_REFUSALS)
        self._refused = instruments.counter(names.TLS_MATERIAL_REFUSED).labels(_LISTENER)

    def note(self, decision: AdmissionDecision) -> None:
        """One decision."""
        self._audit.note(admission_record(decision))
        self._tell(decision)
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
        count, observe = self._told_of(path, result)
        count()
        observe(seconds)
        if result in _BAD:
            self._log.warning(Event.ADMISSION_BAD_REQUEST, path=path, result=result)

    def _told_of(
        self, path: str, result: str
    ) -> tuple[Callable[[], None], Callable[[float], None]]:
        """The metrics' children, looked up once."""
        found = self._children.get((path, result))
        if found is None:
            count = self._requests.labels(path, result).inc
            found = self._children[path, result] = (count, self._seconds.labels(path).observe)
        return found

    def failed(self, path: str, error: Exception | None) -> None:
        """No decision."""
        if error is None:
            self._log.error(Event.ADMISSION_FAILED, path=path, reason="not in time")
        else:
            self._log.error(Event.ADMISSION_FAILED, path=path, exc_info=error)

    def certificate_changed(self, error: str | None) -> None:
        """The listener's certificate files changed."""
        if error is None:
            self._log.info(Event.LISTENER_OPEN, listener=_LISTENER, certificate="renewed")
        else:
            self._refused.inc()
            self._log.error(Event.TLS_MATERIAL_REFUSED, listener=_LISTENER, reason=error)
