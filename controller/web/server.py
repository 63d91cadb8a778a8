"""HTTP listeners: server TLS that follows its files, bounds on connections and bodies, ops.

What is answered is the business of the application that a listener is given.
"""

import asyncio
import hashlib
import json
import mmap
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Final, cast

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from controller.operations.readiness import Readiness
from gpuwarden.settings.values import Address
from gpuwarden.telemetry.metrics import CONTENT_TYPE

# --- TLS from files

Roots = tuple[x509.Certificate, ...]


class TlsFilesError(Exception):
    """The files cannot serve; names them and says why, never what is in them."""


class Reload(Enum):
    """What reading the files found."""

    UNCHANGED = auto()
    CHANGED = auto()
    REFUSED = auto()


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: certificate chain, private key, and the CAs whose clients may connect."""

    certificate: Path
    private_key: Path = field(repr=False)
    client_ca: Path | None = None
    """None: clients are not asked for a certificate (loopback only)."""


class ServingTls:
    """Server TLS from certificate files that change while it serves.

    New handshakes get the newest files; open connections keep what they have. Files that
    do not fit together (a torn write, a wrong key) leave the old certificate in place and
    are reported. Reads files of a few kilobytes, blocking. Make it once; call `reload` from time to
    time.
    """

    def __init__(self, files: TlsFiles, client_roots: Callable[[], Roots] | None = None) -> None:
        """Load the files; raises TlsFilesError when they cannot serve now.

        With `client_roots` a client may show a certificate: each handshake has those of its
        moment. In the place of `client_ca`, which wants one of every client.
        """
        self._files = files
        self._client_roots = client_roots
        self._roots = None if client_roots is None else client_roots()
        self._digest = _digest(files)
        self._current = _context(files, self._roots)
        self.last_error: str | None = None
        """Why the newest files were refused; None while the newest are in use."""
        self.context = self._current
        self.context.sni_callback = self._choose

    def reload(self) -> Reload:
        """Take the files if they are new and fit together.

        Files that change between the digest and the load are taken as loaded, and once
        more at the next call.
        """
        try:
            digest = _digest(self._files)
            if digest == self._digest:
                self.last_error = None
                return Reload.UNCHANGED
            fresh = _context(self._files, self._roots)
        except TlsFilesError as error:
            self.last_error = str(error)
            return Reload.REFUSED
        self._digest, self._current, self.last_error = digest, fresh, None
        return Reload.CHANGED

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _old: ssl.SSLContext
    ) -> None:
        """Swap certificate and trust store of one handshake (called with or without SNI)."""
        self._follow_roots()
        connection.context = self._current

    def _follow_roots(self) -> None:
        """Old roots stay while the files cannot be read: who is asked for a name checks again."""
        roots = None if self._client_roots is None else self._client_roots()
        if roots == self._roots:
            return
        try:
            self._current = _context(self._files, roots)
        except TlsFilesError as error:
            self.last_error = str(error)
        else:
            self._roots = roots


def _context(files: TlsFiles, roots: Roots | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a resumed session would skip the check against the CAs of today
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.private_key)
        if files.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(cafile=files.client_ca)
        elif roots is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
            if roots:
                context.load_verify_locations(
                    cadata=b"".join(x.public_bytes(Encoding.DER) for x in roots)
                )
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "unreadable"
        raise TlsFilesError(
            f"{files.certificate}, its key or its client CA: {reason},"
            " expected PEM files that fit together"
        ) from None
    return context


def _digest(files: TlsFiles) -> bytes:
    digest = hashlib.sha256()
    for path in (files.certificate, files.private_key, files.client_ca):
        if path is not None:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise TlsFilesError(f"{path}: {error.strerror}") from None
            digest.update(len(content).to_bytes(8, "big") + content)
    return digest.digest()


# --- listener

_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Bounds on what connections can take."""

    idle_s: float = 120.0
    """A connection without a complete request; longer than Go's clients keep idle ones."""
    handshake_s: float = 5.0
    connections: int = 256


class _Refuse(asyncio.Protocol):
    """Closes a connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class HttpServer:
    """Listens, and takes changed certificate files into use."""

    def __init__(
        self,
        application: web.Application,
        *,
        address: Address,
        tls: TlsFiles | None,
        limits: ConnectionLimits,
        certificate_changed: Callable[[str | None], None],
        client_roots: Callable[[], Roots] | None = None,
        reload_s: float = 10.0,
    ) -> None:
        """Raises TlsFilesError before anything listens; `client_roots` as in ServingTls."""
        self._address = address
        self._tls = None if tls is None else ServingTls(tls, client_roots)
        self._limits = limits
        self._certificate_changed = certificate_changed
        """Called when the files have changed and were taken, or refused with an error."""
        self._reload_s = reload_s
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=limits.idle_s,
            lingering_time=1.0,
            auto_decompress=False,
        )
        self._server: asyncio.Server | None = None

    async def start(self) -> tuple[str, int]:
        """Listen; returns the address that was bound (port 0 means any free one)."""
        await self._runner.setup()
        self._server = await asyncio.get_running_loop().create_server(
            self._connection,
            self._address.host or None,
            self._address.port,
            ssl=None if self._tls is None else self._tls.context,
            ssl_handshake_timeout=None if self._tls is None else self._limits.handshake_s,
            backlog=_BACKLOG,
        )
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    async def watch_certificates(self) -> None:
        """Take changed certificate files into use until cancelled; returns at once without TLS."""
        while self._tls is not None:
            await asyncio.sleep(self._reload_s)
            self.reload_certificates()

    def reload_certificates(self) -> Reload:
        """Look at the certificate files now."""
        if self._tls is None:
            return Reload.UNCHANGED
        found = self._tls.reload()
        if found is not Reload.UNCHANGED:
            self._certificate_changed(self._tls.last_error)
        return found

    async def stop(self, grace_s: float = 3.0) -> None:
        """Stop listening, let running answers end within `grace_s`, then close everything."""
        if self._server is None:
            return
        self._server.close()
        self._handlers().pre_shutdown()
        await self._handlers().shutdown(grace_s)
        await self._runner.cleanup()
        self._server = None

    def _handlers(self) -> web.Server:
        return cast("web.Server", self._runner.server)  # there since `setup`

    def _connection(self) -> asyncio.Protocol:
        handlers = self._handlers()
        if len(handlers.connections) >= self._limits.connections:
            return _Refuse()
        return handlers()


async def healthz(_request: web.Request) -> web.Response:
    """Answer a probe: the process turns its event loop."""
    return web.Response(text="ok")


def sent_traceparent(request: web.Request) -> str:
    """The caller's trace context; empty where it sent none or several."""
    sent = request.headers.getall("traceparent", [])
    return sent[0] if len(sent) == 1 else ""


# --- bodies

LARGE: Final = 4 << 20
"""Bytes after which a body of known length moves."""


class BodyBuffer:
    """Where a request's body is put together; grows up to `expected` bytes where that is known.

    A body of whole nodes has tens of megabytes. Taking that much new memory page by page costs
    more than decrypting what is put there, so a large body moves to huge pages, where the
    kernel gives any. It does so only once much of it has come: what a client announces
    takes no memory.
    """

    __slots__ = ("_at", "_expected", "_small", "_view")

    def __init__(self, expected: int | None) -> None:
        """`expected` is the Content-Length, None for a chunked body."""
        self._expected = expected or 0
        self._small = bytearray()
        self._view: memoryview | None = None
        self._at = 0

    def __len__(self) -> int:
        return self._at

    def append(self, chunk: bytes) -> None:
        """Add what came; raises ValueError beyond `expected`."""
        end = self._at + len(chunk)
        if self._view is None and LARGE <= end <= self._expected:
            self._view = _huge(self._expected)
            self._view[: self._at] = self._small
            self._small = bytearray()
        if self._view is None:
            self._small += chunk
        else:
            self._view[self._at : end] = chunk
        self._at = end

    def whole(self) -> bytearray | memoryview:
        """All that came, without a copy."""
        return self._small if self._view is None else self._view[: self._at]


def _huge(size: int) -> memoryview:
    """Fresh memory, given back when the last view of it goes."""
    space = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        space.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(space)


_AT_ONCE: Final = 2
"""Bodies of full size that may be received at the same time."""


class BodyRefusedError(Exception):
    """The body was not taken: HTTP status, a word for metrics, and why, for the answer."""

    def __init__(self, status: int, result: str, text: str) -> None:
        super().__init__(text)
        self.status, self.result = status, result


class BodyReceiver:
    """Receives request bodies, bounded in size, in time and in sum; one per listener.

    What a client sends can delay or refuse only its own request.
    """

    def __init__(self, limit: int, key: str, *, receive_s: float) -> None:
        """At most `limit` bytes, which `key` configures, within `receive_s` from the headers on."""
        self._limit = limit
        self._key = key
        self._receive_s = receive_s
        self._receiving = 0

    async def receive(self, request: web.Request) -> bytes | bytearray | memoryview:
        """Read the body into one buffer; raises BodyRefusedError."""
        limit = self._limit
        too_large = BodyRefusedError(
            413, "too_large", f"request body is larger than {limit} bytes ({self._key})"
        )
        if (request.content_length or 0) > limit:
            raise too_large
        if request.content.is_eof() and request.content_length is not None:
            whole = request.content.read_nowait()  # it came with its headers
            self._demand_room(len(whole))
            return whole
        body = BodyBuffer(request.content_length)
        try:
            async with asyncio.timeout(self._receive_s):
                while chunk := await request.content.readany():
                    self._receiving += len(chunk)
                    body.append(chunk)
                    if len(body) > limit:
                        raise too_large
                    self._demand_room(0)
        except TimeoutError:
            text = f"request body did not arrive within {self._receive_s:g} s"
            raise BodyRefusedError(408, "slow", text) from None
        finally:
            self._receiving -= len(body)
        return body.whole()

    def _demand_room(self, more: int) -> None:
        if self._receiving + more > _AT_ONCE * self._limit:
            raise BodyRefusedError(503, "busy", "too many large requests at once")


# --- health and metrics

_NO_BODY_BYTES = 1024
_IDLE_SECONDS = 30.0
_LINGER_SECONDS = 1.0
_OPS_BACKLOG = 64


def ops_app(
    readiness: Callable[[], Readiness], render_metrics: Callable[[], bytes]
) -> web.Application:
    """`/healthz`, `/readyz` and `/metrics` for kubelet and Prometheus, and nothing else.

    `/healthz` says that the process turns its event loop; `/readyz` says whether it may decide and
    why not. `readiness` and `render_metrics` are asked at each request. Takes no bodies.
    """

    async def health(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        now = readiness()
        body = {"ready": now.ready, "reasons": now.reasons, "warnings": now.warnings}
        return web.Response(
            text=json.dumps(body) + "\n",
            status=200 if now.ready else 503,
            content_type="application/json",
        )

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=render_metrics(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application(client_max_size=_NO_BODY_BYTES)
    app.router.add_get("/healthz", health)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


class OpsServer:
    """Listens on `listen.ops`."""

    def __init__(self, app: web.Application, address: Address) -> None:
        self._address = address
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=_IDLE_SECONDS,
            lingering_time=_LINGER_SECONDS,
            shutdown_timeout=_LINGER_SECONDS,
        )

    async def start(self) -> Address:
        """Listen; returns what was bound (port 0 means any free one). Raises OSError."""
        await self._runner.setup()
        site = web.TCPSite(
            self._runner, self._address.host or None, self._address.port, backlog=_OPS_BACKLOG
        )
        await site.start()
        host, port, *_ = self._runner.addresses[0]
        return Address(host, port)

    async def stop(self) -> None:
        """Close everything; may be called without `start`."""
        await self._runner.cleanup()
