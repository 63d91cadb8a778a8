"""Server.

Holds: failure, request reader, session facts, interceptor, local socket, server.
"""

import asyncio
import inspect
import os
import socket
import stat
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol, TypeAlias

import grpc
from cryptography import x509
from google.protobuf.message import DecodeError as WireError
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from controller.access import Caller, CallerKind, Occupancy, authorize, caller_of, calling
from controller.verifier.context import StreamFacts
from gpuwarden.clock import Clock
from gpuwarden.evidence.canonical import sha256_hex
from gpuwarden.identity.chain import ChainError, parse_chain, uri_sans
from gpuwarden.identity.peer import PeerFacts, peer_facts
from gpuwarden.identity.spiffe_id import SpiffeIdError
from gpuwarden.reasons import STEP_OF, ReasonCode, Refusal
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.names import Event, Span
from gpuwarden.telemetry.tracing import span
from gpuwarden.wire.error_metadata import FIELD_KEY, REASON_KEY
from gpuwarden.wire.transport import server_options
from gpuwarden.wire.v1 import (
    attestation_pb2,
    fleet_pb2,
    operator_pb2,
    placement_pb2,
    support_pb2,
)

# --- failure
# A refusal as a gRPC status: the one place where reason codes become status codes.
#
# Clients get the reason code in trailing metadata (`gpuwarden/wire/error_metadata.py`)
# and in front of the message. Must not decide anything.

_LAST_IDENTITY_STEP = 4
_LAST_ROLE_STEP = 5
_LIMIT_STEP = 1

_STATUS: dict[ReasonCode, grpc.StatusCode] = {
    ReasonCode.ROLE_DENIED: grpc.StatusCode.PERMISSION_DENIED,
    ReasonCode.REQ_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ReasonCode.NODE_UNKNOWN: grpc.StatusCode.NOT_FOUND,
    ReasonCode.CLASS_UNKNOWN: grpc.StatusCode.NOT_FOUND,
    ReasonCode.POD_UNKNOWN: grpc.StatusCode.NOT_FOUND,
    ReasonCode.CONTROLLER_NOT_READY: grpc.StatusCode.UNAVAILABLE,
    ReasonCode.AUDIT_UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ReasonCode.ENROLLMENT_STALE: grpc.StatusCode.UNAVAILABLE,
    ReasonCode.DIRECTORY_STALE: grpc.StatusCode.UNAVAILABLE,
    ReasonCode.STREAM_SUPERSEDED: grpc.StatusCode.ABORTED,
    ReasonCode.MSG_TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ReasonCode.MSG_MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    ReasonCode.TYPE_UNEXPECTED: grpc.StatusCode.INVALID_ARGUMENT,
    ReasonCode.PROTOCOL_UNSUPPORTED: grpc.StatusCode.UNIMPLEMENTED,
}


class AbortableContext(Protocol):
    """What this module needs of a `grpc.aio.ServicerContext`."""

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: tuple[tuple[str, str], ...] = (),
    ) -> NoReturn:
        """End the call with a status."""


def status_of(code: ReasonCode) -> grpc.StatusCode:
    """The gRPC status that fits a reason code."""
    if code in _STATUS:
        return _STATUS[code]
    step = STEP_OF.get(code, 0)
    if step == _LIMIT_STEP:
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    if _LIMIT_STEP < step <= _LAST_IDENTITY_STEP:
        return grpc.StatusCode.UNAUTHENTICATED
    if step == _LAST_ROLE_STEP:
        return grpc.StatusCode.PERMISSION_DENIED
    return grpc.StatusCode.FAILED_PRECONDITION


async def abort_with(context: AbortableContext, refusal: Refusal, *, field: str = "") -> NoReturn:
    """End the call with the status, message and metadata of `refusal`; never returns."""
    metadata: tuple[tuple[str, str], ...] = ((REASON_KEY, refusal.code.value),)
    if field:
        metadata = (*metadata, (FIELD_KEY, field))
    text = f"{refusal.code}: {refusal.detail}" if refusal.detail else refusal.code.value
    await context.abort(status_of(refusal.code), text, metadata)


# --- request reader
# Reads requests of a stream without ever cancelling a read.
#
# A session waits for the same request again and again, each time until something else
# is due; a wait that cancelled its read could lose a request that was just arriving. So
# a read runs in a task of its own: whoever stops waiting just leaves it, and it ends by
# itself when the call does. (Cancelling one did no harm to gRPC in a run under valgrind,
# 17 reads cancelled while pending: this is about requests, not about memory.)


class ReadableContext(Protocol):
    """What this module needs of a `grpc.aio.ServicerContext`."""

    async def read(self) -> Any:  # noqa: ANN401 - any message, or grpc.aio.EOF
        """The next request."""


_LEFT: Final[set[asyncio.Task[Any]]] = set()
"""Reads that nobody waits for any more; kept alive until their calls are over."""


class RequestReader:
    """One reader for one call."""

    def __init__(
        self, context: ReadableContext, ended: Callable[[object], None] | None = None
    ) -> None:
        """`ended` is called when a read is over."""
        self._context = context
        self._ended = ended
        self._reading: asyncio.Task[Any] | None = None

    def pending(self) -> asyncio.Task[Any]:
        """The read that runs now, begun if there is none; never cancel it."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._context.read())
            if self._ended is not None:
                self._reading.add_done_callback(self._ended)
        return self._reading

    def take(self) -> Any:  # noqa: ANN401 - any message, or grpc.aio.EOF
        """The result of the read that has ended; the next `pending` begins another."""
        reading = self.pending()
        self._reading = None
        return reading.result()

    def leave(self) -> None:
        """Wait no more; the read ends with its call."""
        if self._reading is not None:
            _LEFT.add(self._reading)
            self._reading.add_done_callback(_forget)
            self._reading = None


async def settled(seconds: float) -> bool:
    """Wait until the reads that were left are over; False if some are not in time.

    To be called when a server has stopped and before its event loop closes, which
    would cancel them.
    """
    loop = asyncio.get_running_loop()
    left = {reading for reading in _LEFT if reading.get_loop() is loop}
    if left:
        _, left = await asyncio.wait(left, timeout=seconds)
    return not left


async def requests(context: ReadableContext) -> AsyncIterator[Any]:
    """All requests of a call, in the place of gRPC's own iterator."""
    reader = RequestReader(context)
    try:
        while True:
            await asyncio.wait({reader.pending()})
            message = reader.take()
            if message is aio.EOF:
                return
            yield message
    finally:
        reader.leave()


def _forget(reading: asyncio.Task[Any]) -> None:
    _LEFT.discard(reading)
    if not reading.cancelled():
        reading.exception()  # looked at, so that nobody is told about it


# --- session facts
# gRPC's `auth_context` as the facts that the Verifier judges a stream by.
#
# The names are read twice, once by TLS and once from the leaf itself, so that the
# Verifier can see whether both mean the same peer. Never raises, decides nothing.

_ALONE = Occupancy(0, 0, rate_exceeded=False)


def stream_facts(
    auth_context: Mapping[str, Iterable[bytes]], occupancy: Occupancy = _ALONE
) -> StreamFacts:
    """What TLS says about the session, with what else is open on this server."""
    peer = _peer(auth_context)
    return StreamFacts(
        chain=peer.chain,
        uri_sans=_names_in_leaf(peer),
        peer_spiffe_id=peer.uri_sans[0] if len(peer.uri_sans) == 1 else None,
        resumed=peer.resumed,
        open_streams=occupancy.open_streams,
        peer_streams=occupancy.peer_streams,
        rate_exceeded=occupancy.rate_exceeded,
    )


def peer_key(auth_context: Mapping[str, Iterable[bytes]]) -> str:
    """Under which name a peer's usage is counted: its one SPIFFE ID, else its certificate."""
    peer = _peer(auth_context)
    if len(peer.uri_sans) == 1:
        return peer.uri_sans[0]
    return sha256_hex(peer.leaf_der) if peer.leaf_der else ""


def _peer(auth_context: Mapping[str, Iterable[bytes]]) -> PeerFacts:
    return peer_facts({name: tuple(values) for name, values in auth_context.items()})


def _names_in_leaf(peer: PeerFacts) -> tuple[str, ...]:
    try:
        return uri_sans(parse_chain(peer.chain)[0])
    except (ChainError, SpiffeIdError):
        # The leaf is refused for its chain; its names as TLS has read them let step 4 say so.
        return peer.uri_sans


# --- interceptor
# Authenticates and authorizes every call before its handler runs.
#
# The only way to a handler leads through here, for streams too: the handler itself
# is wrapped, because only the call's context knows the peer. No request is read
# before that, no caller may have more than its share of calls open, and calls whose
# identity ends are ended with it. Must not know what any method does.

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # not generic at run time
MaybeHandler: TypeAlias = "Handler | None"
Behavior = Callable[[Any, Any], Any]
Context = aio.ServicerContext[Any, Any]
Receive = Callable[[Context], Awaitable[object]]
Deserialize = Callable[[bytes], object]

CALLS_PER_CALLER: Final = 96
"""Open at a time, attestation streams (at most 64) included."""
REQUEST_SECONDS: Final = 10.0
"""For the one request of a call that has only one."""


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

    def __init__(
        self,
        *,
        authenticate: Authenticate,
        observer: CallObserver,
        clock: Clock,
        calls_per_caller: int = CALLS_PER_CALLER,
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        self._authenticate = authenticate
        self._observer = observer
        self._clock = clock
        self._calls_per_caller = calls_per_caller
        self._request_seconds = request_seconds
        self._open: Counter[str] = Counter()

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
        receive, at_read = self._receiving(handler)

        async def unary(_: object, context: Context) -> Any:  # noqa: ANN401 - any message
            async with self._admitted(method, context):
                with span(Span.RPC, method=method):
                    return await inner(await receive(context), context)

        return grpc.stream_unary_rpc_method_handler(unary, at_read, handler.response_serializer)

    def _guarded_stream(self, handler: Handler, method: str) -> Handler:
        inner = _behavior(handler)
        receive, at_read = self._receiving(handler)

        async def stream(_: object, context: Context) -> None:
            async with self._admitted(method, context):
                answer = inner(await receive(context), context)
                if not inspect.isasyncgen(answer):
                    await answer
                    return
                async with aclosing(answer):
                    async for message in answer:
                        await context.write(message)

        return grpc.stream_stream_rpc_method_handler(stream, at_read, handler.response_serializer)

    def _receiving(self, handler: Handler) -> tuple[Receive, Deserialize | None]:
        """How a handler's request is received behind the guard, and what gRPC may decode by itself.

        gRPC reads and decodes a single request before it calls the handler, so before
        anybody is authorized, and waits for it without end. So to gRPC every call is one
        with a stream of requests, which is the same on the wire: those are read when asked.
        """
        deserialize = handler.request_deserializer
        if handler.request_streaming:
            return _all_requests, deserialize

        async def receive(context: Context) -> object:
            request = await self._one_request(context)
            try:
                return request if deserialize is None else deserialize(request)
            except WireError:
                await abort_with(context, Refusal(ReasonCode.MSG_MALFORMED, "no such message"))

        return receive, None

    async def _one_request(self, context: Context) -> bytes:
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
    async def _admitted(self, method: str, context: Context) -> AsyncIterator[None]:
        now = datetime.fromtimestamp(self._clock.wall_ns() / 1e9, UTC)
        found = self._authenticate(context, now)
        caller = None if isinstance(found, Refusal) else found
        refusal = found if isinstance(found, Refusal) else self._against(method, found)
        self._observer.called(method, caller, refusal)
        if refusal is not None:
            await abort_with(context, refusal)
        deadline = asyncio.timeout(_remaining(caller, now))
        try:
            with self._counted(caller), calling(caller):
                async with deadline:
                    yield
        except TimeoutError:
            if not deadline.expired():
                raise
            await abort_with(context, Refusal(ReasonCode.SVID_EXPIRED, "the caller's SVID ended"))
        except (aio.AbortError, asyncio.InvalidStateError):
            raise  # the call's own end; or it has ended already
        except Exception:  # noqa: BLE001 - gRPC itself would send the exception's text to the caller
            logger("rpc").error(Event.RPC_FAILED, method=method, exc_info=True)
            await context.abort(grpc.StatusCode.INTERNAL, "a fault of the controller; see its log")

    def _against(self, method: str, caller: Caller) -> Refusal | None:
        if refusal := authorize(method, caller.kind):
            return refusal
        if self._open[caller.name] >= self._calls_per_caller:
            detail = f"{self._calls_per_caller} calls of this caller are open"
            return Refusal(ReasonCode.LIMIT_STREAMS, detail)
        return None

    @contextmanager
    def _counted(self, caller: Caller | None) -> Iterator[None]:
        name = "" if caller is None else caller.name
        self._open[name] += 1
        try:
            yield
        finally:
            self._open[name] -= 1
            if not self._open[name]:
                del self._open[name]


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


async def _all_requests(context: Context) -> object:
    return requests(context)


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


# --- local socket
# Claims the path of the controller's unix socket before gRPC binds it.
#
# A socket left behind by a dead process is replaced; one that a living server
# answers on, or a file that is no socket, is never touched. Must not serve.

_MAX_PATH_BYTES: Final = 107
_CONNECT_SECONDS: Final = 1.0
_OWNER_ONLY: Final = 0o177


class SocketInUseError(OSError):
    """The path cannot be had; says why and what to do."""


def claim_socket(path: Path) -> None:
    """Make `path` free for binding, or raise SocketInUseError."""
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise SocketInUseError(f"listen.local: path longer than {_MAX_PATH_BYTES} bytes: {path}")
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise SocketInUseError(f"listen.local: {path}: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise SocketInUseError(f"listen.local: {path} exists and is not a socket")
    if _answers(path):
        raise SocketInUseError(f"listen.local: another process serves {path}")
    path.unlink(missing_ok=True)


@contextmanager
def owner_only() -> Iterator[None]:
    """Whatever is created inside belongs to the owner alone (mode 0600), from its first moment."""
    before = os.umask(_OWNER_ONLY)
    try:
        yield
    finally:
        os.umask(before)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


# --- server
# Two gRPC servers: mTLS for agents and readers, a unix socket for who is inside already.
#
# Wires services, interceptor and bounds together; decides nothing. Ports may be 0:
# `address` tells what was bound.

_STREAMS_PER_CONNECTION: Final = 32
_HANDSHAKE_MS: Final = 10_000
_CONNECTION_AGE_MS: Final = 31 * 60 * 1000
_CONNECTION_AGE_GRACE_MS: Final = 60 * 1000
_SETTLE_SECONDS: Final = 0.5
_IDLE_MS: Final = 5 * 60 * 1000

ATTESTATION: Final = attestation_pb2.DESCRIPTOR.services_by_name["AttestationService"].full_name
FLEET: Final = fleet_pb2.DESCRIPTOR.services_by_name["FleetService"].full_name
OPERATOR: Final = operator_pb2.DESCRIPTOR.services_by_name["OperatorService"].full_name
PLACEMENT: Final = placement_pb2.DESCRIPTOR.services_by_name["PlacementService"].full_name
SUPPORT: Final = support_pb2.DESCRIPTOR.services_by_name["SupportService"].full_name

AddService = Callable[[aio.Server], None]


@dataclass(frozen=True, slots=True)
class RpcServer:
    """A started or startable server with its health service and the address it has."""

    server: aio.Server
    health: HealthServicer
    address: str

    async def start(self) -> None:
        """Begin to serve."""
        await self.server.start()

    async def stop(self, grace_seconds: float) -> None:
        """Say NOT_SERVING, refuse new calls, let running ones end within the grace, then cut."""
        await self.health.enter_graceful_shutdown()
        await self.server.stop(grace_seconds)
        await settled(_SETTLE_SECONDS)


class ListenError(OSError):
    """An address could not be bound; names the setting."""


def agents_server(
    *,
    address: str,
    credentials: grpc.ServerCredentials,
    interceptor: AuthorizationInterceptor,
    services: tuple[AddService, ...],
    max_calls: int,
) -> RpcServer:
    """The mTLS server of all our services, health and reflection.

    More than `max_calls` calls at a time are refused with RESOURCE_EXHAUSTED.
    """
    server = aio.server(
        interceptors=(interceptor,),
        options=_options(connection_age=True),
        maximum_concurrent_rpcs=max_calls,
    )
    for add in services:
        add(server)
    ours = (ATTESTATION, FLEET, OPERATOR, PLACEMENT, SUPPORT)
    names = (*ours, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    servicer = _add_health(server)
    host, _, _ = address.rpartition(":")
    try:
        port = server.add_secure_port(address if host else f"[::]{address}", credentials)
    except RuntimeError as error:
        raise ListenError(f"listen.agents: cannot bind {address}") from error
    return RpcServer(server, servicer, f"{host or '[::]'}:{port}")


def local_server(
    *, path: Path, interceptor: AuthorizationInterceptor, services: tuple[AddService, ...]
) -> RpcServer:
    """The server on a unix socket of mode 0600; the folder must exist."""
    claim_socket(path)
    server = aio.server(interceptors=(interceptor,), options=_options(connection_age=False))
    for add in services:
        add(server)
    servicer = _add_health(server)
    try:
        with owner_only():
            server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise ListenError(f"listen.local: cannot bind {path}") from error
    return RpcServer(server, servicer, f"unix:{path}")


async def set_serving(server: RpcServer, *, ready: bool) -> None:
    """Publish readiness under the empty service name."""
    answer = health_pb2.HealthCheckResponse
    await server.health.set("", answer.SERVING if ready else answer.NOT_SERVING)


def _add_health(server: aio.Server) -> HealthServicer:
    servicer = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    return servicer


def _options(*, connection_age: bool) -> tuple[tuple[str, int], ...]:
    aging = (
        ("grpc.max_connection_age_ms", _CONNECTION_AGE_MS),
        ("grpc.max_connection_age_grace_ms", _CONNECTION_AGE_GRACE_MS),
        ("grpc.max_connection_idle_ms", _IDLE_MS),
    )
    return (
        *server_options(),
        ("grpc.max_concurrent_streams", _STREAMS_PER_CONNECTION),
        ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
        *(aging if connection_age else ()),
    )
