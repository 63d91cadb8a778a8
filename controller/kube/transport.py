"""One HTTP exchange with the API server through `kubernetes.aio`, with credentials of today.

A token that was replaced is used within a minute, and at once after a 401; a changed CA
or client certificate gets connections of its own while open ones finish on theirs. Bodies
are read by the caller, who bounds them. An answer behind a redirect counts for nothing.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import aiohttp
from aiohttp.http_exceptions import LineTooLong

from controller.kube.access import Access, AccessError, AccessSource
from controller.kube.api import MAX_OBJECT_BYTES, Answer, Request
from controller.kube.connector import RestClient
from controller.kube.errors import ApiError
from gpuwarden.clock import Clock

CONNECT_SECONDS: Final = 10.0
MAX_LINE_BYTES: Final = MAX_OBJECT_BYTES + 1024
"""An event of a watch: an object and few words."""
_UNAUTHORIZED: Final = 401
_NS: Final = 1_000_000_000


@dataclass(slots=True, eq=False)
class _Connections:
    """Connections with one set of TLS material."""

    access: Access
    rest: RestClient
    users: int = 0
    is_retired: bool = False

    async def retire(self) -> None:
        """Close once nobody uses them."""
        self.is_retired = True
        if self.users == 0:
            await self.rest.close()

    async def left(self) -> None:
        self.users -= 1
        if self.is_retired and self.users == 0:
            await self.rest.close()


class Transport:
    """Implements `controller.kube.api.Exchange`; used from one event loop."""

    def __init__(self, source: AccessSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._connections: _Connections | None = None
        self._read_ns: int | None = None
        """When the source was last asked, CLOCK_BOOTTIME; None demands it at the next use."""
        self._reading = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        """Send and give the answer with its body unread; raises ApiError."""
        connections = await self._current()
        try:
            response = await self._sent(connections, request)
        except ssl.SSLError as error:
            connections = await self._reread(connections, _tls_text(error))
            response = await self._sent_or_error(connections, request)
        if response.status == _UNAUTHORIZED:
            fresh = await self._reread_after_refusal(connections)
            if fresh is not None:
                response.release()
                await connections.left()
                connections = fresh
                response = await self._sent_or_error(connections, request)
        try:
            yield Answer(
                response.status, response.headers.get("Retry-After"), _Body(response.content)
            )
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(f"the API server broke off: {type(error).__name__}") from None
        finally:
            response.close()
            await connections.left()

    async def close(self) -> None:
        """Close what is idle now, the rest when it ends."""
        if self._connections is not None:
            await self._connections.retire()
            self._connections = None

    async def _current(self) -> _Connections:
        """Connections by credentials that are not too old; where these cannot be read, the last."""
        async with self._reading:
            now_ns = self._clock.boottime_ns()
            trouble = ""
            if self._read_ns is None or now_ns - self._read_ns >= self._source.reread_s * _NS:
                try:
                    await self._take(await self._source.read())
                except AccessError as error:
                    trouble = str(error)
                self._read_ns = now_ns
            connections = self._connections
            if connections is None:
                self._read_ns = None
                raise ApiError(trouble or "the client is closed")
            connections.users += 1
            return connections

    async def _take(self, access: Access) -> None:
        old = self._connections
        if old is not None and old.access.material == access.material:
            old.access = access
            return
        try:
            rest = RestClient(access.configuration)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise AccessError(f"CA or client certificate: {type(error).__name__}") from None
        self._connections = _Connections(access, rest)
        if old is not None:
            await old.retire()

    async def _reread(self, used: _Connections, text: str) -> _Connections:
        """Other connections than `used`, whose TLS failed; raises ApiError if there are none."""
        await used.left()
        self._read_ns = None
        fresh = await self._current()
        if fresh is used:
            await fresh.left()
            raise ApiError(text)
        return fresh

    async def _reread_after_refusal(self, used: _Connections) -> _Connections | None:
        """Connections with other credentials than those that were refused, if there are any."""
        before = used.access.authorization
        self._read_ns = None
        fresh = await self._current()
        if fresh is used and fresh.access.authorization == before:
            await fresh.left()
            return None
        return fresh

    async def _sent_or_error(
        self, connections: _Connections, request: Request
    ) -> aiohttp.ClientResponse:
        try:
            return await self._sent(connections, request)
        except ssl.SSLError as error:
            await connections.left()
            raise ApiError(_tls_text(error)) from None

    async def _sent(self, connections: _Connections, request: Request) -> aiohttp.ClientResponse:
        """Raises ssl.SSLError where new credentials may help; any other end is an ApiError."""
        access = connections.access
        headers = {"Accept": "application/json", "Content-Type": request.content_type}
        if access.authorization is not None:
            headers["Authorization"] = access.authorization
        timeout = aiohttp.ClientTimeout(
            total=request.total_s, sock_connect=CONNECT_SECONDS, sock_read=request.silence_s
        )
        try:
            answered: Any = await connections.rest.request(  # type: ignore[no-untyped-call] # the library's
                request.method,
                access.configuration.host + request.path,
                headers=headers,
                body=request.body,
                _request_timeout=timeout,
            )
        except aiohttp.ClientConnectorCertificateError as error:
            raise ssl.SSLError(type(error.certificate_error).__name__) from None
        except aiohttp.ClientSSLError as error:
            raise ssl.SSLError(type(error).__name__) from None
        except TimeoutError:
            await connections.left()
            raise ApiError("no answer from the API server in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            await connections.left()
            raise ApiError(f"no answer from the API server: {type(error).__name__}") from None
        except BaseException:
            await connections.left()
            raise
        response: aiohttp.ClientResponse = answered.response
        if response.history:
            response.close()
            await connections.left()
            raise ApiError("the API server sent us elsewhere, which it never does")
        return response


class _Body:
    """Implements `controller.kube.api.Body`."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def chunk(self) -> bytes:
        """The next bytes, none at the end; raises ApiError."""
        return await self._read(self._content.readany)

    async def line(self) -> bytes:
        """The next line with its LF, none at the end; raises ApiError."""
        return await self._read(partial(self._content.readline, max_line_length=MAX_LINE_BYTES))

    async def _read(self, read: Any) -> bytes:  # noqa: ANN401 - a bound method of the reader
        try:
            found: bytes = await read()
        except TimeoutError:
            raise ApiError("the API server fell silent") from None
        except (aiohttp.ClientError, LineTooLong, OSError, ValueError) as error:
            raise ApiError(f"the API server broke off: {type(error).__name__}") from None
        return found


def _tls_text(error: ssl.SSLError) -> str:
    return f"the API server could not be trusted, or did not trust us: {error.args[0]}"
