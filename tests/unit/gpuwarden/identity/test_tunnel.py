"""How the tunnel copies between two connections, and when it stops."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.tunnel import (
    DialError,
    DialFailure,
    Tunnel,
    TunnelTimeouts,
    _copy,
    client_context,
)
from sandbox.spiffe.ca import InsecureCa
from tests.builders.svids import new_svid
from tests.fakes.tls_server import server_side

CONTROLLER = "spiffe://example.org/gpuwarden/controller"
ROOT = InsecureCa("example.org")
CLIENT = new_svid(ROOT, "spiffe://example.org/gpuwarden/agent/node-a")
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def tunnel(half_closed: float = 60.0) -> Tunnel:
    timeouts = TunnelTimeouts(half_closed=half_closed)
    return Tunnel(CLIENT, "127.0.0.1", 1, parse_spiffe_id(CONTROLLER), timeouts=timeouts)


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Ends, Ends]]:
    """Both ends of a connection."""
    near, far = socket.socketpair()
    ends = await asyncio.open_connection(sock=near), await asyncio.open_connection(sock=far)
    try:
        yield ends
    finally:
        for _, writer in ends:
            writer.transport.abort()


def others() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


async def test_an_answer_that_comes_after_we_have_ended_arrives() -> None:
    async with pair() as (grpc, local), pair() as (remote, server):
        forwarding = asyncio.create_task(tunnel()._forward(local, remote))
        grpc[1].write_eof()
        assert await server[0].read() == b""
        server[1].write(b"answer")
        assert await grpc[0].readexactly(6) == b"answer"
        server[1].write_eof()
        await forwarding
        assert others() == set()


async def test_a_refusal_that_comes_after_we_have_ended_is_reported() -> None:
    async with pair() as (grpc, local), pair() as (remote, server):
        forwarding = asyncio.create_task(tunnel()._forward(local, remote))
        grpc[1].write_eof()
        assert await server[0].read() == b""
        server[1].write_eof()
        found = await forwarding
        assert found is not None
        assert found.failure is DialFailure.REFUSED
        assert "ended the connection after the handshake" in str(found)


async def test_a_connection_that_breaks_later_is_no_failed_dial() -> None:
    async with pair() as (grpc, local), pair() as (remote, server):
        forwarding = asyncio.create_task(tunnel()._forward(local, remote))
        server[1].write(b"x")
        assert await grpc[0].readexactly(1) == b"x"
        remote[0].set_exception(ConnectionResetError("reset"))
        await forwarding
        assert others() == set()


async def test_silence_of_the_other_side_is_waited_for_so_long_only() -> None:
    async with pair() as (grpc, local), pair() as (remote, _server):
        grpc[1].write_eof()
        await tunnel(half_closed=0.01)._forward(local, remote)
        assert others() == set()


async def test_copying_is_no_faster_than_the_reader() -> None:
    source = asyncio.StreamReader()
    source.feed_data(b"x" * 20_000_000)
    source.feed_eof()
    async with pair() as (near, _far):
        copying = asyncio.create_task(_copy(source, near[1]))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not copying.done()
        assert near[1].transport.get_write_buffer_size() < 1_000_000
        copying.cancel()


async def test_a_socket_is_ended_in_one_direction_only() -> None:
    source = asyncio.StreamReader()
    source.feed_data(b"last")
    source.feed_eof()
    async with pair() as (near, far):
        await _copy(source, near[1])
        assert await far[0].read() == b"last"
        far[1].write(b"answer")
        assert await near[0].readexactly(6) == b"answer"


async def test_tls_is_closed_as_a_whole() -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set_result(await reader.read())
        writer.close()

    context = server_side(ROOT.issue(CONTROLLER))
    source = asyncio.StreamReader()
    source.feed_data(b"last")
    source.feed_eof()
    async with await asyncio.start_server(hear, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        _, sink = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client_context(CLIENT), server_hostname=""
        )
        await _copy(source, sink)
        assert sink.is_closing()
        assert await heard == b"last"


def test_a_failure_is_named_and_its_text_is_one_short_line() -> None:
    names = {"unreachable", "untrusted", "wrong-identity", "refused", "local"}
    assert {x.value for x in DialFailure} == names
    text = "x\n" + "y" * 300
    assert str(DialError(DialFailure.REFUSED, text)) == "refused: x\\n" + "y" * 197
    assert str(DialError(DialFailure.LOCAL, "short")) == "local: short"


def test_a_dial_has_ten_seconds_and_what_is_left_of_a_connection_five() -> None:
    assert TunnelTimeouts() == TunnelTimeouts(dial=10.0, half_closed=5.0)
