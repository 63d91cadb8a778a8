"""Tells log, metrics and audit log what the HTTP API is asked. Must not decide anything."""

from typing import Final, Protocol

from controller.audit.record import Record
from controller.http_api.documents import FinalizeRequest
from controller.http_api.operations import Operation
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import Refusal
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

_LISTENER: Final = "api"


class RecordLog(Protocol):
    """The part of the audit log that is needed here."""

    def note(self, record: Record) -> None:
        """Append without waiting."""


class ApiJournal:
    """Implements the endpoint's `ApiSink`."""

    def __init__(self, instruments: Instruments, audit: RecordLog) -> None:
        self._log = logger(_LISTENER)
        self._audit = audit
        self._requests = instruments.counter(names.API_REQUESTS)
        self._seconds = instruments.histogram(names.API_SECONDS)
        self._reviews = instruments.counter(names.TOKEN_REVIEWS)
        self._refused = instruments.counter(names.TLS_MATERIAL_REFUSED).labels(_LISTENER)

    def answered(self, operation: Operation, status: int, seconds: float) -> None:
        """One answer."""
        self._requests.labels(operation.value, str(status)).inc()
        self._seconds.labels(operation.value).observe(seconds)

    def failed(self, operation: Operation, error: Exception) -> None:
        """A fault of ours."""
        self._log.error(Event.API_FAILED, operation=operation.value, exc_info=error)

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

    def certificate_changed(self, error: str | None) -> None:
        """The listener's certificate files changed."""
        if error is None:
            self._log.info(Event.LISTENER_OPEN, listener=_LISTENER, certificate="renewed")
        else:
            self._refused.inc()
            self._log.error(Event.TLS_MATERIAL_REFUSED, listener=_LISTENER, reason=error)


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
