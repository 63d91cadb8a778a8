import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

import pytest

from agent.health import JSON, MAX_CONNECTIONS, MAX_REQUEST_BYTES, Answer, HealthServer
from gpuwarden.settings.values import Address
from tests.hang import HANG_S

ROUTES = {
    "/ok": lambda: Answer(HTTPStatus.OK, b"fine\n"),
    "/bad": lambda: Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"{}", JSON),
}


@asynccontextmanager
async def serving(host: str = "127.0.0.1", **options: Any) -> AsyncIterator[Address]:
    server = HealthServer(Address(host, 0), ROUTES, **options)
    address = await server.start()
    try:
        yield Address(host or "127.0.0.1", address.port)
    finally:
        await server.close()


async def exchange(address: Address, request: bytes) -> bytes:
    async with asyncio.timeout(HANG_S):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(request)
        if len(request) > MAX_REQUEST_BYTES:
            writer.write_eof()
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()


@pytest.mark.parametrize(
    ("request_line", "status", "body"),
    [
        (b"GET /ok HTTP/1.1", b"200 OK", b"fine\n"),
        (b"GET /ok?verbose=1 HTTP/1.0", b"200 OK", b"fine\n"),
        (b"HEAD /ok HTTP/1.1", b"200 OK", b""),
        (b"GET /bad HTTP/1.1", b"503 Service Unavailable", b"{}"),
        (b"GET / HTTP/1.1", b"404 Not Found", b"Not Found\n"),
        (b"POST /ok HTTP/1.1", b"405 Method Not Allowed", b"Method Not Allowed\n"),
        (b"GET /ok", b"400 Bad Request", b"Bad Request\n"),
        (b"GET /ok HTTP/2.0", b"400 Bad Request", b"Bad Request\n"),
        (b"\xff\xfe\x00", b"400 Bad Request", b"Bad Request\n"),
    ],
)
async def test_answers(request_line: bytes, status: bytes, body: bytes) -> None:
    async with serving() as address:
        answer = await exchange(address, request_line + b"\r\nHost: x\r\n\r\n")
    head, _, found = answer.partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"HTTP/1.1 " + status
    assert b"Connection: close" in head
    assert found == body
    assert (b"Allow: GET, HEAD" in head) == (status.startswith(b"405"))


async def test_a_request_that_is_too_large_is_refused() -> None:
    async with serving() as address:
        answer = await exchange(
            address, b"GET /ok HTTP/1.1\r\nX: " + b"x" * (MAX_REQUEST_BYTES + 1)
        )
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_client_that_says_nothing_is_cut_off() -> None:
    async with serving(request_s=0.02) as address:
        assert await exchange(address, b"GET /ok") == b""


async def test_a_client_that_leaves_in_the_middle() -> None:
    async with serving() as address:
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET /ok")
        writer.close()
        await writer.wait_closed()
        assert (await exchange(address, b"GET /ok HTTP/1.1\r\n\r\n")).endswith(b"fine\n")


async def test_silent_connections_give_way_and_are_cut_at_the_end() -> None:
    cuts: list[str] = []
    async with serving(cut=cuts.append) as address:
        held = [
            await asyncio.open_connection(address.host, address.port)
            for _ in range(MAX_CONNECTIONS + 40)
        ]
        for _ in range(30):
            answer = await exchange(address, b"GET /ok HTTP/1.1\r\n\r\n")
            assert answer.endswith(b"fine\n")
        assert set(cuts) == {"gave-way"}
    for reader, writer in held:
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_a_connection_without_a_request_in_time_is_counted() -> None:
    cuts: list[str] = []
    async with serving(request_s=0.02, cut=cuts.append) as address:
        assert await exchange(address, b"GET /ok") == b""
        assert cuts == ["no-request"]


async def test_an_empty_host_is_every_address() -> None:
    async with serving(host="") as address:
        assert (await exchange(address, b"GET /ok HTTP/1.1\r\n\r\n")).endswith(b"fine\n")


async def test_a_port_that_is_taken_is_an_error() -> None:
    async with serving() as address:
        with pytest.raises(OSError, match="in use"):
            await HealthServer(address, ROUTES).start()


async def test_closing_what_never_started() -> None:
    await HealthServer(Address("127.0.0.1", 0), ROUTES).close()
