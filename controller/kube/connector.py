"""TCP connections to the API server that are over when they are closed.

A TLS connection that is left in the middle of an answer stays open until its peer says farewell,
for up to 30 s, and the library does not wait for it. An API server is owed no farewell.
"""

import asyncio
import ssl
from typing import Final

import aiohttp
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from kubernetes.aio.client.rest import RESTClientObject

_END_SECONDS: Final = 1.0
"""What an event loop needs for a connection that was cut off, many times over."""


class AbortingConnector(aiohttp.TCPConnector):
    """Cuts off every connection that it gave out when it is closed."""

    def __init__(self, *, limit: int, tls: ssl.SSLContext) -> None:
        super().__init__(limit=limit, ssl=tls)
        self._open: dict[asyncio.Future[None], asyncio.Transport] = {}
        """Those whose end was not seen, by what is done then."""

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - of aiohttp
    ) -> Connection:
        """A connection for the request; raises aiohttp.ClientError, OSError, TimeoutError."""
        connection = await super().connect(req, traces, timeout)
        protocol, transport = connection.protocol, connection.transport
        ended = None if protocol is None else protocol.closed
        if ended is not None and transport is not None and ended not in self._open:
            self._open[ended] = transport
            ended.add_done_callback(self._ended)
        return connection

    async def close(self, *, abort_ssl: bool = True) -> None:
        """Return when all connections are closed."""
        ends = set(self._open)
        for transport in self._open.values():
            transport.abort()
        await super().close(abort_ssl=abort_ssl)
        if ends:
            await asyncio.wait(ends, timeout=_END_SECONDS)

    def _ended(self, ended: asyncio.Future[None]) -> None:
        if not ended.cancelled():
            ended.exception()  # how it ended was the request's to know
        self._open.pop(ended, None)


class RestClient(RESTClientObject):
    """The library's client on such connections."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        return AbortingConnector(limit=self.maxsize, tls=self.ssl_context)
