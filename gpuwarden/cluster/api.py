"""Calls the Kubernetes API server, and forwards a port of a pod through it.

A port is forwarded by WebSocket (v4.channel.k8s.io: the first byte of a message is its channel, 0
for data and 1 for errors; the first two bytes of each are the port). Bounded in size and time. A
redirect is not followed. Tokens are in no text. Must not write: what is posted are reviews and dry
runs.
"""

import asyncio
import contextlib
import json
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote, urlsplit

import aiohttp

from gpuwarden.cluster.access import Access, AccessError

MAX_BYTES: Final = 64 << 20
"""Of an answer."""
_AGENT: Final = "gpuwarden"
_HTTPS: Final = 443
_CHUNK: Final = 1 << 16
_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA, _ERROR = 0, 1
_PORT_BYTES: Final = 2
_MAX_MESSAGE: Final = 1 << 20
_SHOWN: Final = 200


class ApiError(Exception):
    """No answer, or none that can be read; the text is for people, without secrets."""

    def __init__(self, text: str, *, is_late: bool = False) -> None:
        """`is_late`: it did not come in time."""
        super().__init__(text)
        self.is_late = is_late


class ForwardRefusedError(Exception):
    """The API server does not forward the port."""

    def __init__(self, status: int) -> None:
        super().__init__(f"it answered {status} to a port-forward")
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server answered."""

    status: int
    document: Any
    """The JSON object of the body; None where it is none: a path that is not served is refused in
    plain text."""
    date: datetime | None
    """By the server's clock."""


class ApiServer:
    """An API server; an async context manager around its connections."""

    def __init__(self, access: Access, timeout_s: float, *, max_bytes: int = MAX_BYTES) -> None:
        """Raises AccessError for a CA, certificate or key that cannot be used."""
        url = urlsplit(access.server)
        self.host = f"{url.hostname}:{url.port or _HTTPS}"
        self._access = access
        self._tls = _context(access)
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"User-Agent": _AGENT}
        if self._access.authorization is not None:
            headers["Authorization"] = self._access.authorization
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str) -> Answer:
        """Read; raises ApiError."""
        return await self._call("GET", path, None)

    async def post(self, path: str, body: object) -> Answer:
        """Post a review or a dry run; raises ApiError."""
        return await self._call("POST", path, json.dumps(body).encode())

    async def forward(
        self,
        namespace: str,
        pod: str,
        port: int,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Carry a connection to a port of a pod until one side ends it.

        Raises ApiError, ForwardRefusedError.
        """
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}"
        with self._told():
            connecting = self._open().ws_connect(
                f"{self._access.server}{path}/portforward?ports={port}",
                protocols=(_PROTOCOL,),
                proxy=self._access.proxy,
                server_hostname=self._access.server_name,
                max_msg_size=_MAX_MESSAGE,
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
            )
            async with await asyncio.wait_for(connecting, self._timeout_s) as far:
                if far.protocol != _PROTOCOL:
                    raise ApiError(f"it does not speak {_PROTOCOL}")
                await _carry(near, far, pod)

    async def _call(self, method: str, path: str, body: bytes | None) -> Answer:
        # A port-forward with this header is answered 406, so it is not the session's.
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        content = bytearray()
        with self._told():
            async with self._open().request(
                method,
                self._access.server + path,
                data=body,
                headers=headers,
                proxy=self._access.proxy,
                server_hostname=self._access.server_name,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
            ) as answer:
                async for chunk in answer.content.iter_chunked(_CHUNK):
                    content += chunk
                    if len(content) > self._max_bytes:
                        raise ApiError(f"an answer of more than {self._max_bytes} bytes")
                return Answer(answer.status, _document(content), _date(answer.headers.get("Date")))

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
            raise ForwardRefusedError(error.status) from None
        except aiohttp.ClientConnectorCertificateError as error:
            cause = getattr(error.certificate_error, "verify_message", "") or "not trusted"
            raise ApiError(f"its certificate is not accepted: {cause}") from None
        except TimeoutError:
            raise ApiError("no answer in time; see --timeout", is_late=True) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause = getattr(error, "strerror", None) or type(error).__name__
            raise ApiError(f"no answer: {cause}") from None


# --- what is read


def _document(content: bytes | bytearray) -> Any:  # noqa: ANN401 - JSON
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _date(text: str | None) -> datetime | None:
    try:
        return None if text is None else parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # the latter of numbers that no date can have
        return None


# --- a forwarded port


async def _carry(
    near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    far: aiohttp.ClientWebSocketResponse,
    pod: str,
) -> None:
    reader, writer = near
    ways = {
        asyncio.create_task(_send(reader, far)),
        asyncio.create_task(_receive(far, writer, pod)),
    }
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in done:
            way.result()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _send(reader: asyncio.StreamReader, far: aiohttp.ClientWebSocketResponse) -> None:
    while chunk := await reader.read(_CHUNK):
        await far.send_bytes(bytes([_DATA]) + chunk)


async def _receive(
    far: aiohttp.ClientWebSocketResponse, writer: asyncio.StreamWriter, pod: str
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
            raise ApiError(f"port-forward to {pod}: {text}")
        if channel == _DATA and content:
            writer.write(content)
            await writer.drain()


# --- TLS


def _context(access: Access) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=access.ca)
        if access.certificate is not None and access.private_key is not None:
            _load(context, access.certificate, access.private_key)
    except (ssl.SSLError, ValueError, TypeError):  # TypeError: what is not ASCII
        text = "CA, client certificate or key cannot be used; expected PEM that fits together"
        raise AccessError(text) from None
    return context


def _load(context: ssl.SSLContext, certificate: bytes, private_key: bytes) -> None:
    """`ssl` takes files alone: one that only its owner can open, for a moment."""
    with tempfile.TemporaryDirectory(prefix="gpuwarden-") as folder:
        file = Path(folder) / "client.pem"
        file.touch(mode=0o600)
        file.write_bytes(certificate + b"\n" + private_key)
        context.load_cert_chain(file, password="")
