"""Spans, through OpenTelemetry only where an endpoint is set; otherwise they cost nothing.

OpenTelemetry is imported by `configure` alone and only with an endpoint: the agent
must not pay for it in memory. No other module imports it.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, cast

from gpuwarden.telemetry.names import Span

Attribute = str | bool | int | float


class ActiveSpan(Protocol):
    """What code inside a span may do with it."""

    def set_attribute(self, key: str, value: Attribute) -> None:
        """Add a fact that was not known when the span began."""


class _NoSpan:
    def set_attribute(self, key: str, value: Attribute) -> None:
        """Forget it."""


_NO_SPAN = nullcontext[ActiveSpan](_NoSpan())


def _start_nothing(
    _name: Span, _attributes: Mapping[str, Attribute]
) -> AbstractContextManager[ActiveSpan]:
    return _NO_SPAN


class _Tracing:
    """The one place that knows whether tracing is on."""

    start: Callable[[Span, Mapping[str, Attribute]], AbstractContextManager[ActiveSpan]] = (
        staticmethod(_start_nothing)
    )


_tracing = _Tracing()


def span(name: Span, **attributes: Attribute) -> AbstractContextManager[ActiveSpan]:
    """Open a span for the `with` block; `_` in attribute names becomes `.`. No secrets."""
    return _tracing.start(name, attributes)


def configure(
    endpoint: str | None, *, service: str, version: str, headers: Mapping[str, str] | None = None
) -> Callable[[], None]:
    """Turn tracing on if there is an endpoint (OTLP/HTTP base URL); returns what flushes and ends.

    `OTEL_*` variables for sampling and resources are honoured by the SDK.
    """
    if endpoint is None:
        return lambda: None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 -- only when tracing is on
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 -- only when tracing is on
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 -- only when tracing is on
    from opentelemetry.sdk.trace.export import (  # noqa: PLC0415 -- only when tracing is on
        BatchSpanProcessor,
    )

    resource = Resource.create({"service.name": service, "service.version": version})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(
        endpoint=f"{endpoint.rstrip('/')}/v1/traces", headers=dict(headers or {}), timeout=5
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("gpuwarden", version)

    def start(
        name: Span, attributes: Mapping[str, Attribute]
    ) -> AbstractContextManager[ActiveSpan]:
        dotted = {key.replace("_", "."): value for key, value in attributes.items()}
        return cast(
            "AbstractContextManager[ActiveSpan]",
            tracer.start_as_current_span(name.value, attributes=dotted),
        )

    def end() -> None:
        _tracing.start = _start_nothing
        provider.shutdown()

    _tracing.start = start
    return end
