"""Calls the Kubernetes API server with a kubeconfig, and forwards a port of a pod through it.

Only what a caller needs to reach a controller: reads of single objects, and port-forward by
WebSocket (v4.channel.k8s.io: the first byte of a message is its channel, 0 for data and 1 for
errors; the first two bytes of each are the port). Bounded in size and time. Tokens are in no text.
"""

import asyncio
import contextlib
import json
import ssl
import tempfile
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

import aiohttp

from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.kubeconfig import Credentials, Login, proxy_of
from gpuwarden.cli.terminal import shown

MAX_BYTES: Final = 4 << 20
_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_PORT_BYTES: Final = 2
_BUFFER: Final = 64 << 10
_MAX_MESSAGE: Final = 1 << 20
_SHOWN: Final = 200


class NotFoundError(Exception):
    """There is no such object."""


class ForbiddenError(Exception):
    """The API server does not allow the call."""


class ApiServer:
    """The API server of one context; an async context manager around its connections."""

    def __init__(self, login: Login, credentials: Credentials, timeout: float) -> None:
        """Raises CliError for credentials that cannot be used."""
        self.name = f"context {login.context}"
        self._login = login
        self._tls = _context(login, credentials)
        self._timeout = timeout
        self._headers: dict[str, str] = {}
        if credentials.token and not credentials.certificate:
            if not credentials.token.isascii() or not credentials.token.isprintable():
                raise CliError(ExitCode.USAGE, "kubeconfig: the token is not printable ASCII")
            self._headers["Authorization"] = f"Bearer {credentials.token}"
        self._proxy = proxy_of(login)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._tls)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeout),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, namespace: str, plural: str, name: str) -> dict[str, Any]:
        """One object of the core group; raises CliError, NotFoundError, ForbiddenError."""
        url = self._url(namespace, plural, name)
        with self._told():
            async with self._open().get(
                url,
                headers={"Accept": "application/json"},  # a port-forward with it is answered 406
                proxy=self._proxy,
                server_hostname=self._login.server_name or None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=self._timeout),
            ) as answer:
                self._check(answer.status)
                body = await answer.content.read(MAX_BYTES + 1)
                while len(body) <= MAX_BYTES and (more := await answer.content.read(MAX_BYTES)):
                    body += more
        if len(body) > MAX_BYTES:
            raise self._unreachable(f"an answer of more than {MAX_BYTES} bytes")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            raise self._unreachable("an answer that is not JSON") from None
        if not isinstance(found, dict):
            raise self._unreachable("an answer that is no object")
        return found

    async def forward(
        self,
        namespace: str,
        pod: str,
        port: int,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Carry a connection to a port of a pod until one side ends it.

        Raises CliError, NotFoundError, ForbiddenError.
        """
        url = f"{self._url(namespace, 'pods', pod)}/portforward?ports={port}"
        with self._told():
            connecting = self._open().ws_connect(
                url,
                protocols=(_PROTOCOL,),
                proxy=self._proxy,
                server_hostname=self._login.server_name or None,
                max_msg_size=_MAX_MESSAGE,
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
            )
            async with await asyncio.wait_for(connecting, self._timeout) as far:
                if far.protocol != _PROTOCOL:
                    raise self._unreachable(f"it does not speak {_PROTOCOL}")
                await self._carry(near, far, pod)

    async def _carry(
        self,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: aiohttp.ClientWebSocketResponse,
        pod: str,
    ) -> None:
        reader, writer = near
        ways = {
            asyncio.create_task(_send(reader, far)),
            asyncio.create_task(self._receive(far, writer, pod)),
        }
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in done:
                way.result()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _receive(
        self, far: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter, pod: str
    ) -> None:
        ahead = {_DATA: _PORT_BYTES, _ERROR: _PORT_BYTES}
        async for message in far:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, content = message.data[0], message.data[1:]
            if left := ahead.get(channel, 0):
                ahead[channel] = max(0, left - len(content))
                content = content[left:]
            if channel == _ERROR and content:
                text = content.decode("utf-8", "replace")[:_SHOWN]
                raise self._unreachable(f"port-forward to {pod}: {text}")
            if channel == _DATA and content:
                writer.write(content)
                await writer.drain()

    # --- requests

    def _url(self, namespace: str, plural: str, name: str) -> str:
        parts = ("api", "v1", "namespaces", namespace, plural, name)
        return self._login.server + "".join(f"/{quote(x, safe='')}" for x in parts)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the API server is not open")
        return self._session

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of the library as ours."""
        try:
            yield
        except aiohttp.WSServerHandshakeError as error:
            self._check(error.status)
            raise self._unreachable(f"it answered {error.status} to a port-forward") from None
        except aiohttp.ClientConnectorCertificateError as error:
            cause = getattr(error.certificate_error, "verify_message", "") or "not trusted"
            raise self._unreachable(f"its certificate: {cause}") from None
        except TimeoutError:
            raise CliError(ExitCode.TIMEOUT, f"{self._shown()}: no answer in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or type(error).__name__
            raise self._unreachable(str(cause)) from None

    def _check(self, status: int) -> None:
        if status == HTTPStatus.NOT_FOUND:
            raise NotFoundError
        if status == HTTPStatus.FORBIDDEN:
            raise ForbiddenError
        if status == HTTPStatus.UNAUTHORIZED:
            text = f"{self._shown()}: the API server does not accept these credentials"
            raise CliError(ExitCode.NOT_AUTHORISED, text)
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            raise self._unreachable(f"it answered {status}")

    def _unreachable(self, text: str) -> CliError:
        return CliError(ExitCode.NOT_REACHABLE, f"{self._shown()}: API server: {shown(text)}")

    def _shown(self) -> str:
        return shown(self.name)


async def _send(reader: asyncio.StreamReader, far: aiohttp.ClientWebSocketResponse) -> None:
    while chunk := await reader.read(_BUFFER):
        await far.send_bytes(bytes([_DATA]) + chunk)


def _context(login: Login, credentials: Credentials) -> ssl.SSLContext:
    try:
        authority = None if login.ca is None else login.ca.decode("ascii")
        context = ssl.create_default_context(cadata=authority)
        if credentials.certificate:
            _load(context, credentials)
    except (ssl.SSLError, ValueError):
        text = "kubeconfig: CA, client certificate or key; expected PEM that fits together"
        raise CliError(ExitCode.USAGE, text) from None
    return context


def _load(context: ssl.SSLContext, credentials: Credentials) -> None:
    """`ssl` takes files alone: one that only its owner can open, for a moment."""
    with tempfile.TemporaryDirectory(prefix="gpuwarden-") as folder:
        file = Path(folder) / "client.pem"
        file.touch(mode=0o600)
        file.write_bytes(credentials.certificate + b"\n" + credentials.key)
        context.load_cert_chain(file, password="")
