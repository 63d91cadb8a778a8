"""Spans, sent by OpenTelemetry only where an endpoint is set; otherwise they cost nothing.

A round of evidence (challenge, reading, evidence, verdict) is one trace over both
processes without anything being carried between them: both derive its trace id and
the id of its first span from the id of the challenge, which both know anyway.

The implementation is `otlp`, and `trace_export` turns it on: the agent must not pay for
OpenTelemetry in memory where nothing is sent, so this module does not import it. Spans carry no
secrets, and no text of exceptions.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Protocol

from gpuwarden.telemetry.names import Span

Attribute = str | bool | int | float

_TRACE_BYTES: Final = 16
_SPAN_BYTES: Final = 8
_DOMAIN: Final = b"gpuwarden round\n"
_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class ActiveSpan(Protocol):
    """What code inside a span may do with it."""

    def set_attribute(self, key: str, value: Attribute) -> None:
        """Add a fact that was not known when the span began."""


class Round(Protocol):
    """A round that outlives the code that opened it, as a span."""

    def inside(self) -> AbstractContextManager[object]:
        """Spans that are opened in the block belong to the round."""

    def end(self, outcome: str) -> None:
        """The round is over; once."""


class Tracer(Protocol):
    """Makes spans."""

    def span(
        self, name: Span, attributes: Mapping[str, Attribute], above: "RemoteSpan | None" = None
    ) -> AbstractContextManager[ActiveSpan]:
        """A span for the `with` block, below `above` or the one that is open around it."""

    def round(
        self, name: Span, ids: "RoundIds", attributes: Mapping[str, Attribute], *, first: bool
    ) -> Round:
        """The first span of a round's trace, or one below that."""

    def sampled_trace(self) -> str:
        """The id of the trace that is open here, in hex; empty where none is, or is not sent."""


class RoundIds:
    """Ids of a round's trace and of its first span, from the challenge's id in hex."""

    __slots__ = ("span", "trace")

    def __init__(self, challenge_id: str) -> None:
        digest = sha256(_DOMAIN + challenge_id.encode()).digest()
        self.trace = int.from_bytes(digest[:_TRACE_BYTES]) or 1
        self.span = int.from_bytes(digest[_TRACE_BYTES : _TRACE_BYTES + _SPAN_BYTES]) or 1


@dataclass(frozen=True, slots=True)
class RemoteSpan:
    """A span of the caller, as a `traceparent` header (W3C Trace Context) names it."""

    trace: int
    span: int
    sampled: bool

    @classmethod
    def parse(cls, traceparent: str) -> "RemoteSpan | None":
        """None for what is no such header: a caller's mistake costs it the link, no more."""
        found = _TRACEPARENT.fullmatch(traceparent)
        if found is None:
            return None
        trace, above = int(found[1], 16), int(found[2], 16)
        if not trace or not above:
            return None
        return cls(trace, above, bool(int(found[3], 16) & 1))


class _NoSpan:
    def set_attribute(self, key: str, value: Attribute) -> None:
        """Forget it."""


class _NoRound:
    def inside(self) -> AbstractContextManager[object]:
        """Nothing."""
        return _NO_SPAN

    def end(self, outcome: str) -> None:
        """Forget it."""


_NO_SPAN: Final = nullcontext[ActiveSpan](_NoSpan())
NO_ROUND: Final[Round] = _NoRound()
"""A round that nobody traces; also before there is one."""


UNANSWERED: Final = "unanswered"
"""Outcome of a round without verdict."""


class _Tracing:
    """The one place that knows whether tracing is on."""

    tracer: Tracer | None = None


_tracing: Final = _Tracing()


def span(name: Span, **attributes: Attribute) -> AbstractContextManager[ActiveSpan]:
    """Open a span for the `with` block; `_` in attribute names becomes `.`. No secrets."""
    return _span(name, attributes, None)


def span_below(
    name: Span, traceparent: str, **attributes: Attribute
) -> AbstractContextManager[ActiveSpan]:
    """As `span`, in the trace of a caller that sent this header; "" where it sent none."""
    return _span(name, attributes, RemoteSpan.parse(traceparent) if _tracing.tracer else None)


def open_round(name: Span, challenge_id: str, **attributes: Attribute) -> Round:
    """Open the trace of a challenge (hex) that goes out: what the controller does."""
    return _round(name, challenge_id, attributes, first=True)


def join_round(name: Span, challenge_id: str, **attributes: Attribute) -> Round:
    """Join the trace of a challenge (hex) that has come: what the agent does."""
    return _round(name, challenge_id, attributes, first=False)


class Rounds:
    """The latest rounds of one stream, by the challenge's id in hex."""

    KEPT: Final = 4

    def __init__(self) -> None:
        self._open: dict[str, Round] = {}

    def begin(self, challenge_id: str, opened: Round) -> None:
        """A challenge is out; one of long ago stays unanswered."""
        if opened is NO_ROUND:
            return
        self._open[challenge_id] = opened
        if len(self._open) > self.KEPT:
            self.end(next(iter(self._open)), UNANSWERED)

    def of(self, challenge_id: str) -> Round:
        """The round, or one that nobody traces."""
        return self._open.get(challenge_id, NO_ROUND)

    def end(self, challenge_id: str, outcome: str) -> None:
        """A round is over."""
        if opened := self._open.pop(challenge_id, None):
            opened.end(outcome)

    def end_all(self, outcome: str) -> None:
        """The stream is over."""
        for challenge_id in tuple(self._open):
            self.end(challenge_id, outcome)


def use(tracer: Tracer | None) -> None:
    """Give all further spans to `tracer`; None turns tracing off."""
    _tracing.tracer = tracer


def exemplar() -> dict[str, str] | None:
    """What ties a measurement to the trace that it was taken in; None where none is sent."""
    tracer = _tracing.tracer
    if tracer is None:
        return None
    try:
        found = tracer.sampled_trace()
    except Exception:  # noqa: BLE001 -- a link is not worth the measurement
        return None
    return {"trace_id": found} if found else None


def _span(
    name: Span, attributes: Mapping[str, Attribute], above: RemoteSpan | None
) -> AbstractContextManager[ActiveSpan]:
    tracer = _tracing.tracer
    if tracer is None:
        return _NO_SPAN
    try:
        return tracer.span(name, _dotted(attributes), above)
    except Exception:  # noqa: BLE001 -- a span is not worth what it is about
        return _NO_SPAN


def _round(
    name: Span, challenge_id: str, attributes: Mapping[str, Attribute], *, first: bool
) -> Round:
    tracer = _tracing.tracer
    if tracer is None:
        return NO_ROUND
    try:
        return tracer.round(name, RoundIds(challenge_id), _dotted(attributes), first=first)
    except Exception:  # noqa: BLE001 -- a span is not worth what it is about
        return NO_ROUND


def _dotted(attributes: Mapping[str, Attribute]) -> dict[str, Attribute]:
    return {key.replace("_", "."): value for key, value in attributes.items()}
