"""An in-process tunnel: a private unix socket whose other end is mTLS to one SPIFFE server.

gRPC for Python checks host names and this cannot be turned off, while SPIFFE servers
have none; and its clients cannot change certificates. So gRPC dials a unix socket
of this process in the clear, and for each connection the tunnel dials the server
with one fixed SVID, compares the server's SPIFFE ID, and only then forwards bytes.

One tunnel, one channel per SVID generation; rotation is a new tunnel. What is
signed inside a connection must be signed with `Tunnel.svid`. The tunnel does not
retry: gRPC does, by connecting again, and `last_error` is why the last dial failed.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import ssl
import struct
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

import grpc.aio
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gpuwarden.identity.chain import ChainError, parse_chain, spiffe_id_of
from gpuwarden.identity.spiffe_id import SpiffeId, SpiffeIdError
from gpuwarden.identity.svid import Svid
from gpuwarden.wire.transport import client_options

ALPN = "h2"
_LOG = logging.getLogger(__name__)
_MEMORY = Path("/dev/shm")  # noqa: S108 - a mode 0700 directory is made below it
_BUFFER = 64 * 1024
_UCRED = struct.Struct("3i")
_MAX_CONNECTIONS = 8
_ACCEPTING_TURNS = 4
"""Turns of the loop in which a connection becomes a task; asyncio loses one whose server closes
in between."""
_SHOWN_TEXT = 200


class DialFailure(StrEnum):
    """Why a connection to the server did not come about."""

    UNREACHABLE = "unreachable"
    """No TCP connection, or no answer in time."""
    UNTRUSTED = "untrusted"
    """The server's chain does not lead to the roots of the own trust domain, or has expired."""
    WRONG_IDENTITY = "wrong-identity"
    """A workload of the own trust domain, but not the one that was expected."""
    REFUSED = "refused"
    """The server ended the handshake: it refuses this side's SVID, or speaks no TLS or h2."""
    LOCAL = "local"
    """Another process, or too many connections, at the unix socket."""


class DialError(Exception):
    """A dial that failed; `failure` for metrics, the text for people."""

    def __init__(self, failure: DialFailure, text: str) -> None:
        super().__init__(f"{failure}: {ascii(text)[1:-1][:_SHOWN_TEXT]}")
        self.failure = failure


@dataclass(frozen=True, slots=True)
class TunnelTimeouts:
    """Seconds; `half_closed` is how long the other direction may drain after one has ended."""

    dial: float = 10.0
    half_closed: float = 5.0


class Tunnel:
    """The tunnel to `expected` at `host`:`port`; an async context manager around its lifetime."""

    def __init__(
        self,
        svid: Svid,
        host: str,
        port: int,
        expected: SpiffeId,
        *,
        directory: Path | None = None,
        timeouts: TunnelTimeouts | None = None,
        on_failure: Callable[[DialFailure], None] = lambda _failure: None,
    ) -> None:
        """`on_failure` hears of every dial that fails, for metrics."""
        self.svid = svid
        """What the tunnel presents; signatures within its connections must use it too."""
        self.expected = expected
        self.last_error: DialError | None = None
        """Why the last dial failed; None after one that succeeded."""
        self._host = host
        self._port = port
        self._timeouts = timeouts or TunnelTimeouts()
        self._on_failure = on_failure
        self._parent = directory or (_MEMORY if _MEMORY.is_dir() else None)
        self._context = client_context(svid)
        self._directory: Path | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def target(self) -> str:
        """The gRPC target, `unix:/path`; only while the tunnel is open."""
        if self._directory is None:
            raise RuntimeError("the tunnel is not open")
        return f"unix:{self._directory / 'h2'}"

    def channel(self, options: Sequence[tuple[str, int | str]] | None = None) -> grpc.aio.Channel:
        """A channel through this tunnel; the caller closes it before the tunnel."""
        return grpc.aio.insecure_channel(self.target, options=options or client_options())

    async def __aenter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="gpuwarden-", dir=self._parent))
        path = self._directory / "h2"
        try:
            self._server = await asyncio.start_unix_server(self._accept, path, limit=_BUFFER)
            path.chmod(0o600)
        except BaseException:
            self._remove_directory()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Remove the socket, end the connections that are open, and those on their way."""
        self._remove_directory()
        if self._server is not None:
            for _ in range(_ACCEPTING_TURNS):
                await asyncio.sleep(0)
            self._server.close()
            self._server = None  # it keeps `_accept`, and so this
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    def _remove_directory(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task made here: Python 3.11's own logs an error for each one that is cancelled.
        task = asyncio.create_task(self._connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        # Not in the coroutine: one that is cancelled before its first step runs no line of it.
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self._check_local(writer)
            far_reader, far_writer = await self._dial()
            try:
                failure = await self._forward((reader, writer), (far_reader, far_writer))
            finally:
                far_writer.transport.abort()
            if failure is not None:
                self._note(failure)
        except DialError as error:
            self._note(error)

    def _note(self, error: DialError) -> None:
        if self.last_error is None or str(self.last_error) != str(error):
            _LOG.warning("no connection to %s at %s: %s", self.expected, self._host, error)
        # Its traceback, and its cause's, would keep the connection and this tunnel.
        error.__cause__ = error.__context__ = None
        self.last_error = error.with_traceback(None)
        self._on_failure(error.failure)

    def _check_local(self, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("socket")
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        process, _, _ = _UCRED.unpack(credentials)
        if process != os.getpid():
            raise DialError(DialFailure.LOCAL, f"process {process} used the private socket")
        if len(self._connections) > _MAX_CONNECTIONS:
            raise DialError(DialFailure.LOCAL, f"more than {_MAX_CONNECTIONS} connections")

    async def _dial(self) -> "_Ends":
        try:
            async with asyncio.timeout(self._timeouts.dial):
                reader, writer = await asyncio.open_connection(
                    self._host, self._port, ssl=self._context, server_hostname="", limit=_BUFFER
                )
        except TimeoutError as error:
            raise DialError(DialFailure.UNREACHABLE, "no answer in time") from error
        except ssl.SSLCertVerificationError as error:
            raise DialError(DialFailure.UNTRUSTED, error.verify_message) from error
        except ssl.SSLError as error:
            raise DialError(DialFailure.REFUSED, str(error)) from error
        except OSError as error:
            raise DialError(DialFailure.UNREACHABLE, str(error)) from error
        try:
            self._check_server(writer.get_extra_info("ssl_object"))
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer

    def _check_server(self, tls: ssl.SSLObject) -> None:
        """The chain has been verified by now; which workload it is has not."""
        if tls.selected_alpn_protocol() != ALPN:
            raise DialError(DialFailure.REFUSED, "server does not speak h2")
        try:
            [leaf] = parse_chain([tls.getpeercert(binary_form=True) or b""])
            found = spiffe_id_of(leaf)
        except (ChainError, SpiffeIdError) as error:
            raise DialError(DialFailure.WRONG_IDENTITY, str(error)) from error
        if found != self.expected:
            raise DialError(
                DialFailure.WRONG_IDENTITY, f"server is {found}, expected {self.expected}"
            )

    async def _forward(self, local: "_Ends", remote: "_Ends") -> DialError | None:
        """Copy both ways until both have ended, or one for `half_closed` seconds.

        Returns why the far side ended the connection after the handshake. One that breaks later is
        gRPC's to see, and it does.
        """
        (reader, writer), (far_reader, far_writer) = local, remote
        ways = {
            asyncio.create_task(self._receive(far_reader, writer)),
            asyncio.create_task(_copy(reader, far_writer)),
        }
        try:
            done, open_ways = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            if open_ways and all(way.result() is True for way in done):
                done, _ = await asyncio.wait(ways, timeout=self._timeouts.half_closed)
            return next((x for way in done if isinstance(x := way.result(), DialError)), None)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _receive(
        self, remote: asyncio.StreamReader, local: asyncio.StreamWriter
    ) -> DialError | bool:
        """As `_copy`; in TLS 1.3 a refusal of the own certificate comes here, instead of data."""
        try:
            first = await remote.read(_BUFFER)
        except OSError as error:  # an ssl.SSLError too: the alert, if it came before the reset
            _let_go(error)
            return DialError(DialFailure.REFUSED, f"ended after the handshake: {error}")
        if not first:
            text = "server ended the connection after the handshake"
            return DialError(DialFailure.REFUSED, text)
        self.last_error = None
        local.write(first)
        return await _copy(remote, local)


_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> bool:
    """Copy until `source` ends, no faster than `sink` takes it; then end `sink`.

    TLS of the standard library cannot be half-closed, so it is closed, after what is
    still to be sent: a gRPC client that has ended its side reads no more. False: one has broken.
    """
    try:
        while chunk := await source.read(_BUFFER):
            sink.write(chunk)
            await sink.drain()
    except OSError as error:
        _let_go(error)
        return False
    if sink.can_write_eof():
        with contextlib.suppress(OSError):
            sink.write_eof()
    else:
        sink.close()
    return True


def _let_go(error: Exception) -> None:
    """A stream keeps the error that ended it, and the error's traceback would keep the stream."""
    error.__traceback__ = None


# --- the TLS context


def client_context(svid: Svid) -> ssl.SSLContext:
    """A context that presents `svid` and accepts servers that its own roots vouch for.

    It checks no host name, since SPIFFE servers have none: the caller must compare the
    peer's SPIFFE ID before it sends a byte. TLS 1.2 at least, ALPN h2 only.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols([ALPN])
    roots = b"".join(root.public_bytes(Encoding.DER) for root in svid.roots)
    context.load_verify_locations(cadata=roots)
    _load_key(context, svid)
    return context


def _load_key(context: ssl.SSLContext, svid: Svid) -> None:
    """`ssl` loads keys from files only; an anonymous memory file gives the key no name."""
    key = svid.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = b"".join(certificate.public_bytes(Encoding.PEM) for certificate in svid.chain)
    descriptor = os.memfd_create("svid", os.MFD_CLOEXEC)
    with open(descriptor, "wb", buffering=0) as memory:  # noqa: PTH123 - a descriptor, not a path
        memory.write(key + chain)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
