"""What was closed is closed, also where the API server does not say farewell."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from controller.kube.api.cache import ListWatch, Pace
from controller.kube.api.client import Answer, ApiClient, Request
from controller.kube.api.resources import NODES
from controller.kube.api.transport import InCluster, Transport
from controller.kube.nodes.nodes import NODE_KIND
from gpuwarden.clock import SystemClock
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.kube_access import api_client, service_account
from tests.fakes.api_server import FakeApiServer
from tests.fakes.eventually import eventually
from tests.fakes.relay import Relay


@pytest.fixture
def server(server: FakeApiServer) -> FakeApiServer:
    server.create("nodes", {"metadata": {"name": "a"}})
    return server


@pytest.fixture
async def relay(server: FakeApiServer) -> AsyncIterator[Relay]:
    async with Relay(server.port).running() as running:
        yield running


@pytest.fixture
def client(tmp_path: Path, server: FakeApiServer, relay: Relay) -> tuple[ApiClient, Transport]:
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(relay.port)}
    return api_client(InCluster(environ, service_account(tmp_path / "sa", server)), SystemClock())


async def left_in_a_watch(api: ApiClient, server: FakeApiServer, relay: Relay) -> None:
    now = await api.version_now(NODES)
    async with api.watch(NODES, now, seconds=30, silence_s=30):
        assert server.requests[-1][0] == "watch"
        relay.is_frozen = True


async def left_before_the_answer(api: ApiClient, server: FakeApiServer, relay: Relay) -> None:
    server.is_stalled = True
    call = asyncio.create_task(api.version_now(NODES))

    async def asked() -> bool | None:
        return bool(server.requests) or None

    await eventually(asked, "the server was asked")
    relay.is_frozen = True
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


@pytest.mark.parametrize("leave", [left_in_a_watch, left_before_the_answer])
async def test_a_server_that_says_nothing_more_keeps_no_connection_open(
    client: tuple[ApiClient, Transport],
    server: FakeApiServer,
    relay: Relay,
    leave: Callable[[ApiClient, FakeApiServer, Relay], Awaitable[None]],
) -> None:
    api, transport = client
    await leave(api, server, relay)
    await transport.close()

    async def over() -> bool | None:
        return relay.open == 0 or None

    await eventually(over, "the connection is over")


class Counting:
    """The exchanges that go on; each takes a moment to end."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.open: list[str] = []

    @contextlib.asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        self.open.append(request.path)
        try:
            async with self._transport.exchange(request) as answer:
                yield answer
        finally:
            await asyncio.sleep(0.01)
            self.open.remove(request.path)

    async def close(self) -> None:
        await self._transport.close()


async def test_nothing_goes_on_when_a_copy_is_no_longer_kept(
    client: tuple[ApiClient, Transport], server: FakeApiServer
) -> None:
    """Neither the watch nor the question that it asks in silence."""
    _, transport = client
    instruments = Instruments(Process.CONTROLLER, "test")
    counting = Counting(transport)
    watcher = ListWatch(
        ApiClient(counting, instruments),
        NODE_KIND,
        clock=SystemClock(),
        instruments=instruments,
        jitter=lambda: 0.5,
        pace=Pace(ask_s=0.1),
    )
    keeping = asyncio.create_task(watcher.follow())

    async def watched() -> bool | None:
        return server.open_watches["nodes"] == 1 or None

    await eventually(watched, "the watch")
    server.is_stalled = True

    async def asked() -> bool | None:
        return len(counting.open) == 2 or None

    await eventually(asked, "the question")
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert counting.open == []
    await counting.close()
