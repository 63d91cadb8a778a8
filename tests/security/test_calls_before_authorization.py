"""Nobody may hold a call slot, or the server's memory, before it is known who is calling."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from controller.access import LOCAL
from controller.rpc.interceptor import AuthorizationInterceptor, local_caller
from controller.rpc.server import AddService, local_server
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.error_metadata import REASON_KEY
from tests.fakes.calls import SeenCalls
from tests.fakes.clock import FakeClock

CHECK = "/grpc.health.v1.Health/Check"
LIST = "/gpuwarden.wire.v1.FleetService/ListNodes"
WATCH = "/grpc.health.v1.Health/Watch"
DEADLINE = 5.0


async def _stranger(_context: object, _method: str, _now: datetime, /) -> Refusal:
    return Refusal(ReasonCode.PEER_ROLE_UNKNOWN, "nobody we know")


@asynccontextmanager
async def _serving(
    path: Path,
    authenticate: Any,
    services: tuple[AddService, ...] = (),
    observer: SeenCalls | None = None,
    **limits: Any,
) -> AsyncIterator[Any]:
    interceptor = AuthorizationInterceptor(
        authenticate=authenticate, observer=observer or SeenCalls(), clock=FakeClock(), **limits
    )
    server = local_server(path=path / "s", interceptor=interceptor, services=services)
    await server.start()
    async with aio.insecure_channel(server.address) as channel:
        yield channel
    await server.stop(0)


@pytest.mark.parametrize("method", [CHECK, WATCH])
async def test_an_unknown_caller_is_refused_before_its_request_is_read(
    tmp_path: Path, method: str
) -> None:
    async with _serving(tmp_path, _stranger) as channel:
        call = channel.stream_stream(method)()  # says nothing at all
        async with asyncio.timeout(DEADLINE):
            assert await call.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_known_caller_cannot_hold_a_slot_by_saying_nothing(tmp_path: Path) -> None:
    async with _serving(tmp_path, local_caller(LOCAL), request_seconds=0.1) as channel:
        call = channel.stream_unary(CHECK)(_silence())
        async with asyncio.timeout(DEADLINE):
            assert await call.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_call_without_any_request_is_malformed(tmp_path: Path) -> None:
    async with _serving(tmp_path, local_caller(LOCAL)) as channel:
        call = channel.stream_unary(CHECK)(iter(()))
        async with asyncio.timeout(DEADLINE):
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_one_caller_cannot_take_all_calls(tmp_path: Path) -> None:
    async with _serving(tmp_path, local_caller(LOCAL), calls_per_caller=3) as channel:
        watches = [channel.unary_stream(WATCH)(b"") for _ in range(3)]
        for watch in watches:
            await watch.read()
        assert await _reason(channel) == ReasonCode.LIMIT_STREAMS
        watches[0].cancel()
        while await _reason(channel) is not None:
            pass  # until the server has seen the end; the test's own timeout is the bound


async def _fails(_request: object, _context: object) -> object:
    raise ValueError("what no caller should read")


async def test_a_fault_is_reported_without_its_text(tmp_path: Path) -> None:
    service, _, method = LIST[1:].partition("/")

    def add(server: aio.Server) -> None:
        handlers: dict[str, Any] = {method: grpc.unary_unary_rpc_method_handler(_fails)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    calls = SeenCalls()
    async with _serving(tmp_path, local_caller(LOCAL), (add,), calls) as channel:
        call = channel.unary_unary(LIST)(b"", timeout=DEADLINE)
        assert await call.code() is grpc.StatusCode.INTERNAL
        assert "read" not in await call.details()
    ((failed, error),) = calls.faults
    assert (failed, type(error)) == (LIST, ValueError)


async def _reason(channel: Any) -> object:
    call = channel.unary_unary(CHECK)(b"", timeout=DEADLINE)
    if await call.code() is grpc.StatusCode.OK:
        return None
    return dict(await call.trailing_metadata()).get(REASON_KEY)


async def _silence() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""
