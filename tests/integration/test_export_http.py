"""The exporter `http` against servers that misbehave, each in its own way."""

import asyncio
from pathlib import Path

import pytest

from controller.export.exporter import Batch
from controller.export.failures import Cure, DeliveryError
from controller.export.http import MAX_ANSWER_BYTES, HttpExporter, HttpTarget
from controller.export.records import batch_digest
from gpuwarden import __version__
from tests.builders.exported import records
from tests.fakes.http_receiver import Handler, raw_server, receiver, says

TOKEN = "s3cret-token-value"  # noqa: S105 - a test's
WALL_NS = 1_800_000_000 * 1_000_000_000
BATCH = Batch("b", batch_digest(records(3)), records(3))


def exporter(url: str, *, timeout_s: float = 60.0) -> HttpExporter:
    return HttpExporter(HttpTarget(url, TOKEN, timeout_s), lambda: WALL_NS)


async def failure(handle: Handler, *, timeout_s: float = 60.0) -> tuple[DeliveryError, list[bytes]]:
    """What a server's answer comes to, and what it was sent."""
    async with raw_server(handle) as server:
        sender = exporter(server.url, timeout_s=timeout_s)
        try:
            with pytest.raises(DeliveryError) as caught:
                await sender.send(BATCH)
        finally:
            await sender.close()
    assert TOKEN not in str(caught.value)
    return caught.value, server.heads


async def test_a_request_is_that_of_gpuid_with_a_key() -> None:
    async with receiver() as found:
        sender = exporter(found.url)
        await sender.send(BATCH)
        await sender.close()
    (request,) = found.requests
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"
    assert request.headers["Idempotency-Key"] == BATCH.key
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["User-Agent"] == f"gpuwarden-http-exporter/{__version__}"
    assert request.headers["X-Records-Count"] == "3"
    assert request.headers["X-Timestamp"] == "2027-01-15T08:00:00Z"


async def test_without_a_token_no_authorization_is_sent() -> None:
    async with receiver() as found:
        sender = HttpExporter(HttpTarget(found.url), lambda: WALL_NS)
        await sender.send(BATCH)
        await sender.close()
    assert "Authorization" not in found.requests[0].headers


@pytest.mark.parametrize(
    ("head", "seconds"),
    [
        ("429 Too Many Requests\r\nRetry-After: 17", 17.0),
        ("503 Unavailable\r\nRetry-After: Fri, 15 Jan 2027 08:00:20 GMT", 20.0),
        ("503 Unavailable", 0.0),
        ("500 Oops\r\nRetry-After: soon", 0.0),
    ],
)
async def test_a_server_that_asks_for_time(head: str, seconds: float) -> None:
    error, _ = await failure(says(head))
    assert (error.cure, error.retry_after_s) == (Cure.TIME, seconds)


@pytest.mark.parametrize(
    ("head", "cure"),
    [
        ("400 Bad Request", Cure.LESS),
        ("413 Too Large", Cure.LESS),
        ("401 Unauthorized", Cure.NOTHING),
        ("404 Not Found", Cure.NOTHING),
    ],
)
async def test_a_server_that_refuses(head: str, cure: Cure) -> None:
    error, heads = await failure(says(head, b"no\nsuch  thing"))
    assert (error.cure, str(error)) == (cure, f"HTTP {head[:3]}: no such thing")
    assert len(heads) == 1


async def test_a_token_in_an_answer_is_not_repeated() -> None:
    error, _ = await failure(says("401 No", f"Bearer {TOKEN} is wrong".encode()))
    assert str(error) == "HTTP 401: Bearer <redacted> is wrong"


@pytest.mark.parametrize(
    "before", ["", "no such token: ", '{"token":"', "x" * 190 + " ", "x" * 300 + " "]
)
async def test_a_token_is_not_repeated_wherever_an_answer_has_it(before: str) -> None:
    error, _ = await failure(says("400 Bad Request", f"{before}{TOKEN}".encode()))
    assert TOKEN[:6] not in str(error)


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 There", "308 There"])
async def test_a_redirect_is_not_followed(status: str) -> None:
    async with receiver() as elsewhere:
        error, heads = await failure(says(f"{status}\r\nLocation: {elsewhere.url}"))
    assert elsewhere.requests == []
    assert len(heads) == 1
    assert error.cure is Cure.NOTHING
    assert "redirects" in str(error)


async def test_an_endless_answer_is_cut() -> None:
    written = 0

    async def endless(
        _head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            await writer.drain()
            written += 0x4000

    error, _ = await failure(endless)
    assert error.cure is Cure.TIME
    assert len(str(error)) < 300
    assert written < 64 * MAX_ANSWER_BYTES  # what buffers of the kernel hold besides


async def test_an_endless_success_is_a_success() -> None:
    async def endless(
        _head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
            await writer.drain()

    async with raw_server(endless) as server:
        sender = exporter(server.url)
        await sender.send(BATCH)
        await sender.close()


async def test_a_server_that_says_nothing_is_given_up() -> None:
    async def silent(
        _head: bytes, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter
    ) -> None:
        await reader.read()

    error, _ = await failure(silent, timeout_s=0.2)
    assert (error.cure, str(error)) == (Cure.TIME, "no answer within 0.2 s")


@pytest.mark.parametrize(
    "begin", [b"", b"HTTP/1.1 20", b"HTTP/1.1 500 Oops\r\nContent-Length: 9\r\n\r\nx"]
)
async def test_a_connection_that_is_cut(begin: bytes) -> None:
    async def cut(
        _head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(begin)
        await writer.drain()
        writer.transport.abort()

    error, _ = await failure(cut)
    assert error.cure is Cure.TIME


async def test_an_answer_that_is_no_http() -> None:
    async def other(
        _head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")

    error, _ = await failure(other)
    assert error.cure is Cure.TIME


async def test_headers_without_end() -> None:
    error, _ = await failure(says("200 OK\r\nX-Long: " + "x" * 100_000))
    assert error.cure is Cure.TIME


@pytest.mark.parametrize(
    ("head", "is_well"),
    [
        ("200 OK", True),
        ("405 Not Allowed", True),
        ("404 Not Found", True),
        ("401 No", False),
        ("403 No", False),
        ("302 Found\r\nLocation: /", False),
        ("429 Busy", False),
        ("503 Down", False),
    ],
)
async def test_health(head: str, is_well: bool) -> None:
    async with raw_server(says(head)) as server:
        sender = exporter(server.url)
        if is_well:
            await sender.check()
        else:
            with pytest.raises(DeliveryError):
                await sender.check()
        await sender.close()
    assert server.heads[0].startswith(b"HEAD ")


async def test_nobody_listens(tmp_path: Path) -> None:
    del tmp_path
    sender = exporter("http://127.0.0.1:9/records")
    with pytest.raises(DeliveryError, match="Cannot connect") as caught:
        await sender.send(BATCH)
    await sender.close()
    assert caught.value.cure is Cure.TIME
