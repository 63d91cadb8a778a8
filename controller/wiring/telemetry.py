"""Makes what sends audit records and changes of nodes to an OpenTelemetry collector."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from controller.audit.sealing import SealedLine
from controller.fleet.registry import Changes
from controller.fleet.trust import ChangeKind
from controller.recorders.log_records import audit_entry, state_entry
from controller.settings import ControllerSettings
from gpuwarden import __version__
from gpuwarden.clock import Clock
from gpuwarden.telemetry import names
from gpuwarden.telemetry.log_export import LogExport, log_export
from gpuwarden.telemetry.metrics import Instruments

OTLP_SERVICE: Final = "gpuwarden-controller"
"""`service.name` of spans and of log records."""


def otlp_log_export(settings: ControllerSettings, instruments: Instruments) -> LogExport | None:
    """The export, not yet started; None where the settings do not want it."""
    if not settings.telemetry.logs:
        return None
    return log_export(
        settings.telemetry.otlp,
        resource={
            "service.name": OTLP_SERVICE,
            "service.version": __version__,
            "service.instance.id": settings.replica,
            "k8s.cluster.name": settings.cluster,
        },
        headers=settings.telemetry.otlp_headers,
        lost=instruments.counter(names.OTLP_LOG_RECORDS_LOST).inc,
    )


def audit_copies(export: LogExport | None) -> Callable[[Sequence[SealedLine]], None]:
    """Takes durable records, on the thread of the audit log."""

    def put(lines: Sequence[SealedLine]) -> None:
        if export is not None:
            for line in lines:
                export.put(partial(audit_entry, line))

    return put


def send_changes(export: LogExport | None, clock: Clock, changes: Changes) -> None:
    """Send what happened to nodes; unchanged rounds are no change."""
    if export is None:
        return
    for change in changes:
        if change.kind is not ChangeKind.RENEWED:
            export.put(partial(state_entry, change, clock.wall_ns()))
