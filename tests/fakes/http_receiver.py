"""A receiver of records over HTTP, and one that says whatever bytes a test wants."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from controller.export.records import ExportRecord, read_json

Handler = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Receiver:
    """Keeps what it was sent; records by their key."""

    def __init__(self) -> None:
        self.url = ""
        self.records: dict[str, ExportRecord] = {}
        self.requests: list[web.Request] = []
        self.is_busy = False
        """Whether requests are sent away for ten minutes."""
        self.was_busy = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        if self.is_busy:
            self.was_busy.set()
            return web.Response(status=503, headers={"Retry-After": "600"})
        if request.method == "POST":
            for each in json.loads(await request.read()):
                found = read_json(json.dumps(each))
                self.records.setdefault(found.key, found)
        return web.Response(status=202)


@contextlib.asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/records", found.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    found.url = f"http://{host}:{port}/records"
    try:
        yield found
    finally:
        await runner.cleanup()


class RawServer:
    """Answers each connection by `handle`, which gets the head of the request."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self.url = ""
        self.heads: list[bytes] = []
        self._connections: set[asyncio.Task[None]] = set()

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)

    async def end(self) -> None:
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                await reader.readexactly(_length(head))
                await self._handle(head, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def _length(head: bytes) -> int:
    for line in head.lower().splitlines():
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


@contextlib.asynccontextmanager
async def raw_server(handle: Handler) -> AsyncIterator[RawServer]:
    found = RawServer(handle)
    server = await asyncio.start_server(found.connected, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    found.url = f"http://{host}:{port}/records"
    try:
        yield found
    finally:
        await found.end()
        server.close()
        await server.wait_closed()


def says(head: str, body: bytes = b"") -> Handler:
    """The same answer each time."""

    async def handle(
        _head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        text = f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(text.encode() + body)

    return handle
