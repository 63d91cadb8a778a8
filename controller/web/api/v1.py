"""The HTTP API v1 over aiohttp: who asks, for what, and the answer as JSON with an ETag.

Lists have pages and filters; `/v1/events` is a stream of server-sent events. Bounded in time, in
size and in what a caller may ask in a second, as the operations beside it.
"""

import asyncio
import hashlib
import math
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from controller.access import PeerUsage, TokenReviewUnavailableError
from controller.explain.fleet_rows import FleetFacts, why
from controller.fleet.view import FleetSnapshot, NodeState, NodeView
from controller.web.api.answers import ProblemError, problem_response, refused
from controller.web.api.documents import Problem
from controller.web.api.operations import Access, Operation, OperationSpec, QueryError
from controller.web.api.reading import Asked, Reading
from controller.web.api.v1_operations import V1_OPERATIONS, read_parameters
from controller.web.api.viewers import Viewer, Viewers
from controller.web.server import sent_traceparent
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import span_below

_JSON: Final = "application/json"
_KEPT: Final = {
    "Cache-Control": "private, no-cache",
    "Vary": "Authorization, Cookie",
    "X-Content-Type-Options": "nosniff",
}
_STREAMS: Final = 64
_STREAMS_OF_ONE: Final = 8
"""Of one caller, so that nobody takes those of all."""
_STREAM_S: Final = 45.0
"""Shorter than a connection may be busy. Who it is for is asked again with each."""
_LOOK_S: Final = 1.0
_HEARTBEAT_S: Final = 15.0
NO_ANSWER: Final = "no answer in time"
FAULT: Final = "a fault of the controller; see its log"

Answered = Callable[[Operation, int, float], None]
Failed = Callable[[Operation, Exception], None]


class V1:
    """Used from one event loop."""

    def __init__(
        self,
        reading: Reading,
        viewers: Viewers,
        *,
        usage: PeerUsage,
        boottime_ns: Callable[[], int],
        answered: Answered,
        failed: Failed,
        answer_s: float,
        stream_s: float = _STREAM_S,
    ) -> None:
        """`usage` counts what viewers ask, here and elsewhere."""
        self._reading = reading
        self._viewers = viewers
        self._usage = usage
        self._boottime_ns = boottime_ns
        self._answered = answered
        self._failed = failed
        self._answer_s = answer_s
        self._stream_s = stream_s
        self._streams = Counter[str]()
        self._news = _News()

    def add_routes(self, app: web.Application) -> None:
        """Its routes."""
        for operation, spec in V1_OPERATIONS.items():
            app.router.add_get(spec.path, partial(self._serve, operation, spec))

    async def demand(self, request: web.Request, access: Access = Access.VIEWER) -> Viewer:
        """Who asks; raises ProblemError where nobody may, or too often."""
        try:
            viewer = await self._viewers.view(request)
        except TokenReviewUnavailableError as error:
            raise refused(Refusal(ReasonCode.TOKEN_REVIEW_UNAVAILABLE, str(error))) from None
        if isinstance(viewer, Refusal):
            is_known = viewer.code in _OF_KNOWN
            raise refused(viewer, None if is_known else HTTPStatus.UNAUTHORIZED)
        limited = self._usage.message(viewer.key, self._boottime_ns())
        if limited is not None:
            wait_ns = self._usage.wait_ns(viewer.key)
            raise refused(limited, retry_s=math.ceil(wait_ns / NS_PER_S))
        if access is Access.READER and not viewer.reads:
            text = "the caller is not a reader: get the ClusterRole gpuwarden-inspector"
            raise refused(Refusal(ReasonCode.ROLE_DENIED, text))
        return viewer

    async def _serve(
        self, operation: Operation, spec: OperationSpec, request: web.Request
    ) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        start = loop.time()
        with span_below(Span.API, sent_traceparent(request)) as active:
            response = await self._caught(operation, spec, request)
            active.set_attribute("operation", operation.value)
            active.set_attribute("status", response.status)
        self._answered(operation, response.status, loop.time() - start)
        return response

    async def _caught(
        self, operation: Operation, spec: OperationSpec, request: web.Request
    ) -> web.StreamResponse:
        limit_s = self._stream_s if operation is Operation.V1_EVENTS else 0
        try:
            async with asyncio.timeout(self._answer_s + limit_s):
                viewer = await self.demand(request, spec.access)
                asked = _asked(spec, request, viewer)
                if operation is Operation.V1_EVENTS:
                    return await self._stream(request, viewer.key)
                return await self._respond(operation, request, asked)
        except ProblemError as found:
            return problem_response(found.status, found.problem, retry_s=found.retry_s)
        except TimeoutError:
            return problem_response(HTTPStatus.SERVICE_UNAVAILABLE, Problem(NO_ANSWER))
        except Exception as error:  # noqa: BLE001 -- whatever it is, the caller learns nothing of it
            self._failed(operation, error)
            return problem_response(HTTPStatus.INTERNAL_SERVER_ERROR, Problem(FAULT))

    async def _respond(
        self, operation: Operation, request: web.Request, asked: Asked
    ) -> web.Response:
        found = await self._reading.answer(operation, asked)
        body = await asyncio.to_thread(msgspec.json.encode, found)
        etag = hashlib.sha256(body).hexdigest()[:32]
        headers = {**_KEPT, "ETag": f'"{etag}"'}
        following = getattr(found, "next", None)
        if following is not None:
            query = {**dict(request.query), "after": following}
            headers["Link"] = f'<{request.rel_url.path}?{urlencode(query)}>; rel="next"'
        known = request.if_none_match or ()
        if any(x.value in {etag, "*"} for x in known):
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        return web.Response(body=body, content_type=_JSON, headers=headers)

    # --- server-sent events

    async def _stream(self, request: web.Request, caller: str) -> web.StreamResponse:
        if self._streams.total() >= _STREAMS:
            text = f"{_STREAMS} streams are open"
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, text)
        if self._streams[caller] >= _STREAMS_OF_ONE:
            text = f"{_STREAMS_OF_ONE} streams of this caller are open"
            raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, text)
        self._streams[caller] += 1
        response = web.StreamResponse(
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        response.content_type = "text/event-stream"
        try:
            await response.prepare(request)
            with suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(self._stream_s):
                    async for piece in self._pieces(lambda: _is_gone(request)):
                        await response.write(piece)
            with suppress(ConnectionError):
                await response.write_eof()
        finally:
            self._streams[caller] -= 1
            if not self._streams[caller]:
                del self._streams[caller]
        return response

    async def _pieces(self, is_gone: Callable[[], bool]) -> AsyncIterator[bytes]:
        """What has changed since the last look; first that the stream is there."""
        ledger = self._reading.facts().ledger
        known = self._news.look(self._reading.facts())
        yield b"retry: 2000\n: connected\n\n"
        quiet_s = 0.0
        while True:
            await asyncio.sleep(_LOOK_S)
            if is_gone():
                return
            quiet_s += _LOOK_S
            facts = self._reading.facts()
            version = self._news.look(facts)
            pieces = [_event("node", x) for x in self._news.since(known)]
            if facts.ledger.entries is not ledger.entries:
                pieces.append(_event("reservations", {}))
            known, ledger = version, facts.ledger
            if pieces:
                yield b"".join(pieces)
                quiet_s = 0.0
            elif quiet_s >= _HEARTBEAT_S:
                yield b": still here\n\n"
                quiet_s = 0.0


def _is_gone(request: web.Request) -> bool:
    """Whether its connection has ended: the stream of a page that was left counts no more."""
    return request.transport is None or request.transport.is_closing()


_OF_KNOWN: Final = frozenset({ReasonCode.ROLE_DENIED, ReasonCode.ACCESS_REVIEW_UNAVAILABLE})
"""Refusals of somebody who is known."""


def _asked(spec: OperationSpec, request: web.Request, viewer: Viewer) -> Asked:
    try:
        query, page = read_parameters(spec, request.query.items(), request.match_info)
    except QueryError as error:
        raise ProblemError(HTTPStatus.BAD_REQUEST, str(error)) from None
    return Asked(viewer, query, page)


_Said = tuple[str, str, str, int]
"""State, reason, class and number of GPUs that are not well."""
_REMEMBERED: Final = 120
"""Looks; each stream looks more often than that."""


class _News:
    """What has changed of the nodes, found once for all streams, once a second at most."""

    def __init__(self) -> None:
        self._at: tuple[FleetSnapshot, int] | None = None
        self._nodes: dict[str, tuple[NodeView, NodeState, _Said]] = {}
        self._version = 0
        self._changes: deque[tuple[int, list[str]]] = deque(maxlen=_REMEMBERED)

    def look(self, facts: FleetFacts) -> int:
        """Look at the fleet; returns the number of the last change."""
        at = (facts.fleet, facts.now_ns // NS_PER_S)
        if self._at is not None and self._at[0] is at[0] and self._at[1] == at[1]:
            return self._version
        self._at = at
        before, after = self._nodes, {}
        for name, node in facts.fleet.nodes.items():
            known, state = before.get(name), node.state(facts.now_ns)
            if known is not None and known[0] is node and known[1] is state:
                after[name] = known
            else:
                after[name] = (node, state, _said(node, state))
        self._nodes = after
        names = sorted(x for x in before.keys() | after.keys() if _of(before, x) != _of(after, x))
        if names:
            self._version += 1
            self._changes.append((self._version, names))
        return self._version

    def since(self, version: int) -> list[dict[str, str]]:
        """The nodes that have changed since, as they are now."""
        names = {name for at, found in self._changes if at > version for name in found}
        return [self._told(x) for x in sorted(names)]

    def _told(self, name: str) -> dict[str, str]:
        said = _of(self._nodes, name)
        state, reason = ("gone", "") if said is None else said[:2]
        return {"name": name, "state": state, "reason": reason}


def _of(nodes: Mapping[str, tuple[NodeView, NodeState, _Said]], name: str) -> _Said | None:
    found = nodes.get(name)
    return None if found is None else found[2]


def _said(node: NodeView, state: NodeState) -> _Said:
    accepted = node.acceptance
    gpus = () if accepted is None else accepted.gpus
    bad = sum(x.lost is not None or x.unhealthy is not None for x in gpus)
    hashed = "" if accepted is None else accepted.attestation_hash
    return state.value, why(node, state)[0], hashed, bad


def _event(kind: str, data: Mapping[str, str]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
