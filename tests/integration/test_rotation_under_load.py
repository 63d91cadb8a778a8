"""Certificates rotate under load: no call fails and no stream drops, if make comes before break.

Everything is real but the network card: the Workload API with its CA, both
svid_watcher, the tunnel, the server's credentials, gRPC. Every rotation renews all
SVIDs; some renew the CA too. The counter-proof takes make-before-break away and
must see calls fail, or the load would not notice a drop.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc
import grpc.aio
import pytest

from gpuwarden.clock import SystemClock
from gpuwarden.identity.server_credentials import server_credentials
from gpuwarden.identity.spiffe_id import SpiffeId, parse_spiffe_id
from gpuwarden.identity.svid import Svid, exactly
from gpuwarden.identity.svid_watcher import SvidWatcher
from gpuwarden.identity.tunnel import Tunnel
from gpuwarden.identity.watchdog import Limits
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.fakes.echo_service import EchoServer, call, stream
from tests.hang import HANG_S

CONTROLLER = parse_spiffe_id("spiffe://example.org/gpuwarden/controller")
ROTATIONS = 30
CALLS = 20_000
CLIENTS = 4
CALLS_PER_TURN = CALLS // ROTATIONS // CLIENTS + 1
NEW_CA_AT, OLD_CA_GONE_AT = {5, 15, 25}, {10, 20}

LOST = (
    grpc.aio.AioRpcError,
    grpc.aio.UsageError,
    asyncio.InvalidStateError,
    asyncio.CancelledError,
)
"""How gRPC tells that a call failed; the last three when its channel was closed under it."""


@dataclass
class Tally:
    """What the load has seen."""

    calls: int = 0
    failed: int = 0
    dropped: int = 0
    streams: int = 0
    leaves: set[bytes] = field(default_factory=set)


class Connection:
    """One tunnel with its channel and its stream: what a rotation replaces as a whole."""

    def __init__(self, tunnel: Tunnel, channel: grpc.aio.Channel, stack: AsyncExitStack) -> None:
        self.svid = tunnel.svid
        self.unary = call(channel)
        self.echo = stream(channel)
        self._stack = stack
        self._busy = asyncio.Lock()

    @classmethod
    async def make(cls, svid: Svid, port: int) -> Self:
        stack = AsyncExitStack()
        tunnel = await stack.enter_async_context(Tunnel(svid, "127.0.0.1", port, CONTROLLER))
        channel = await stack.enter_async_context(tunnel.channel())
        return cls(tunnel, channel, stack)

    async def work(self, tally: Tally) -> None:
        """Two calls: one on its own, one on the stream; then whatever is in flight is answered."""
        async with self._busy:
            await self._count(tally, self._unary)
            await self._count(tally, self._streamed)

    async def _unary(self) -> bool:
        return await self.unary(b"x" * 200, timeout=HANG_S) == b"x" * 200

    async def _streamed(self) -> bool:
        await self.echo.write(b"y" * 200)
        return await self.echo.read() == b"y" * 200

    async def _count(self, tally: Tally, exchange: Callable[[], Awaitable[bool]]) -> None:
        tally.calls += 1
        try:
            answered = await exchange()
        except LOST:
            answered = False
        tally.failed += not answered

    async def break_off(self, tally: Tally, *, drain: bool) -> None:
        """Close; with `drain` only once nothing is in flight and the stream has ended well."""
        if drain:
            async with self._busy:
                await self.echo.done_writing()
                tally.dropped += await self.echo.read() is not grpc.aio.EOF
        tally.streams += 1
        await self._stack.aclose()


class Client:
    """A load generator that keeps working while its connection is replaced under it."""

    def __init__(self, svid_watcher: SvidWatcher, port: int, tally: Tally) -> None:
        self._svid_watcher = svid_watcher
        self._port = port
        self._tally = tally
        self.connection: Connection

    async def __aenter__(self) -> Self:
        await until(lambda: self._svid_watcher.current() is not None)
        self.connection = await self._make()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.break_off(self._tally, drain=True)

    async def _make(self) -> Connection:
        svid = self._svid_watcher.current()
        assert svid is not None
        return await Connection.make(svid, self._port)

    async def rotate(self, *, make_before_break: bool) -> None:
        """Follow the SVID watcher to its next SVID."""
        await until(lambda: self._svid_watcher.current() is not self.connection.svid)
        old = self.connection
        if not make_before_break:
            await old.break_off(self._tally, drain=False)
            self.connection = await self._make()
            return
        new = await self._make()
        await new.work(self._tally)
        self.connection = new
        await old.break_off(self._tally, drain=True)

    async def load(self, calls: int) -> None:
        for _ in range(calls // 2):
            await self.connection.work(self._tally)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for happens on other threads
        await asyncio.sleep(0.001)


@dataclass
class Scene:
    api: InsecureWorkloadApi
    clients: list[Client]
    tally: Tally
    server: EchoServer


@asynccontextmanager
async def scene(directory: Path, tally: Tally) -> AsyncIterator[Scene]:
    with InsecureWorkloadApi(directory) as api:
        async with AsyncExitStack() as stack:

            def keep(name: str, spiffe_id: SpiffeId) -> SvidWatcher:
                endpoint = api.add(name, str(spiffe_id))
                limits = Limits(tick=0.05)
                svid_watcher = SvidWatcher.dialing(
                    endpoint, exactly(spiffe_id), SystemClock(), limits
                )
                return stack.enter_context(svid_watcher)

            errors: list[str] = []
            source = keep("controller", CONTROLLER)
            await until(lambda: source.current() is not None)
            server = await stack.enter_async_context(
                EchoServer(server_credentials(source, errors.append))
            )
            clients = []
            for number in range(CLIENTS):
                svid_watcher = keep(
                    f"n{number}", SpiffeId("example.org", f"/gpuwarden/agent/n{number}")
                )
                client = Client(svid_watcher, server.port, tally)
                clients.append(await stack.enter_async_context(client))
            yield Scene(api, clients, tally, server)
            assert errors == []


async def rotate_under_load(stage: Scene, turn: int, *, make_before_break: bool) -> None:
    """One rotation in the middle of `CALLS_PER_TURN` calls of each client."""
    loads = [asyncio.create_task(client.load(CALLS_PER_TURN)) for client in stage.clients]
    await until(lambda: stage.tally.calls > turn * CALLS_PER_TURN * CLIENTS)
    act: Callable[[], None] = stage.api.rotate
    if turn in NEW_CA_AT:
        act = stage.api.rotate_ca
    elif turn in OLD_CA_GONE_AT:
        act = stage.api.retire_ca
    await asyncio.to_thread(act)
    for client in stage.clients:
        await client.rotate(make_before_break=make_before_break)
    await asyncio.gather(*loads)


@pytest.mark.timeout(HANG_S)
async def test_thirty_rotations_under_load_fail_no_call_and_drop_no_stream(
    tmp_path: Path,
) -> None:
    tally = Tally()
    async with scene(tmp_path, tally) as stage:
        for turn in range(ROTATIONS):
            await rotate_under_load(stage, turn, make_before_break=True)
        generations = {facts.leaf_der for facts in stage.server.seen}
    assert tally.calls >= CALLS
    assert (tally.failed, tally.dropped) == (0, 0)
    assert tally.streams == (ROTATIONS + 1) * CLIENTS
    assert len(generations) >= ROTATIONS * CLIENTS


async def test_without_make_before_break_the_same_load_sees_calls_fail(tmp_path: Path) -> None:
    tally = Tally()
    async with scene(tmp_path, tally) as stage:
        for turn in range(3):
            await rotate_under_load(stage, turn, make_before_break=False)
    assert tally.failed > 0
