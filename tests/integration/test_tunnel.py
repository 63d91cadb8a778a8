"""gRPC through the tunnel reaches the one server it should, and no byte reaches another."""

import asyncio
import contextlib
import gc
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Self

import grpc.aio
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from gpuwarden.identity.chain import ChainInvalidError, parse_chain
from gpuwarden.identity.server_credentials import server_credentials
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.tunnel import DialError, DialFailure, Tunnel, TunnelTimeouts, client_context
from gpuwarden.wire.transport import client_options, server_options
from sandbox.spiffe.ca import InsecureCa, IssuedSvid
from tests.builders.svids import FakeSvidSource, new_svid
from tests.fakes.echo_service import EchoServer, call, stream
from tests.fakes.eventually import eventually
from tests.fakes.tls_server import server_side
from tests.hang import HANG_S

CONTROLLER = "spiffe://example.org/gpuwarden/controller"
AGENT = "spiffe://example.org/gpuwarden/agent/node-a"
ROOT = InsecureCa("example.org")
EXPECTED = parse_spiffe_id(CONTROLLER)
CLIENT = new_svid(ROOT, AGENT)
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def server() -> AsyncIterator[EchoServer]:
    source = FakeSvidSource(new_svid(ROOT, CONTROLLER))
    async with EchoServer(server_credentials(source, print)) as server:
        yield server


async def refused(tunnel: Tunnel) -> DialFailure:
    """The failure that the tunnel reports when gRPC tries to call through it."""
    async with tunnel, tunnel.channel() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(channel)(b"secret", timeout=HANG_S)
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert tunnel.last_error is not None
        return tunnel.last_error.failure


class Impostor:
    """A TLS server that notes every byte that it gets."""

    def __init__(self, issued: IssuedSvid, alpn: str = "h2") -> None:
        self._context = server_side(issued, alpn)
        self.received = b""
        self.ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._handle, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.received += await reader.read()
        except OSError:
            pass
        finally:
            self.ended.set()
            writer.transport.abort()


def test_the_socket_is_in_memory_where_there_is_such_a_place() -> None:
    memory = Path("/dev/shm")  # noqa: S108 -- nothing is made there
    parent = Tunnel(CLIENT, "127.0.0.1", 1, EXPECTED)._parent
    assert parent == (memory if memory.is_dir() else None)


async def test_a_tunnel_that_was_never_opened_is_closed_without_harm() -> None:
    tunnel = Tunnel(CLIENT, "127.0.0.1", 1, EXPECTED)
    with pytest.raises(RuntimeError, match="not open"):
        _ = tunnel.target
    await tunnel.close()


async def test_the_expected_server_is_reached_with_our_identity(server: EchoServer) -> None:
    async with Tunnel(CLIENT, "127.0.0.1", server.port, EXPECTED) as tunnel:
        async with tunnel.channel() as channel:
            assert await call(channel)(b"hello", timeout=HANG_S) == b"hello"
        assert tunnel.last_error is None
        assert tunnel.svid is CLIENT
    [facts] = server.seen
    assert facts.uri_sans == (AGENT,)
    assert facts.leaf_der == ROOTED_LEAF
    assert (facts.resumed, facts.tls_version) == (False, "TLSv1.3")


ROOTED_LEAF = ssl.PEM_cert_to_DER_cert(
    IssuedSvid(CLIENT.private_key, CLIENT.chain[:1]).chain_pem.decode()
)


@pytest.mark.parametrize("depth", [1, 4])
async def test_chains_with_intermediates_pass_both_ways(depth: int) -> None:
    below = ROOT
    for _ in range(depth):
        below = InsecureCa("example.org", issuer=below)
    source = FakeSvidSource(new_svid(below, CONTROLLER, ROOT.certificate))
    async with (
        EchoServer(server_credentials(source, print)) as server,
        Tunnel(
            new_svid(below, AGENT, ROOT.certificate), "127.0.0.1", server.port, EXPECTED
        ) as tunnel,
        tunnel.channel() as channel,
    ):
        assert await call(channel)(b"x", timeout=HANG_S) == b"x"
        assert len(server.seen[0].chain) == 1 + depth


async def test_a_chain_that_tls_takes_and_we_do_not_reaches_the_verifier_as_too_long(
    server: EchoServer,
) -> None:
    below = ROOT
    for _ in range(8):
        below = InsecureCa("example.org", issuer=below)
    client = new_svid(below, AGENT, ROOT.certificate)
    async with (
        Tunnel(client, "127.0.0.1", server.port, EXPECTED) as tunnel,
        tunnel.channel() as channel,
    ):
        await call(channel)(b"x", timeout=HANG_S)
    with pytest.raises(ChainInvalidError, match="5 intermediates, at most 4"):
        parse_chain(server.seen[0].chain)


async def test_large_messages_pass_unchanged_in_both_directions(server: EchoServer) -> None:
    payload = os.urandom(3_000_000)
    async with (
        Tunnel(CLIENT, "127.0.0.1", server.port, EXPECTED) as tunnel,
        tunnel.channel() as channel,
    ):
        assert await call(channel)(payload, timeout=HANG_S) == payload


@pytest.mark.parametrize(
    ("issued", "failure", "told"),
    [
        (ROOT.issue(AGENT), DialFailure.WRONG_IDENTITY, "server is spiffe://example.org/gpuwarden"),
        (ROOT.issue(CONTROLLER, AGENT), DialFailure.WRONG_IDENTITY, "exactly one URI SAN, has 2"),
        (ROOT.issue(), DialFailure.WRONG_IDENTITY, "exactly one URI SAN, has 0"),
        (ROOT.issue(f"{CONTROLLER}/x"), DialFailure.WRONG_IDENTITY, "controller/x, expected"),
        (InsecureCa("example.org").issue(CONTROLLER), DialFailure.UNTRUSTED, "local issuer"),
        (ROOT.issue(CONTROLLER, ttl=-timedelta(minutes=1)), DialFailure.UNTRUSTED, "expired"),
    ],
    ids=["other workload", "two names", "no name", "longer name", "foreign authority", "expired"],
)
async def test_no_byte_reaches_a_server_that_is_not_the_expected_one(
    issued: IssuedSvid, failure: DialFailure, told: str
) -> None:
    async with Impostor(issued) as impostor:
        tunnel = Tunnel(CLIENT, "127.0.0.1", impostor.port, EXPECTED)
        assert await refused(tunnel) is failure
        assert told in str(tunnel.last_error)
        if failure is DialFailure.WRONG_IDENTITY:
            await asyncio.wait_for(impostor.ended.wait(), HANG_S)
    assert impostor.received == b""


async def test_a_server_that_speaks_no_h2_is_refused() -> None:
    async with Impostor(ROOT.issue(CONTROLLER), alpn="http/1.1") as impostor:
        tunnel = Tunnel(CLIENT, "127.0.0.1", impostor.port, EXPECTED)
        assert await refused(tunnel) is DialFailure.REFUSED
    assert impostor.received == b""


async def test_a_server_that_refuses_our_svid_is_distinguished_from_one_that_is_away(
    server: EchoServer, own_port: int
) -> None:
    foreign = InsecureCa("example.org")
    client = new_svid(foreign, AGENT, ROOT.certificate)
    assert await refused(Tunnel(client, "127.0.0.1", server.port, EXPECTED)) is DialFailure.REFUSED
    tunnel = Tunnel(CLIENT, "127.0.0.1", own_port, EXPECTED)
    assert await refused(tunnel) is DialFailure.UNREACHABLE


async def test_a_server_that_speaks_no_tls_is_refused() -> None:
    async def plain(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
        writer.close()

    plain_server = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with plain_server:
        port = plain_server.sockets[0].getsockname()[1]
        tunnel = Tunnel(CLIENT, "127.0.0.1", port, EXPECTED)
        assert await refused(tunnel) is DialFailure.REFUSED


async def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        tunnel = Tunnel(CLIENT, "127.0.0.1", port, EXPECTED, timeouts=TunnelTimeouts(dial=0.1))
        assert await refused(tunnel) is DialFailure.UNREACHABLE
        assert "no answer in time" in str(tunnel.last_error)


EMPTY_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"


@pytest.mark.parametrize("first", [b"", EMPTY_SETTINGS], ids=["silent", "after-settings"])
async def test_a_tunnel_whose_connection_broke_leaves_nothing_to_the_garbage_collector(
    first: bytes,
) -> None:
    """It comes late to few large objects: each TLS context is some 100 KiB that it cannot see."""

    async def breaks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        if first:
            await reader.read(1)
        writer.transport.abort()

    async def broken(port: int) -> weakref.ref[ssl.SSLContext]:
        tunnel = Tunnel(CLIENT, "127.0.0.1", port, EXPECTED)
        async with tunnel:
            reader, writer = await asyncio.open_unix_connection(tunnel.target.removeprefix("unix:"))
            async with asyncio.timeout(HANG_S):
                assert await reader.read(len(first)) == first
                writer.write(b"x")
                assert await reader.read() == b""
            writer.close()
        return weakref.ref(tunnel._context)

    context = server_side(ROOT.issue(CONTROLLER), "h2")
    server = await asyncio.start_server(breaks, "127.0.0.1", 0, ssl=context)
    gc.collect()
    gc.disable()
    try:
        left = await broken(server.sockets[0].getsockname()[1])
        await eventually(lambda: _is_gone(left), "the tunnel is gone")
    finally:
        gc.enable()
        server.close()
        await server.wait_closed()


async def _is_gone(found: weakref.ref[ssl.SSLContext]) -> bool | None:
    return found() is None or None


async def test_a_dial_that_succeeds_clears_the_last_error(server: EchoServer) -> None:
    async with Tunnel(CLIENT, "127.0.0.1", server.port, EXPECTED) as tunnel:
        tunnel.last_error = DialError(DialFailure.UNREACHABLE, "some time ago")
        async with tunnel.channel() as channel:
            await call(channel)(b"x", timeout=HANG_S)
        assert tunnel.last_error is None


def contents(directory: Path) -> list[Path]:
    return list(directory.iterdir())


@contextlib.asynccontextmanager
async def knocking(
    tunnel: Tunnel,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to the tunnel's socket, as gRPC makes it."""
    reader, writer = await asyncio.open_unix_connection(tunnel.target.removeprefix("unix:"))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_closing_the_tunnel_ends_streams_and_leaves_nothing_behind(
    server: EchoServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tunnel = Tunnel(CLIENT, "127.0.0.1", server.port, EXPECTED, directory=tmp_path)
    async with tunnel:
        [directory] = contents(tmp_path)
        assert directory.name.startswith("gpuwarden-")
        assert directory.stat().st_mode & 0o777 == 0o700
        [path] = contents(directory)
        assert path.stat().st_mode & 0o777 == 0o600
        assert tunnel.target == f"unix:{path}"
        channel = tunnel.channel()
        echo = stream(channel)
        await echo.write(b"x")
        assert await echo.read() == b"x"
        assert len(tunnel._connections) == 1
    assert tunnel._connections == set()
    with pytest.raises(grpc.aio.AioRpcError):
        await echo.read()
    await channel.close()
    assert contents(tmp_path) == []
    assert caplog.records == []
    with pytest.raises(RuntimeError, match="not open"):
        _ = tunnel.target


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_is_accepted_while_the_tunnel_closes_is_ended(turns: int) -> None:
    """However far its acceptance has come; the far end answers nobody."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket(socket.AF_UNIX) as client:
        async with Tunnel(CLIENT, "127.0.0.1", silent.getsockname()[1], EXPECTED) as tunnel:
            client.connect(tunnel.target.removeprefix("unix:"))
            client.setblocking(False)
            for _ in range(turns):
                await asyncio.sleep(0)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(loop.sock_recv(client, 1), HANG_S) == b""


async def test_a_directory_that_is_gone_already_does_not_matter(tmp_path: Path) -> None:
    async with Tunnel(CLIENT, "127.0.0.1", 1, EXPECTED, directory=tmp_path):
        shutil.rmtree(contents(tmp_path)[0])
    assert contents(tmp_path) == []


async def test_a_directory_that_cannot_hold_a_socket_is_an_error_that_leaves_nothing(
    tmp_path: Path,
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with pytest.raises(OSError, match="too long"):
        async with Tunnel(CLIENT, "127.0.0.1", 1, EXPECTED, directory=deep):
            pass
    assert contents(deep) == []


async def test_another_process_at_the_socket_gets_nothing(server: EchoServer) -> None:
    knock = (
        "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]);"
        "s.sendall(b'PRI * HTTP/2.0'); print(s.recv(100))"
    )
    async with Tunnel(CLIENT, "127.0.0.1", server.port, EXPECTED) as tunnel:
        path = tunnel.target.removeprefix("unix:")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", knock, path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        output, _ = await process.communicate()
        assert output.strip() in {b"b''", b""}
        assert tunnel.last_error is not None
        assert tunnel.last_error.failure is DialFailure.LOCAL
    assert server.seen == []


async def test_a_connection_too_many_is_refused(
    server: EchoServer, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[DialFailure] = []
    tunnel = Tunnel(CLIENT, "127.0.0.1", server.port, EXPECTED, on_failure=failures.append)
    async with tunnel, contextlib.AsyncExitStack() as stack:
        ends = [await stack.enter_async_context(knocking(tunnel)) for _ in range(9)]
        assert await ends[-1][0].read() == b""
        assert failures == [DialFailure.LOCAL]
        assert "local: more than 8 connections" in caplog.text  # a dial that ends later clears it


async def test_the_same_failure_is_logged_once_and_counted_each_time(
    own_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[DialFailure] = []
    dialled = Tunnel(CLIENT, "127.0.0.1", own_port, EXPECTED, on_failure=failures.append)
    async with dialled as tunnel:

        async def knock() -> None:
            async with knocking(tunnel) as (reader, _writer):
                assert await reader.read() == b""

        for _ in range(3):
            await knock()
        assert caplog.text.count("unreachable") == 1
        assert failures == [DialFailure.UNREACHABLE] * 3
        tunnel.last_error = DialError(DialFailure.REFUSED, "another one in between")
        await knock()
        assert caplog.text.count("unreachable") == 2


async def test_closing_twice_is_harmless(server: EchoServer) -> None:
    tunnel = Tunnel(CLIENT, "127.0.0.1", server.port, EXPECTED)
    async with tunnel:
        await tunnel.close()
    assert server.seen == []


class Handshaken:
    """A TLS server that does after the handshake what a test wants."""

    def __init__(self, handle: Handler, client_roots: InsecureCa | None = None) -> None:
        self._handle = handle
        self._context = server_side(ROOT.issue(CONTROLLER))
        if client_roots is not None:
            self._context.verify_mode = ssl.CERT_REQUIRED
            root = client_roots.certificate.public_bytes(Encoding.DER)
            self._context.load_verify_locations(cadata=root)

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(self._handle, "127.0.0.1", 0, ssl=self._context)
        return int(self._server.sockets[0].getsockname()[1])

    async def __aexit__(self, *_: object) -> None:
        self._server.close()


async def test_no_host_name_is_sent() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        writer.close()

    named: list[str | None] = []
    server = Handshaken(greet)
    server._context.sni_callback = lambda _tls, name, _context: named.append(name)
    async with (
        server as port,
        Tunnel(CLIENT, "127.0.0.1", port, EXPECTED) as tunnel,
        knocking(tunnel) as (reader, _writer),
    ):
        assert await reader.read() == b"x"
    assert named == [None]


async def test_what_the_server_still_sends_arrives_after_it_has_ended() -> None:
    async def say_and_end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"last words")
        writer.close()

    async with (
        Handshaken(say_and_end) as port,
        Tunnel(CLIENT, "127.0.0.1", port, EXPECTED) as tunnel,
        knocking(tunnel) as (reader, _writer),
    ):
        assert await reader.read() == b"last words"


async def test_what_we_still_send_arrives_after_we_have_ended() -> None:
    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        received.set_result(await reader.read())
        writer.close()

    async with (
        Handshaken(hear) as port,
        Tunnel(
            CLIENT, "127.0.0.1", port, EXPECTED, timeouts=TunnelTimeouts(half_closed=60)
        ) as tunnel,
        knocking(tunnel) as (reader, writer),
    ):
        await reader.readexactly(1)
        writer.write(b"y" * 1_000_000)
        writer.write_eof()
        assert await asyncio.wait_for(received, HANG_S) == b"y" * 1_000_000
        assert await reader.read() == b""


async def keep_writing(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"still here")
        await writer.drain()
        await asyncio.sleep(0)


async def test_a_half_closed_connection_is_ended_after_a_while() -> None:
    async def end_only_our_side(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        writer.close()

    async with (
        Handshaken(end_only_our_side) as port,
        Tunnel(
            CLIENT, "127.0.0.1", port, EXPECTED, timeouts=TunnelTimeouts(half_closed=0.05)
        ) as tunnel,
        knocking(tunnel) as (reader, writer),
    ):
        assert await reader.read() == b"x"
        with pytest.raises(OSError, match=r"Broken pipe|reset|lost"):
            await keep_writing(writer)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST."""
    linger_for_nothing = struct.pack("ii", 1, 0)
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_for_nothing)
    writer.transport.abort()


async def test_a_server_of_another_trust_domain_s_clients_refuses_us() -> None:
    async def unreached(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"never sent")

    async with Handshaken(unreached, client_roots=InsecureCa("example.org")) as port:
        tunnel = Tunnel(CLIENT, "127.0.0.1", port, EXPECTED)
        assert await refused(tunnel) is DialFailure.REFUSED


async def test_a_connection_that_is_reset_right_after_the_handshake_is_a_refusal() -> None:
    async def at_once(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reset(writer)

    async with Handshaken(at_once) as port:
        tunnel = Tunnel(CLIENT, "127.0.0.1", port, EXPECTED)
        assert await refused(tunnel) is DialFailure.REFUSED
        assert "after the handshake" in str(tunnel.last_error)


async def test_a_connection_that_breaks_ends_on_both_sides() -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        await reader.readexactly(1)
        reset(writer)

    async with (
        Handshaken(break_off) as port,
        Tunnel(CLIENT, "127.0.0.1", port, EXPECTED) as tunnel,
        knocking(tunnel) as (reader, writer),
    ):
        await reader.readexactly(1)
        writer.write(b"y")
        assert await reader.read() == b""


def test_no_key_is_left_in_a_descriptor() -> None:
    descriptors = Path("/proc/self/fd")
    before = {path.name for path in descriptors.iterdir()}
    context = client_context(CLIENT)
    assert {path.name for path in descriptors.iterdir()} == before
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_REQUIRED


async def _until_it_ends(echo: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
    await echo.write(b"x")
    while await echo.read() == b"x":
        pass


async def test_pings_within_the_agreed_interval_keep_an_idle_stream_and_others_lose_it() -> None:
    source = FakeSvidSource(new_svid(ROOT, CONTROLLER))
    agreed, strict = server_options(min_ping_interval_ms=50), server_options()
    async with (
        EchoServer(server_credentials(source, print), agreed) as tolerant,
        EchoServer(server_credentials(source, print), strict) as impatient,
        Tunnel(CLIENT, "127.0.0.1", tolerant.port, EXPECTED) as good,
        Tunnel(CLIENT, "127.0.0.1", impatient.port, EXPECTED) as bad,
        good.channel(client_options(keepalive_ms=200)) as kept,
        bad.channel(client_options(keepalive_ms=200)) as lost,
    ):
        steady, doomed = stream(kept), stream(lost)
        await steady.write(b"x")
        assert await steady.read() == b"x"
        with pytest.raises(grpc.aio.AioRpcError, match="Too many pings"):
            await _until_it_ends(doomed)
        await steady.write(b"y")
        assert await steady.read() == b"y"
        await steady.done_writing()
        assert await steady.read() is grpc.aio.EOF
