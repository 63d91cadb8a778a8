"""A plain HTTP client of the API server that a kubeconfig names, with a token.

In the place of `controller.kube.api.transport`, whose client library the demo does not install. The
token and the CA are read once.
"""

import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp

from controller.kube.api.client import Answer, Request
from controller.kube.api.resources import ApiError, error_from_answer
from gpuwarden.cli.connection.kubeconfig import read_login

JSON: Final = "application/json"
_MAX_LINE: Final = 24 << 20


class HttpExchange:
    """Implements `controller.kube.api.client.Exchange`; used from one event loop."""

    def __init__(self, kubeconfig: Path) -> None:
        """Raises CliError where the file cannot be used."""
        login = read_login((kubeconfig,), None)
        assert login.ca is not None and login.credentials is not None, "see cluster.py"  # noqa: S101, PT018 - narrows
        self._server = login.server
        self._token = login.credentials.token
        self._server_name = login.server_name or None
        self._tls = ssl.create_default_context(cadata=login.ca.decode())
        self._session: aiohttp.ClientSession | None = None

    @contextlib.asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        """Send and give the answer with its body unread; raises ApiError."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._tls)
            )
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": request.content_type}
        body = None if request.body is None else json.dumps(request.body).encode()
        timeout = aiohttp.ClientTimeout(total=request.total_s, sock_read=request.silence_s)
        with _told():
            async with self._session.request(
                request.method,
                self._server + request.path,
                data=body,
                headers=headers,
                timeout=timeout,
                server_hostname=self._server_name,
            ) as response:
                yield Answer(response.status, None, _Body(response.content))

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def call(
        self, method: str, path: str, body: object = None, *, content_type: str = JSON
    ) -> Any:  # noqa: ANN401 - JSON
        """What the API server answers; raises ApiError."""
        async with self.exchange(Request(method, path, body, content_type)) as answer:
            chunks = []
            while chunk := await answer.body.chunk():
                chunks.append(chunk)
        content = b"".join(chunks)
        if answer.status >= 400:  # noqa: PLR2004 - HTTP
            raise error_from_answer(answer.status, content)
        return json.loads(content)


class _Body:
    """Implements `controller.kube.api.client.Body`."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def chunk(self) -> bytes:
        with _told():
            return await self._content.readany()

    async def line(self) -> bytes:
        with _told():
            return await self._content.readline(max_line_length=_MAX_LINE)


@contextlib.contextmanager
def _told() -> Any:  # noqa: ANN401 - a generator
    """The library's errors as ours."""
    try:
        yield
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise ApiError(f"the API server broke off: {type(error).__name__}") from None
