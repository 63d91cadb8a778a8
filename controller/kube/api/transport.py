"""HTTP exchanges with the API server through `kubernetes.aio`, with the credentials of today.

Credentials are read again whenever they may have changed. Tokens and keys stay inside `Access`
and out of every text.
"""

import asyncio
import contextlib
import hashlib
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp.connector import Connection
from aiohttp.http_exceptions import LineTooLong
from aiohttp.tracing import Trace
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import InClusterConfigLoader
from kubernetes.aio.config.kube_config import load_kube_config

from controller.kube.api.client import MAX_OBJECT_BYTES, Answer, Request
from controller.kube.api.resources import ApiError
from controller.settings import KubernetesSettings
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_FILE_BYTES: Final = 1 << 20
_TOKEN: Final = re.compile(r"[!-~]{1,65536}")


class AccessError(Exception):
    """Credentials cannot be read or must not be used; says which and why, never what they are."""


@dataclass(frozen=True, slots=True)
class Access:
    """Everything that a connection needs."""

    configuration: Configuration = field(repr=False)
    authorization: str | None = field(repr=False)
    """Value of the Authorization header; None with client certificates."""
    material: bytes = field(repr=False)
    """Digest of server, CA, client certificate and key: another one needs new connections."""


class InCluster:
    """The service account of the pod that we run in (KEP-1205: the token is replaced)."""

    reread_s: Final = 60.0
    """Seconds after which the files are read again."""

    def __init__(self, environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> None:
        self._environ = environ
        self._folder = folder

    async def read(self) -> Access:
        """Read token and CA; raises AccessError."""
        configuration = Configuration()
        token, ca = self._folder / "token", self._folder / "ca.crt"
        loader = InClusterConfigLoader(  # type: ignore[no-untyped-call] # the library's
            token_filename=str(_small(token)),
            cert_filename=str(_small(ca)),
            try_refresh_token=False,
            environ=self._environ,
        )
        try:
            loader.load_and_set(configuration)  # type: ignore[no-untyped-call] # the library's
        except (ConfigException, OSError, ValueError) as error:
            raise AccessError(f"service account in {self._folder}: {_reason(error)}") from None
        return _access(configuration, f"service account in {self._folder}")


class Kubeconfig:
    """A kubeconfig file, and one of its contexts."""

    reread_s: Final = 600.0
    """Seconds after which the file is read again."""

    def __init__(self, path: Path, context: str | None = None) -> None:
        self._path = path
        self._context = context

    async def read(self) -> Access:
        """Read the file and what it names; may run its exec plugin. Raises AccessError."""
        configuration = Configuration()
        _small(self._path)
        try:
            await load_kube_config(  # type: ignore[no-untyped-call] # the library's
                config_file=str(self._path),
                context=self._context,
                client_configuration=configuration,
                persist_config=False,
            )
        except Exception as error:  # noqa: BLE001 - whatever the library trips over, the file is unusable
            raise AccessError(f"kubeconfig {self._path}: {_reason(error)}") from None
        return _access(configuration, f"kubeconfig {self._path}")


AccessSource = InCluster | Kubeconfig


def _access(configuration: Configuration, where: str) -> Access:
    if not configuration.verify_ssl:
        raise AccessError(f"{where}: insecure-skip-tls-verify is set; name the CA instead")
    if not configuration.host.startswith("https://"):
        raise AccessError(f"{where}: the server must be an https:// URL")
    configuration.client_session_kwargs = {"trust_env": False}
    return Access(configuration, _authorization(configuration, where), _material(configuration))


def _authorization(configuration: Configuration, where: str) -> str | None:
    """The library's `bearer TOKEN` as it came from a file, or `Basic …`."""
    text = configuration.api_key.pop("BearerToken", None)
    if text is None:
        return None
    scheme, _, secret = text.strip().partition(" ")
    if not _TOKEN.fullmatch(secret.strip()):
        raise AccessError(f"{where}: the token is empty or not printable ASCII")
    return f"{scheme.capitalize()} {secret.strip()}"


def _material(configuration: Configuration) -> bytes:
    digest = hashlib.sha256()
    names = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    texts = (configuration.host, configuration.tls_server_name, configuration.proxy)
    for part in (
        *(_content(Path(x)) if x else b"" for x in names),
        *((x or "").encode() for x in texts),
    ):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AccessError(f"{path}: {_reason(error)}") from None


def _small(path: Path) -> Path:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise AccessError(f"{path}: {_reason(error)}") from None
    if size > _MAX_FILE_BYTES:
        raise AccessError(f"{path} has {size} bytes, at most {_MAX_FILE_BYTES} are read")
    return path


def _reason(error: Exception) -> str:
    """No text of the library's but its own: a parser's error quotes what it read."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, ConfigException) else type(error).__name__


_END_SECONDS: Final = 1.0
"""What an event loop needs for a connection that was cut off, many times over."""


class AbortingConnector(aiohttp.TCPConnector):
    """Aborts every connection that it gave out when it is closed.

    A TLS connection that is left in the middle of an answer stays open until its peer closes it,
    for up to 30 s, and the library does not wait for that.
    """

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


CONNECT_SECONDS: Final = 10.0
MAX_LINE_BYTES: Final = MAX_OBJECT_BYTES + 1024
"""An event of a watch: an object and few words."""
_UNAUTHORIZED: Final = 401


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

    async def leave(self) -> None:
        """Give up one use."""
        self.users -= 1
        if self.is_retired and self.users == 0:
            await self.rest.close()


class Transport:
    """Implements `controller.kube.api.client.Exchange`; used from one event loop.

    A replaced token is used within a minute, and at once after a 401. A changed CA or client
    certificate gets connections of its own while open ones finish on theirs. The caller reads
    bodies and bounds them. An answer behind a redirect is refused.
    """

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
        connections = await self._acquire()
        try:
            response = await self._send(connections, request)
        except ssl.SSLError as error:
            connections = await self._reread(connections, _tls_text(error))
            response = await self._send_or_raise(connections, request)
        if response.status == _UNAUTHORIZED:
            fresh = await self._reread_after_refusal(connections)
            if fresh is not None:
                response.release()
                await connections.leave()
                connections = fresh
                response = await self._send_or_raise(connections, request)
        try:
            yield Answer(
                response.status, response.headers.get("Retry-After"), _Body(response.content)
            )
        except (aiohttp.ClientError, OSError) as error:
            raise ApiError(f"the API server broke off: {type(error).__name__}") from None
        finally:
            response.close()
            await connections.leave()

    async def close(self) -> None:
        """Close what is idle now, the rest when it ends."""
        if self._connections is not None:
            await self._connections.retire()
            self._connections = None

    async def _acquire(self) -> _Connections:
        """Connections by credentials that are not too old; where these cannot be read, the last."""
        async with self._reading:
            now_ns = self._clock.boottime_ns()
            trouble = ""
            if self._read_ns is None or now_ns - self._read_ns >= self._source.reread_s * NS_PER_S:
                try:
                    await self._use(await self._source.read())
                except AccessError as error:
                    trouble = str(error)
                self._read_ns = now_ns
            connections = self._connections
            if connections is None:
                self._read_ns = None
                raise ApiError(trouble or "the client is closed")
            connections.users += 1
            return connections

    async def _use(self, access: Access) -> None:
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
        await used.leave()
        self._read_ns = None
        fresh = await self._acquire()
        if fresh is used:
            await fresh.leave()
            raise ApiError(text)
        return fresh

    async def _reread_after_refusal(self, used: _Connections) -> _Connections | None:
        """Connections with other credentials than those that were refused, if there are any."""
        before = used.access.authorization
        self._read_ns = None
        fresh = await self._acquire()
        if fresh is used and fresh.access.authorization == before:
            await fresh.leave()
            return None
        return fresh

    async def _send_or_raise(
        self, connections: _Connections, request: Request
    ) -> aiohttp.ClientResponse:
        try:
            return await self._send(connections, request)
        except ssl.SSLError as error:
            await connections.leave()
            raise ApiError(_tls_text(error)) from None

    async def _send(self, connections: _Connections, request: Request) -> aiohttp.ClientResponse:
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
            await connections.leave()
            raise ApiError("no answer from the API server in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            await connections.leave()
            raise ApiError(f"no answer from the API server: {type(error).__name__}") from None
        except BaseException:
            await connections.leave()
            raise
        response: aiohttp.ClientResponse = answered.response
        if response.history:
            response.close()
            await connections.leave()
            raise ApiError("the API server sent us elsewhere, which it never does")
        return response


def open_transport(
    settings: KubernetesSettings, environ: Mapping[str, str], clock: Clock
) -> Transport:
    """The transport that the settings choose; it connects at the first call."""
    source: AccessSource = (
        InCluster(environ)
        if settings.kubeconfig is None
        else Kubeconfig(settings.kubeconfig, settings.context)
    )
    return Transport(source, clock)


class _Body:
    """Implements `controller.kube.api.client.Body`."""

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
