"""Liveness is answered whatever a crowd does with its connections to the same port.

Of controller and agent, with their own bounds. The crowd has all connections that may be open, and
more of it come before each probe.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from http import HTTPStatus

import pytest

from agent.health import MAX_CONNECTIONS, Answer, HealthServer
from controller.operations.readiness import Readiness
from controller.web.handshakes import HandshakeFailure
from controller.web.listener import ConnectionEnd
from controller.web.server import OpsLimits, OpsServer, ops_app
from gpuwarden.settings.values import Address
from tests.hang import HANG_S

METRICS = b"x" * (4 << 20)
"""More than the kernel takes for a client that does not read."""
PROBES = 3
CROWDS = {
    "that says nothing": b"",
    "that never ends a request": b"GET /healthz HTTP/1.1\r\nHost: ",
    "that asked once and stays": b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n",
    "that does not read what it asked for": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
}


class Nobody:
    """Implements ListenerObserver."""

    def certificate_changed(self, error: str | None) -> None: ...

    def handshake_completed(self) -> None: ...

    def handshake_failed(self, cause: HandshakeFailure, peer: str, reason: str) -> None: ...

    def connection_cut(self, cause: ConnectionEnd, peer: str) -> None: ...

    def malformed(self, reason: str) -> None: ...


@asynccontextmanager
async def a_controller() -> AsyncIterator[Address]:
    app = ops_app(lambda: Readiness(reasons=(), warnings=()), lambda **_: METRICS, None)
    server = OpsServer(app, Address("127.0.0.1", 0), observer=Nobody())
    host, port = await server.start()
    try:
        yield Address(host, port)
    finally:
        await server.stop(grace_s=0)


@asynccontextmanager
async def an_agent() -> AsyncIterator[Address]:
    routes = {
        "/healthz": lambda: Answer(HTTPStatus.OK, b"ok\n"),
        "/readyz": lambda: Answer(HTTPStatus.OK, b"{}\n"),
        "/metrics": lambda: Answer(HTTPStatus.OK, METRICS),
    }
    server = HealthServer(Address("127.0.0.1", 0), routes)
    address = await server.start()
    try:
        yield address
    finally:
        await server.close()


class Crowd:
    """Connections that send one thing, and never read."""

    def __init__(self, address: Address, request: bytes) -> None:
        self._address = address
        self._request = request
        self._open = ExitStack()

    async def come(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            one = self._open.enter_context(socket.socket())
            one.setblocking(False)
            await loop.sock_connect(one, (self._address.host, self._address.port))
            await loop.sock_sendall(one, self._request)

    def go(self) -> None:
        self._open.close()


async def _probe(address: Address) -> bytes:
    """As kubelet asks: a new connection each time."""
    async with asyncio.timeout(HANG_S):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        try:
            return await reader.read()
        finally:
            writer.close()


@pytest.mark.parametrize("listening", [a_controller, an_agent])
@pytest.mark.parametrize("crowd", CROWDS)
async def test_a_crowd_does_not_keep_liveness_out(
    listening: Callable[[], AbstractAsyncContextManager[Address]], crowd: str
) -> None:
    assert OpsLimits().connections == MAX_CONNECTIONS
    async with listening() as address:
        people = Crowd(address, CROWDS[crowd])
        await people.come(MAX_CONNECTIONS)
        try:
            for _ in range(PROBES):
                await people.come(MAX_CONNECTIONS // 4)
                assert (await _probe(address)).startswith(b"HTTP/1.1 200 OK")
        finally:
            people.go()
