"""A process that ends sends clients with kept connections elsewhere, and answers until then.

A connection that this side closes while a request is on its way gives the client an end of file
instead of an answer; the API server then refuses the pod (`EOF`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import pytest
from aiohttp import web

from controller.web.listener import ConnectionLimits, HttpServer
from gpuwarden.settings.values import Address
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.fakes.eventually import DEADLINE_S, eventually
from tests.fakes.placement import Measurements
from tests.fakes.running_controller import running_controller
from tests.hang import HANG_S

SOON_S = 0.05
CLOSES = "connection: close"


@dataclass
class Client:
    """One kept connection, as Go's client keeps it: nothing is sent but whole requests."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, path: str) -> None:
        """Into the kernel, before this loop does anything else."""
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    async def heard(self) -> tuple[int, bool]:
        """Status of the next answer, and whether it ends the connection."""
        async with asyncio.timeout(HANG_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            lines = head.splitlines()
            (length,) = (int(x.split(": ")[1]) for x in lines if x.startswith("content-length"))
            await self.reader.readexactly(length)
            return int(lines[0].split()[1]), CLOSES in lines

    async def ended(self) -> bool:
        """The other side has closed, and sent nothing more."""
        async with asyncio.timeout(HANG_S):
            return await self.reader.read() == b""


Connect = Callable[[tuple[str, int]], Awaitable[Client]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    opened: list[Client] = []

    async def to(address: tuple[str, int]) -> Client:
        opened.append(Client(*await asyncio.open_connection(*address)))
        return opened[-1]

    yield to
    for client in opened:
        client.writer.close()
        await client.writer.wait_closed()


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[HttpServer, tuple[str, int]]]:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/fails":
            raise web.HTTPConflict(text="no")
        return web.Response(text="yes")

    application = web.Application()
    application.router.add_get("/{path}", answer)
    server = HttpServer(
        application,
        name="extender",
        address=Address("127.0.0.1", 0),
        tls=None,
        limits=ConnectionLimits(),
        observer=Measurements(),
    )
    address = await server.start()
    try:
        yield server, address
    finally:
        await server.stop(0)


@pytest.mark.parametrize("path", ["/works", "/fails", "/is/not/there"])
async def test_each_connection_ends_with_its_next_answer(connect: Connect, path: str) -> None:
    async with listening() as (server, address):
        kept, new = await connect(address), await connect(address)
        kept.send(path)
        status, closes = await kept.heard()
        assert not closes
        leaving = asyncio.create_task(server.leave(HANG_S))
        for client in (kept, new):
            assert not leaving.done()
            client.send(path)
            assert await client.heard() == (status, True)
            assert await client.ended()
        await asyncio.wait_for(leaving, HANG_S)


async def test_a_request_on_its_way_is_answered(connect: Connect) -> None:
    async with listening() as (server, address):
        client = await connect(address)
        client.send("/works")
        assert await client.heard() == (HTTPStatus.OK, False)
        client.send("/works")
        await server.leave(HANG_S)
        await server.stop(0)
        assert await client.heard() == (HTTPStatus.OK, True)


async def test_who_asks_nothing_is_waited_for_no_longer_than_told(connect: Connect) -> None:
    async with listening() as (server, address):
        silent = await connect(address)
        silent.send("/works")
        await silent.heard()
        await server.leave(SOON_S)
        late = await connect(address)
        late.send("/works")
        assert await late.heard() == (HTTPStatus.OK, True)
        await server.stop(0)
        assert await silent.ended()
        with pytest.raises(ConnectionRefusedError):
            await connect(address)


async def test_nobody_is_waited_for_where_nobody_is_connected() -> None:
    async with listening() as (server, address):
        assert address
        await asyncio.wait_for(server.leave(float("inf")), HANG_S)


async def test_a_controller_that_ends_answers_its_scheduler_first(
    connect: Connect, tmp_path: Path, workload_api: InsecureWorkloadApi
) -> None:
    """Everything behind the answer is there until the scheduler has gone elsewhere."""
    end = asyncio.Event()
    async with running_controller(
        tmp_path, workload_api, stop=end, leave_s=DEADLINE_S
    ) as controller:
        host, _, port = controller.addresses.extender.rpartition(":")
        scheduler = await connect((host, int(port)))
        scheduler.send("/healthz")
        assert await scheduler.heard() == (HTTPStatus.OK, False)
        end.set()

        async def draining() -> bool | None:
            return any(x.startswith("draining") for x in await controller.reasons()) or None

        await eventually(draining, "draining")
        assert not controller.task.done()
        scheduler.send("/healthz")
        assert await scheduler.heard() == (HTTPStatus.OK, True)
        assert await controller.task == 0
