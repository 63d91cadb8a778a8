"""Log records through OpenTelemetry's exporter to an OTLP/HTTP collector.

`log_export` imports it, and only where an endpoint is set. OpenTelemetry's API for logs is not
declared stable: its modules are called `_logs` and `_log_exporter` (ADR 21). Nothing else imports
them, so that their change costs log records, and spans go on.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from gpuwarden.redaction import without_secrets
from gpuwarden.telemetry.log_entry import LogEntry

EXPORT_S: Final = 5.0
"""One batch, retries included."""


class OtlpLogs:
    """Sends batches of entries; one per process."""

    def __init__(
        self, endpoint: str, *, resource: Mapping[str, str], headers: Mapping[str, str]
    ) -> None:
        self._resource = Resource.create(resource)
        self._exporter = OTLPLogExporter(
            endpoint=f"{endpoint.rstrip('/')}/v1/logs", headers=dict(headers), timeout=EXPORT_S
        )

    def send(self, entries: Sequence[LogEntry]) -> bool:
        """Return whether the collector took the batch, after `EXPORT_S` seconds at most."""
        result = self._exporter.export([self._record(entry) for entry in entries])
        return result is LogRecordExportResult.SUCCESS

    def give_up(self) -> None:
        """Repeat nothing any more."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the exporter has no types there

    def _record(self, entry: LogEntry) -> ReadableLogRecord:
        record = LogRecord(
            timestamp=entry.time_ns,
            context=Context(),
            severity_text=entry.severity.value,
            severity_number=SeverityNumber[entry.severity.value],
            body=without_secrets(entry.body),
            attributes={key: _withheld(value) for key, value in entry.attributes.items()},
            event_name=entry.name,
        )
        return ReadableLogRecord(record, self._resource, InstrumentationScope(entry.scope))


def _withheld(value: str | int | tuple[str, ...]) -> str | int | tuple[str, ...]:
    match value:
        case str():
            return without_secrets(value)
        case tuple():
            return tuple(without_secrets(text) for text in value)
        case _:
            return value
