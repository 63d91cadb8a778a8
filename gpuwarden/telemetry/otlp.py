"""Spans through OpenTelemetry to an OTLP/HTTP collector; only `otlp_logs` imports it besides.

`trace_export` imports this module, and only where an endpoint is set. Spans wait in a bounded queue
that a daemon thread empties. When the collector is slow or down they are dropped: nothing that
opens or ends a span ever waits.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision

from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import ActiveSpan, Attribute, RemoteSpan, RoundIds

EXPORT_S: Final = 5.0
"""One batch, retries included."""
END_S: Final = 0.5
"""What the end of a process may wait for the last batch."""
_SCOPE: Final = "gpuwarden"


class _Ids(RandomIdGenerator):
    """Random ids, except for the first span of a round."""

    def __init__(self) -> None:
        self.wanted: ContextVar[RoundIds | None] = ContextVar("round ids", default=None)

    def generate_trace_id(self) -> int:
        wanted = self.wanted.get()
        return super().generate_trace_id() if wanted is None else wanted.trace

    def generate_span_id(self) -> int:
        wanted = self.wanted.get()
        return super().generate_span_id() if wanted is None else wanted.span


class OtlpTracer:
    """Implements `Tracer`; one per process."""

    def __init__(
        self, endpoint: str, *, service: str, version: str, headers: Mapping[str, str]
    ) -> None:
        self._ids = _Ids()
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": service, "service.version": version}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(
            endpoint=f"{endpoint.rstrip('/')}/v1/traces", headers=dict(headers), timeout=EXPORT_S
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer(_SCOPE, version)

    def span(
        self, name: Span, attributes: Mapping[str, Attribute], above: RemoteSpan | None = None
    ) -> AbstractContextManager[ActiveSpan]:
        """See `Tracer`."""
        context = None if above is None else _below(above.trace, above.span, _flag(above.sampled))
        return _open(
            self._tracer.start_span(name.value, context=context, attributes=dict(attributes))
        )

    def round(
        self, name: Span, ids: RoundIds, attributes: Mapping[str, Attribute], *, first: bool
    ) -> "OtlpRound":
        """See `Tracer`."""
        if first:
            return OtlpRound(self._first(name, ids, attributes))
        context = _below(ids.trace, ids.span, self._flags(ids))
        return OtlpRound(
            self._tracer.start_span(name.value, context=context, attributes=dict(attributes))
        )

    def sampled_trace(self) -> str:
        """See `Tracer`."""
        context = trace.get_current_span().get_span_context()
        return f"{context.trace_id:032x}" if context.trace_flags.sampled else ""

    def close(self) -> None:
        """Send what waits, for `END_S` seconds at most."""
        # A daemon: what a collector still holds up then must not hold up the interpreter.
        ending = threading.Thread(target=self._provider.shutdown, name="otlp end", daemon=True)
        ending.start()
        ending.join(END_S)

    def _first(self, name: Span, ids: RoundIds, attributes: Mapping[str, Attribute]) -> trace.Span:
        token = self._ids.wanted.set(ids)
        try:
            return self._tracer.start_span(
                name.value, context=Context(), attributes=dict(attributes)
            )
        finally:
            self._ids.wanted.reset(token)

    def _flags(self, ids: RoundIds) -> trace.TraceFlags:
        """Whether the other process samples the round, if its sampler is set like this one."""
        decided = self._provider.sampler.should_sample(Context(), ids.trace, _SCOPE)
        return _flag(decided.decision is Decision.RECORD_AND_SAMPLE)


class OtlpRound:
    """Implements `Round`."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def inside(self) -> AbstractContextManager[object]:
        """See `Round`."""
        return trace.use_span(
            self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )

    def end(self, outcome: str) -> None:
        """See `Round`."""
        self._span.set_attribute("outcome", outcome)
        self._span.end()


def _below(trace_id: int, span_id: int, flags: trace.TraceFlags) -> Context:
    """The context of a span in another process."""
    remote = trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(trace.NonRecordingSpan(remote), Context())


def _flag(sampled: bool) -> trace.TraceFlags:  # noqa: FBT001 -- the flag itself
    return trace.TraceFlags(trace.TraceFlags.SAMPLED if sampled else trace.TraceFlags.DEFAULT)


@contextmanager
def _open(span: trace.Span) -> Iterator[ActiveSpan]:
    """The span of a block: current in it, ended with it, marked when it fails."""
    with trace.use_span(
        span, end_on_exit=True, record_exception=False, set_status_on_exception=False
    ):
        try:
            yield span
        except Exception as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(trace.StatusCode.ERROR)
            raise
