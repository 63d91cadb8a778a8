"""Turns the export of spans on and off."""

from collections.abc import Callable, Mapping

from gpuwarden.telemetry import tracing


def start(
    endpoint: str | None, *, service: str, version: str, headers: Mapping[str, str] | None = None
) -> Callable[[], None]:
    """Send spans to an OTLP/HTTP base URL, if there is one; returns what flushes and ends.

    That waits for half a second at most, whatever the collector does. `OTEL_*` variables
    for sampling, batching and resources are honoured by the SDK.
    """
    if endpoint is None:
        return lambda: None
    from gpuwarden.telemetry import otlp  # noqa: PLC0415 -- OpenTelemetry is loaded where it is used

    tracer = otlp.OtlpTracer(endpoint, service=service, version=version, headers=headers or {})
    tracing.use(tracer)

    def end() -> None:
        tracing.use(None)
        tracer.close()

    return end
