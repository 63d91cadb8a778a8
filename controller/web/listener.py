"""HTTP listeners: TLS, bounds on connections and on the time they may take, and what is reported.

A connection that brings no whole request is ended after seconds, and gives way when there is no
room for another. What a client does is counted and never an error of the controller. What is
answered is the business of the application that a listener is given.
"""

import asyncio
import logging
import math
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final, Protocol, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.log import server_logger

from controller.web.handshakes import (
    ClientCertificates,
    HandshakeFailure,
    HandshakeRecord,
    failure_of,
    reason_of,
)
from controller.web.tls import Reload, Roots, ServingTls, TlsFiles
from gpuwarden.connections import ConnectionBounds, ConnectionTable, Phase
from gpuwarden.settings.values import Address

_BACKLOG: Final = 128
_SWEEPS: Final = 4
"""Looks for overdue connections within the shortest deadline."""
_LONGEST_SWEEP_S: Final = 1.0
_EARLY_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Bounds on what connections can take."""

    idle_s: float = 120.0
    """Between two requests; longer than Go's clients keep idle connections."""
    handshake_s: float = 5.0
    head_s: float = 5.0
    """From the connection, its handshake or the first byte to the end of a request's head."""
    busy_s: float = 60.0
    """From there until the answer is made, the receipt of the body included."""
    connections: int = 256


class ConnectionEnd(StrEnum):
    """Why a listener ended a connection."""

    NO_REQUEST = "no-request"
    """No whole head of a request in time."""
    IDLE = "idle"
    SLOW = "slow"
    """The answer took too long."""
    GAVE_WAY = "gave-way"
    """It brought no whole request, and there was no room for a newer one."""
    FULL = "full"
    """There was no room, and every other connection was being answered."""


_ENDS: Final = {
    Phase.WAITING: ConnectionEnd.NO_REQUEST,
    Phase.IDLE: ConnectionEnd.IDLE,
    Phase.BUSY: ConnectionEnd.SLOW,
}


class ListenerObserver(Protocol):
    """Takes measurements, and entries for the log; the recorder that implements it is above."""

    def certificate_changed(self, error: str | None) -> None:
        """The files have changed and were taken, or refused with an error (each error once)."""

    def handshake_completed(self) -> None:
        """A TLS handshake ended well."""

    def handshake_failed(self, cause: HandshakeFailure, peer: str, reason: str) -> None:
        """One did not; `peer` is the client's address."""

    def connection_cut(self, cause: ConnectionEnd, peer: str) -> None:
        """The listener ended a connection."""

    def malformed(self, reason: str) -> None:
        """A client's framing could not be read, or its body ended early."""


class _Connection(asyncio.Protocol):
    """One connection: between the transport and aiohttp's protocol, which it passes all on to."""

    def __init__(self, listener: "HttpServer") -> None:
        self._listener = listener
        self._raw: asyncio.Transport | None = None
        self._handshake: asyncio.Task[None] | None = None
        self._handler: asyncio.Protocol | None = None
        self._early = bytearray()
        """What came before somebody could take it: TLS at first, then the handler."""
        self._cut: ConnectionEnd | None = None
        self.peer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept it, or not; then TLS, then aiohttp."""
        raw = self._raw = cast("asyncio.Transport", transport)
        self.peer = _shown(raw.get_extra_info("peername"))
        if not self._listener.admit(self):
            raw.abort()
        elif self._listener.tls is None:
            self._serve(raw)
        else:
            self._handshake = asyncio.create_task(self._shake_hands(raw, self._listener.tls))

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        if self._handler is not None:
            self._listener.heard(self)
            self._handler.data_received(data)
        elif self._raw is None or len(self._early) + len(data) <= _EARLY_BYTES:
            self._early += data
        elif self._raw.get_protocol() is self:  # no hello is that long
            self.cut(ConnectionEnd.NO_REQUEST)
        else:  # TLS gives a request on some turns before it says that hands are shaken
            self._early += data
            self._raw.pause_reading()

    def eof_received(self) -> bool | None:
        """Pass it on."""
        return None if self._handler is None else self._handler.eof_received()

    def pause_writing(self) -> None:
        """Pass it on."""
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        if self._handler is not None:
            self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on, and forget the connection."""
        self._listener.forget(self)
        if self._handler is not None:
            handler, self._handler = self._handler, None
            self._listener.unbind(handler)
            handler.connection_lost(exc)

    def cut(self, cause: ConnectionEnd | None) -> None:
        """End it at once, whatever it does; None: the process ends."""
        self._cut = cause
        self._listener.forget(self)
        if self._handshake is not None:
            self._handshake.cancel()
        if self._raw is not None:
            self._raw.abort()

    async def _shake_hands(self, raw: asyncio.Transport, tls: ServingTls) -> None:
        loop, secure, error = asyncio.get_running_loop(), None, None
        starting = loop.create_task(
            loop.start_tls(
                raw,
                self,
                tls.context,
                server_side=True,
                ssl_handshake_timeout=self._listener.limits.handshake_s,
            )
        )
        loop.call_soon(self._pass_hello_on, raw)
        try:
            secure = await starting
        except asyncio.CancelledError:
            if self._cut in _CUT_AS:
                self._fail(_CUT_AS[self._cut], f"ended by this side: {self._cut}")
            raise
        except Exception as found:  # noqa: BLE001 -- whatever a client sends, it is the client's
            error = found
        finally:
            self._handshake = None
        if secure is None or secure.is_closing():
            raw.abort()
            self._listener.forget(self)
            self._fail(failure_of(error), reason_of(error))
            return
        self._raw = secure
        self._listener.greeted(self, secure.get_extra_info("peercert"))
        self._serve(secure)
        if not raw.is_closing():
            raw.resume_reading()

    def _pass_hello_on(self, raw: asyncio.Transport) -> None:
        """Give TLS what came before it took the connection over, which reads nothing meanwhile.

        uvloop reads a new connection in the same turn in which it is made.
        """
        if raw.get_protocol() is self:  # it has ended before TLS began
            return
        tls = cast("asyncio.BufferedProtocol", raw.get_protocol())
        while self._early:
            room = memoryview(cast("bytearray", tls.get_buffer(len(self._early))))
            count = min(len(room), len(self._early))
            room[:count] = self._early[:count]
            del self._early[:count]
            tls.buffer_updated(count)

    def _fail(self, cause: HandshakeFailure, reason: str) -> None:
        self._listener.refused(cause, self.peer, reason)

    def _serve(self, transport: asyncio.Transport) -> None:
        handler = self._handler = self._listener.bind(self)
        handler.connection_made(transport)
        if self._early:
            early, self._early = bytes(self._early), bytearray()
            self.data_received(early)


def _subject(certificate: dict[str, Any]) -> str:
    """Of a certificate as `ssl` gives it: `commonName=kube-apiserver, …`."""
    return ", ".join(f"{key}={value}" for ((key, value),) in certificate.get("subject", ()))


def _utc_now() -> datetime:
    return datetime.now(UTC)


_CUT_AS: Final[dict[ConnectionEnd | None, HandshakeFailure]] = {
    ConnectionEnd.NO_REQUEST: HandshakeFailure.TIMEOUT,
    ConnectionEnd.GAVE_WAY: HandshakeFailure.GAVE_WAY,
}


class HttpServer:
    """Listens, and takes changed certificate files into use."""

    def __init__(
        self,
        application: web.Application,
        *,
        name: str,
        address: Address,
        tls: TlsFiles | None,
        limits: ConnectionLimits,
        observer: ListenerObserver,
        client_roots: Callable[[], Roots] | None = None,
        reload_s: float = 10.0,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """Raises TlsFilesError before anything listens; `client_roots` and `now` as in ServingTls.

        `name` is the listener's, as in the settings. Files that may come later are read by `start`.
        """
        self.name = name
        self.limits = limits
        self._open_tls = None if tls is None else partial(ServingTls, tls, client_roots, now)
        self.tls: ServingTls | None = None
        """None without TLS, and before `start` where the files may come later."""
        if self._open_tls is not None and tls is not None and not tls.may_come_later:
            self.tls = self._open_tls()
        self._address = address
        self._observer = observer
        self._reload_s = reload_s
        self._reported: str | None = None
        self._handshakes = HandshakeRecord()
        self._now = now or _utc_now
        is_demanded = tls is not None and tls.client_ca is not None
        self.clients = ClientCertificates() if is_demanded else None
        """None where no client has to show a certificate of long life."""
        self._connections: ConnectionTable[_Connection] = ConnectionTable(
            ConnectionBounds(
                connections=limits.connections,
                head_s=limits.head_s,
                idle_s=limits.idle_s,
                busy_s=limits.busy_s,
            )
        )
        self._bound: dict[Any, _Connection] = {}
        """By aiohttp's protocol of each."""
        self._sweeping: asyncio.TimerHandle | None = None
        application.middlewares.insert(0, self._note_request)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_ClientFaults(observer),
            handle_signals=False,
            keepalive_timeout=limits.idle_s,
            lingering_time=1.0,
            auto_decompress=False,
        )
        self._server: asyncio.Server | None = None
        self._leaving: asyncio.Event | None = None
        """Set when no connection is left; None before `leave`."""

    def __len__(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    @property
    def busy(self) -> int:
        """How many of them are being answered."""
        return self._connections.count(Phase.BUSY)

    async def start(self) -> tuple[str, int]:
        """Listen; returns the address that was bound (port 0 means any free one).

        Raises OSError, and TlsFilesError for files that may come later and have not.
        """
        if self._open_tls is not None and self.tls is None:
            self.tls = self._open_tls()
        await self._runner.setup()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self),
            self._address.host or None,
            self._address.port,
            backlog=_BACKLOG,
        )
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    async def watch_certificates(self) -> None:
        """Take changed certificate files into use until cancelled; returns at once without TLS."""
        while self.tls is not None:
            await asyncio.sleep(self._reload_s)
            self.reload_certificates()

    def reload_certificates(self) -> Reload:
        """Look at the certificate files now."""
        if self.tls is None:
            return Reload.UNCHANGED
        found, error = self.tls.reload(), self.tls.last_error
        if found is Reload.CHANGED or (error is not None and error != self._reported):
            self._observer.certificate_changed(error)
        self._reported = error
        return found

    def warnings(self) -> tuple[str, ...]:
        """What somebody should know of this listener: its certificate, and refused clients."""
        if self.tls is None:
            return ()
        found = [self.tls.warning(), self._handshakes.warning()]
        if self.clients is not None:
            found.append(self.clients.warning(self._now()))
        return tuple(f"{self.name}: {text}" for text in found if text is not None)

    async def leave(self, within_s: float) -> None:
        """Answer on, and end each connection with its next answer (RFC 9112 section 9.6).

        A client that keeps connections goes elsewhere with its next request, and loses none: one
        that is on its way while this side closes an idle connection has no answer. Ends when no
        connection is left, at the latest after `within_s`.
        """
        self._leaving = asyncio.Event()
        if len(self._connections):
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._leaving.wait()

    async def stop(self, grace_s: float = 3.0) -> None:
        """Stop listening, let running answers end within `grace_s`, then close everything."""
        if self._server is None:
            await self._runner.cleanup()
            return
        self._server.close()
        self._handlers().pre_shutdown()
        await self._handlers().shutdown(grace_s)
        await self._runner.cleanup()
        for connection in self._connections.all():
            connection.cut(None)
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._server = None

    @property
    def client_ends(self) -> datetime | None:
        """When the first certificate of its clients ends; None where none was shown."""
        return None if self.clients is None else self.clients.ends

    @property
    def has_tls(self) -> bool:
        """Whether it speaks TLS and nothing else."""
        return self._open_tls is not None

    def seconds_left(self) -> float:
        """Until the chain in use ends; NaN before there is one."""
        return math.nan if self.tls is None else self.tls.seconds_left()

    def client_seconds_left(self) -> float:
        """Until the first certificate of its clients ends; NaN where none was shown."""
        return math.nan if self.clients is None else self.clients.seconds_left(self._now())

    # --- what connections tell

    def admit(self, connection: _Connection) -> bool:
        """Take a new connection in, in the place of another if need be; False: there is no room."""
        table = self._connections
        if table.is_full:
            other = table.in_the_way()
            if other is None:
                self._observer.connection_cut(ConnectionEnd.FULL, connection.peer)
                return False
            self._cut(other, ConnectionEnd.GAVE_WAY)
        table.add(connection, self._time())
        self._sweep_later()
        return True

    def greeted(self, connection: _Connection, certificate: dict[str, Any] | None) -> None:
        """Its handshake ended well, with the client's certificate as `ssl` gives it.

        Now it has the time of a head.
        """
        self._handshakes.accept()
        if self.clients is not None and certificate:
            ends = datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)
            host = connection.peer.rpartition(":")[0]
            self.clients.show(host, _subject(certificate), ends, self._now())
        self._observer.handshake_completed()
        self._connections.move(connection, Phase.WAITING, self._time())

    def refused(self, cause: HandshakeFailure, peer: str, reason: str) -> None:
        """Its handshake failed."""
        self._handshakes.refuse(cause, peer, reason)
        self._observer.handshake_failed(cause, peer, reason)

    def heard(self, connection: _Connection) -> None:
        """Bytes came: of a request, if it was idle."""
        if self._connections.phase(connection) is Phase.IDLE:
            self._connections.move(connection, Phase.WAITING, self._time())

    def forget(self, connection: _Connection) -> None:
        """It has ended."""
        self._connections.remove(connection)
        if self._leaving is not None and not len(self._connections):
            self._leaving.set()

    def bind(self, connection: _Connection) -> asyncio.Protocol:
        """Aiohttp's protocol for it."""
        handler = self._handlers()()
        self._bound[handler] = connection
        return handler

    def unbind(self, handler: asyncio.Protocol) -> None:
        """It has ended."""
        self._bound.pop(handler, None)

    @web.middleware
    async def _note_request(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        connection = self._bound.get(request.protocol)
        if connection is None:
            return await handler(request)
        self._connections.move(connection, Phase.BUSY, self._time())
        try:
            answer = await handler(request)
        except web.HTTPException as found:
            self._end_with(found)
            raise
        finally:
            self._connections.move(connection, Phase.IDLE, self._time())
        self._end_with(answer)
        return answer

    def _end_with(self, answer: web.StreamResponse) -> None:
        if self._leaving is not None:
            answer.force_close()

    # --- deadlines

    def _cut(self, connection: _Connection, cause: ConnectionEnd) -> None:
        connection.cut(cause)
        self._observer.connection_cut(cause, connection.peer)

    def _sweep_later(self) -> None:
        if self._sweeping is None and len(self._connections):
            limits = self.limits
            shortest = min(limits.head_s, limits.idle_s, limits.busy_s)
            self._sweeping = asyncio.get_running_loop().call_later(
                min(shortest / _SWEEPS, _LONGEST_SWEEP_S), self._sweep
            )

    def _sweep(self) -> None:
        self._sweeping = None
        for connection, phase in self._connections.overdue(self._time()):
            self._cut(connection, _ENDS[phase])
        self._sweep_later()

    def _time(self) -> float:
        return asyncio.get_running_loop().time()

    def _handlers(self) -> web.Server:
        return cast("web.Server", self._runner.server)  # there since `setup`


class _ClientFaults(logging.Logger):
    """aiohttp's log of exceptions: what a client caused is counted, the rest stays an error."""

    def __init__(self, observer: ListenerObserver) -> None:
        super().__init__("aiohttp.server")
        self.parent = server_logger
        self._observer = observer

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:  # noqa: ANN401 -- as in `logging`
        """Log it, unless it is the client's."""
        if not self._is_clients(exc_info):
            super().exception(msg, *args, exc_info=exc_info, **more)

    def debug(self, msg: object, *args: object, exc_info: Any = None, **more: Any) -> None:  # noqa: ANN401 -- as in `logging`
        """What is no HTTP at all comes here."""
        if not self._is_clients(exc_info):
            super().debug(msg, *args, exc_info=exc_info, **more)

    def _is_clients(self, error: object) -> bool:
        found = isinstance(error, BROKEN_BY_CLIENT)
        if found:
            self._observer.malformed(f"{type(error).__name__}: {error}")
        return found


BROKEN_BY_CLIENT: Final = (HttpProcessingError, web.RequestPayloadError)
"""What aiohttp raises for framing that cannot be read."""


def _shown(peername: object) -> str:
    match peername:
        case (str(host), int(port), *_):
            return str(Address(host, port))
    return "unknown"
