"""Authenticates and authorizes every call before its handler runs.

The only way to a handler leads through here, for streams too: the handler itself
is wrapped, because only the call's context knows the peer. No request is read
before that, no caller may have more than its share of calls open, and calls whose
identity ends are ended with it. A person's call that stays open is asked about
again. Must not know what any method does.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, Final, Protocol, TypeAlias

import grpc
from cryptography import x509
from google.protobuf.message import DecodeError as WireError
from grpc import aio

from controller.access import Caller, CallerKind, authorize, caller_of, calling
from controller.rpc.calls import Context, RequestReader, abort_with, read_requests, stream_facts
from controller.rpc.strict_messages import (
    ENVELOPE_BYTES,
    REQUEST_BYTES,
    MessageTooLargeError,
    strictly,
)
from gpuwarden.clock import Clock
from gpuwarden.moment import utc
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry.names import Span
from gpuwarden.telemetry.tracing import span
from gpuwarden.wire.error_metadata import NOTICE_KEY

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # not generic at run time
MaybeHandler: TypeAlias = "Handler | None"
Behavior = Callable[[Any, Any], Any]
Receive = Callable[[Context], Awaitable[object]]
Deserialize = Callable[[bytes], object]

CALLS_PER_CALLER: Final = 96
"""Open at a time, attestation streams (at most 64) included."""
REQUEST_SECONDS: Final = 10.0
"""For the one request of a call that has only one."""
MESSAGE_BYTES: Final = 256 * 1024
AGAIN_SECONDS: Final = 300.0


Authenticate = Callable[[Context, str, datetime], Awaitable[Caller | Refusal]]
"""The caller behind a context, for a method and as of an aware time, or why it is refused."""


class CallObserver(Protocol):
    """Takes note of every call, for metrics and audit. Must return at once.

    The recorder that implements it is above this layer.
    """

    def called(self, method: str, caller: Caller | None, refusal: Refusal | None) -> None:
        """`caller` is None where it was not recognised; `refusal` is None when allowed."""

    def hung_up(self, method: str) -> None:
        """The caller was gone before the call's end."""

    def failed(self, method: str, error: Exception) -> None:
        """A handler failed."""


_CALL_IS_OVER: Final = (aio.UsageError, aio.InternalError, asyncio.InvalidStateError)
"""What gRPC raises where a caller that has hung up is sent or asked something."""


class AuthorizationInterceptor(aio.ServerInterceptor):
    """Wraps every handler of a server; see the module."""

    def __init__(
        self,
        *,
        authenticate: Authenticate,
        observer: CallObserver,
        clock: Clock,
        calls_per_caller: int = CALLS_PER_CALLER,
        request_seconds: float = REQUEST_SECONDS,
        message_bytes: int = MESSAGE_BYTES,
        notice: str = "",
        again_s: float = AGAIN_SECONDS,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`message_bytes` bounds the payload of a message of a stream.

        `notice` comes with every answer, where it is not empty. After each `again_s` of a call it
        is asked again whether its person may make it.
        """
        self._authenticate = authenticate
        self._observer = observer
        self._clock = clock
        self._calls_per_caller = calls_per_caller
        self._request_seconds = request_seconds
        self._message_bytes = message_bytes
        self._notice = notice
        self._again_s = again_s
        self._pause = pause
        self._open: Counter[str] = Counter()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[MaybeHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> MaybeHandler:
        """The handler behind the method, authorized first; unknown methods stay UNIMPLEMENTED."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        if handler.response_streaming:
            return self._authorized_stream(handler, method)
        return self._authorized_unary(handler, method)

    def _authorized_unary(self, handler: Handler, method: str) -> Handler:
        inner = _behavior(handler)
        receive, at_read = self._receiver(handler, method)

        async def unary(_: object, context: Context) -> Any:  # noqa: ANN401 - any message
            with _abort_without_frames():
                async with self._admit(method, context):
                    with span(Span.RPC, method=method):
                        return await inner(await receive(context), context)

        return grpc.stream_unary_rpc_method_handler(unary, at_read, handler.response_serializer)

    def _authorized_stream(self, handler: Handler, method: str) -> Handler:
        inner = _behavior(handler)
        receive, at_read = self._receiver(handler, method)

        async def stream(_: object, context: Context) -> None:
            with _abort_without_frames():
                async with self._admit(method, context):
                    answer = inner(await receive(context), context)
                    if not inspect.isasyncgen(answer):
                        await answer
                        return
                    async with aclosing(answer):
                        async for message in answer:
                            await context.write(message)

        return grpc.stream_stream_rpc_method_handler(stream, at_read, handler.response_serializer)

    def _receiver(self, handler: Handler, method: str) -> tuple[Receive, Deserialize | None]:
        """How a handler's request is received, and what gRPC may decode by itself.

        gRPC reads and decodes a single request before it calls the handler, so before
        anybody is authorized, and waits for it without end. So to gRPC every call is one
        with a stream of requests, which is the same on the wire: those are read when asked.
        """
        deserialize = handler.request_deserializer
        if deserialize is not None:
            is_stream = handler.request_streaming
            allowed = self._message_bytes + ENVELOPE_BYTES if is_stream else REQUEST_BYTES
            deserialize = strictly(deserialize, method, allowed)
        if handler.request_streaming:
            return _read_all_requests, deserialize

        async def receive(context: Context) -> object:
            request = await self._read_request(context)
            try:
                return request if deserialize is None else deserialize(request)
            except MessageTooLargeError as error:
                await abort_with(context, Refusal(ReasonCode.MSG_TOO_LARGE, str(error)))
            except WireError:
                await abort_with(context, Refusal(ReasonCode.MSG_MALFORMED, "no such message"))

        return receive, None

    async def _read_request(self, context: Context) -> bytes:
        reader = RequestReader(context)
        try:
            done, _ = await asyncio.wait({reader.pending()}, timeout=self._request_seconds)
            if not done:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no request in time")
            request = reader.take()
        finally:
            reader.leave()
        if not isinstance(request, bytes):
            await abort_with(context, Refusal(ReasonCode.MSG_MALFORMED, "no request at all"))
        return request

    @asynccontextmanager
    async def _admit(self, method: str, context: Context) -> AsyncIterator[None]:
        """Authorize, and see that the end of a call is nobody's fault but a handler's.

        gRPC logs every exception that leaves a handler with a traceback, but for its own abort and
        a cancellation. So whatever follows on a caller's absence leaves as a cancellation.
        """
        try:
            async with self._authorized(method, context):
                yield
        except aio.AbortError:
            raise
        except _CALL_IS_OVER:
            self._observer.hung_up(method)
            raise asyncio.CancelledError from None

    @asynccontextmanager
    async def _authorized(self, method: str, context: Context) -> AsyncIterator[None]:
        now = utc(self._clock.wall_ns())
        found = await self._recognised(method, context, now)
        caller = None if isinstance(found, Refusal) else found
        refusal = found if isinstance(found, Refusal) else self._refusal(method, found)
        self._observer.called(method, caller, refusal)
        if refusal is not None:
            await abort_with(context, refusal)
        deadline = asyncio.timeout(_remaining(caller, now))
        ended = Refusal(_ended(caller), "the caller's certificate ended")

        def end(because: Refusal) -> None:
            nonlocal ended
            ended = because
            deadline.reschedule(asyncio.get_running_loop().time())

        try:
            with self._count(caller), calling(caller):
                async with deadline, self._asked_again(method, context, caller, end):
                    await _begin_answer(context, self._notice)
                    yield
        except TimeoutError:
            if not deadline.expired():
                raise
            await abort_with(context, ended)
        except (aio.AbortError, *_CALL_IS_OVER):
            raise  # the call's own end; or it has ended already
        except Exception as error:  # noqa: BLE001 - gRPC itself would send the exception's text to the caller
            self._observer.failed(method, error)
            await context.abort(grpc.StatusCode.INTERNAL, "a fault of the controller; see its log")

    @asynccontextmanager
    async def _asked_again(
        self, method: str, context: Context, caller: Caller | None, end: Callable[[Refusal], None]
    ) -> AsyncIterator[None]:
        """While a call of a person of the cluster runs; who has an SVID is known by its end."""
        if caller is None or caller.person is None:
            yield
            return
        task = asyncio.create_task(self._ask_again(method, context, caller, end))
        try:
            yield
        finally:
            task.cancel()

    async def _ask_again(
        self, method: str, context: Context, caller: Caller, end: Callable[[Refusal], None]
    ) -> None:
        """Until nobody says any more that the call is allowed; then it ends."""
        refusal = None
        while refusal is None:
            await self._pause(self._again_s)
            try:
                found = await self._authenticate(context, method, utc(self._clock.wall_ns()))
            except Exception as error:  # noqa: BLE001 - as in `_authorized`
                self._observer.failed(method, error)
                found = Refusal(ReasonCode.ACCESS_REVIEW_UNAVAILABLE, "see the controller's log")
            refusal = found if isinstance(found, Refusal) else authorize(method, found.kind)
        self._observer.called(method, caller, refusal)
        end(refusal)

    async def _recognised(self, method: str, context: Context, now: datetime) -> Caller | Refusal:
        try:
            return await self._authenticate(context, method, now)
        except Exception as error:  # noqa: BLE001 - as in `_authorized`
            self._observer.failed(method, error)
            await context.abort(grpc.StatusCode.INTERNAL, "a fault of the controller; see its log")

    def _refusal(self, method: str, caller: Caller) -> Refusal | None:
        if refusal := authorize(method, caller.kind):
            return refusal
        if self._open[caller.name] >= self._calls_per_caller:
            detail = f"{self._calls_per_caller} calls of this caller are open"
            return Refusal(ReasonCode.LIMIT_STREAMS, detail)
        return None

    @contextmanager
    def _count(self, caller: Caller | None) -> Iterator[None]:
        name = "" if caller is None else caller.name
        self._open[name] += 1
        try:
            yield
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]


def tls_caller(
    roots: Callable[[], Sequence[x509.Certificate]],
    *,
    trust_domain: str,
    path_prefix: str,
    connected: Callable[[str], None] = lambda _peer: None,
) -> Authenticate:
    """For the mTLS listener: the chain is verified against the roots of the moment of the call.

    `connected` gets the address behind each call.
    """

    async def authenticate(context: Context, _method: str, now: datetime) -> Caller | Refusal:
        connected(context.peer())
        facts = stream_facts(context.auth_context())
        return caller_of(facts, roots(), trust_domain=trust_domain, path_prefix=path_prefix, at=now)

    return authenticate


def local_caller(caller: Caller) -> Authenticate:
    """For a listener that only its owner can open: everybody there is `caller`."""
    if caller.kind is not CallerKind.LOCAL:
        raise ValueError(f"only a local caller needs no certificate, got {caller.kind}")

    async def authenticate(_context: Context, _method: str, _now: datetime) -> Caller:
        return caller

    return authenticate


async def _read_all_requests(context: Context) -> object:
    return read_requests(context)


@contextmanager
def _abort_without_frames() -> Iterator[None]:
    """Let a handler's end by `abort` be freed with its call.

    gRPC keeps the exception with the call, and raises it again where a handler returns. The
    frames in its traceback hold the call: they would keep each other, and all that the handler
    has had, until Python's garbage collector comes, which is seldom.
    """
    try:
        yield
    except aio.AbortError as error:
        error.__context__ = None
        error.with_traceback(None)


async def _begin_answer(context: Context, notice: str) -> None:
    """Send the initial metadata, whole even where the call is ended meanwhile.

    gRPC takes it for sent when the wait for it returns. Where that wait is cut short, by the end
    of a certificate say, `abort` sends it a second time; its core refuses both that and the
    status, and the caller would wait for ever.
    """
    metadata = ((NOTICE_KEY, notice),) if notice else ()
    sending = asyncio.ensure_future(context.send_initial_metadata(metadata))
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        await asyncio.wait({sending})
        sending.exception()  # read, because it fails where the caller has hung up
        raise


def _behavior(handler: Handler) -> Behavior:
    behavior = (
        handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    )
    if behavior is None:
        raise ValueError("a gRPC handler without behavior")
    return behavior


def _ended(caller: Caller | None) -> ReasonCode:
    is_person = caller is not None and caller.person is not None
    return ReasonCode.CERTIFICATE_INVALID if is_person else ReasonCode.SVID_EXPIRED


def _remaining(caller: Caller | None, now: datetime) -> float | None:
    if caller is None or caller.not_after is None:
        return None
    return max(0.0, (caller.not_after - now).total_seconds())
