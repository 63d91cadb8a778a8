"""An HTTP listener with bounds on connections, and server TLS that follows its files.

For others' machines to call: the extender, the webhooks. What is answered is the business of
the application.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from aiohttp import web

from controller.scheduling.serving_tls import Reload, Roots, ServingTls, TlsFiles
from gpuwarden.settings.values import Address

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
    """Listens, and keeps its certificate as new as its files."""

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
        """Told when the files have changed and were taken, or refused with an error."""
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


def sent_traceparent(request: web.Request) -> str:
    """Of a caller that traces; which of several is meant nobody can know."""
    sent = request.headers.getall("traceparent", [])
    return sent[0] if len(sent) == 1 else ""
