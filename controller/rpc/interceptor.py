"""Authenticates and authorizes every call before its handler runs.

The only way to a handler leads through here, for streams too: the handler itself
is wrapped, because only the call's context knows the peer. Calls whose identity
ends are ended with it. Must not know what any method does.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias

import grpc
from cryptography import x509
from google.protobuf.message import DecodeError as WireError
from grpc import aio

from controller.rpc.authorization import CallerKind, authorize
from controller.rpc.caller import Caller, caller_of
from controller.rpc.failure import abort_with
from controller.rpc.request_reader import requests
from controller.rpc.session_facts import stream_facts
from gpuwarden.clock import Clock
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import span

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # not generic at run time
MaybeHandler: TypeAlias = "Handler | None"
Behavior = Callable[[Any, Any], Any]
Context = aio.ServicerContext[Any, Any]
Decode = Callable[[Any, Context], Awaitable[object]]
Deserialize = Callable[[bytes], object]


class Authenticate(Protocol):
    """Says who is calling."""

    def __call__(self, context: Context, now: datetime, /) -> Caller | Refusal:
        """The caller behind `context`, or why it is nobody."""


class CallObserver(Protocol):
    """Is told about every call, for metrics and audit. Must return at once."""

    def called(self, method: str, caller: Caller | None, refusal: Refusal | None) -> None:
        """`caller` is None where nobody was recognised; `refusal` is None when allowed."""


class AuthorizationInterceptor(aio.ServerInterceptor):
    """Wraps every handler of a server; see the module."""

    def __init__(self, *, authenticate: Authenticate, observer: CallObserver, clock: Clock) -> None:
        self._authenticate = authenticate
        self._observer = observer
        self._clock = clock

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MaybeHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MaybeHandler:
        """The handler behind the method, guarded; unknown methods stay UNIMPLEMENTED."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        if handler.response_streaming:
            return self._guarded_stream(handler, method)
        return self._guarded_unary(handler, method)

    def _guarded_unary(self, handler: Handler, method: str) -> Handler:
        inner = _behavior(handler)
        decode, at_read = _decoding(handler)

        async def unary(request: Any, context: Context) -> Any:  # noqa: ANN401 - any message
            async with self._admitted(method, context):
                with span(Span.RPC, method=method):
                    return await inner(await decode(request, context), context)

        make = (
            grpc.stream_unary_rpc_method_handler
            if handler.request_streaming
            else grpc.unary_unary_rpc_method_handler
        )
        return make(unary, at_read, handler.response_serializer)

    def _guarded_stream(self, handler: Handler, method: str) -> Handler:
        inner = _behavior(handler)
        decode, at_read = _decoding(handler)

        async def stream(request: Any, context: Context) -> None:  # noqa: ANN401 - any message
            async with self._admitted(method, context):
                given = requests(context) if handler.request_streaming else request
                answer = inner(await decode(given, context), context)
                if not inspect.isasyncgen(answer):
                    await answer
                    return
                async with aclosing(answer):
                    async for message in answer:
                        await context.write(message)

        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.request_streaming
            else grpc.unary_stream_rpc_method_handler
        )
        return make(stream, at_read, handler.response_serializer)

    @asynccontextmanager
    async def _admitted(self, method: str, context: Context) -> AsyncIterator[None]:
        now = datetime.fromtimestamp(self._clock.wall_ns() / 1e9, UTC)
        found = self._authenticate(context, now)
        caller = None if isinstance(found, Refusal) else found
        refusal = found if isinstance(found, Refusal) else authorize(method, found.kind)
        self._observer.called(method, caller, refusal)
        if refusal is not None:
            await abort_with(context, refusal)
        deadline = asyncio.timeout(_remaining(caller, now))
        try:
            async with deadline:
                yield
        except TimeoutError:
            if not deadline.expired():
                raise
            await abort_with(context, Refusal(ReasonCode.SVID_EXPIRED, "the caller's SVID ended"))


def tls_caller(
    roots: Callable[[], Sequence[x509.Certificate]], *, trust_domain: str, path_prefix: str
) -> Authenticate:
    """For the mTLS listener: the chain is verified against the roots of the moment of the call."""

    def authenticate(context: Context, now: datetime, /) -> Caller | Refusal:
        facts = stream_facts(context.auth_context())
        return caller_of(facts, roots(), trust_domain=trust_domain, path_prefix=path_prefix, at=now)

    return authenticate


def local_caller(caller: Caller) -> Authenticate:
    """For a listener that only its owner can open: everybody there is `caller`."""
    if caller.kind is not CallerKind.LOCAL:
        raise ValueError(f"only a local caller needs no certificate, got {caller.kind}")

    def authenticate(_context: Context, _now: datetime, /) -> Caller:
        return caller

    return authenticate


def _decoding(handler: Handler) -> tuple[Decode, Deserialize | None]:
    """How a request is decoded behind the guard, and what gRPC may decode by itself.

    gRPC decodes a single request before it calls the handler, so before anybody is
    authorized: that is moved behind the guard. A stream is decoded as it is read.
    """
    deserialize = handler.request_deserializer
    if handler.request_streaming or deserialize is None:
        return _as_it_is, deserialize

    async def decode(request: bytes, context: Context) -> object:
        try:
            return deserialize(request)
        except WireError:
            await abort_with(context, Refusal(ReasonCode.MSG_MALFORMED, "no such message"))

    return decode, None


async def _as_it_is(request: object, _context: Context) -> object:
    return request


def _behavior(handler: Handler) -> Behavior:
    behavior = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    if behavior is None:
        raise ValueError("a gRPC handler without behavior")
    return behavior


def _remaining(caller: Caller | None, now: datetime) -> float | None:
    if caller is None or caller.not_after is None:
        return None
    return max(0.0, (caller.not_after - now).total_seconds())
