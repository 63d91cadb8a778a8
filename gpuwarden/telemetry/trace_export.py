"""Turns the export of spans on and off. What OpenTelemetry trips over never ends a program."""

import os
from collections.abc import Callable, Mapping
from typing import Final

from gpuwarden.telemetry import tracing
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.names import Event

_PREFIX: Final = "OTEL_"


def start(
    endpoint: str | None, *, service: str, version: str, headers: Mapping[str, str] | None = None
) -> Callable[[], None]:
    """Send spans to an OTLP/HTTP base URL, if there is one; returns what flushes and ends.

    That waits for half a second at most, whatever the collector does. `OTEL_*` variables
    for sampling, batching and resources are honoured by the SDK. Where it cannot begin with them
    there are no spans, and a warning names the variables, not their values.
    """
    if endpoint is None:
        return lambda: None
    try:
        # OpenTelemetry is loaded where it is used; it reads variables already then.
        from gpuwarden.telemetry import otlp  # noqa: PLC0415

        tracer = otlp.OtlpTracer(endpoint, service=service, version=version, headers=headers or {})
    except Exception as error:  # noqa: BLE001 -- whatever it is, tracing is not worth the process
        report_off(Event.TRACING_OFF, error)
        return lambda: None
    tracing.use(tracer)

    def end() -> None:
        tracing.use(None)
        tracer.close()

    return end


def report_off(event: Event, error: Exception) -> None:
    """Warn that OpenTelemetry cannot begin, with the names of its variables."""
    variables = sorted(name for name in os.environ if name.startswith(_PREFIX))
    logger("telemetry").warning(event, fault=type(error).__name__, variables=variables)
