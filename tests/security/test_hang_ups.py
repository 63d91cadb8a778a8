"""A caller that hangs up at any moment is no fault of the controller and leaves no traceback."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from structlog.testing import capture_logs

from controller.access import LOCAL
from controller.rpc.calls import abort_with
from controller.rpc.interceptor import AuthorizationInterceptor, local_caller
from controller.rpc.server import local_server
from gpuwarden.reasons import ReasonCode, Refusal
from tests.fakes.attestation_world import World
from tests.fakes.calls import SeenCalls
from tests.fakes.clock import FakeClock
from tests.hang import HANG_S

METHOD = "/gpuwarden.wire.v1.FleetService/ListNodes"
REFUSAL = Refusal(ReasonCode.PEER_ROLE_UNKNOWN, "nobody we know")


class Handlers(grpc.GenericRpcHandler):
    """One method, as a test wants it."""

    def __init__(self, behavior: Any) -> None:
        self._handler: Any = grpc.stream_stream_rpc_method_handler(behavior)

    def service(self, handler_call_details: Any) -> Any:
        return self._handler if handler_call_details.method == METHOD else None


@asynccontextmanager
async def serving(
    path: Path, behavior: Any, authenticate: Any
) -> AsyncIterator[tuple[str, SeenCalls]]:
    """The address of a server with that method, and what its observer sees."""
    calls = SeenCalls()
    interceptor = AuthorizationInterceptor(
        authenticate=authenticate, observer=calls, clock=FakeClock()
    )
    handlers = Handlers(behavior)
    server = local_server(
        path=path / "s",
        interceptor=interceptor,
        services=(lambda one: one.add_generic_rpc_handlers((handlers,)),),
    )
    await server.start()
    try:
        yield server.address, calls
    finally:
        await server.stop(0)


def call_of(channel: aio.Channel) -> Any:
    """A call with some requests."""
    requests: Any = iter([b""] * 3)
    return channel.stream_stream(METHOD)(requests)


def errors(caplog: pytest.LogCaptureFixture, logs: Any) -> list[str]:
    library = [x.getMessage() for x in caplog.records if x.levelname in {"ERROR", "CRITICAL"}]
    return [*library, *(str(x) for x in logs if x["log_level"] in {"error", "critical"})]


async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
    """Answers each request."""
    async for request in requests:
        await context.write(request)


async def stranger(_context: object, _method: str, _now: datetime) -> Refusal:
    return REFUSAL


@pytest.mark.parametrize("authenticate", [stranger, local_caller(LOCAL)], ids=["no", "yes"])
async def test_a_caller_that_hangs_up_while_it_is_refused_or_let_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, authenticate: Any
) -> None:
    with capture_logs() as logs:
        async with serving(tmp_path, echo, authenticate) as (address, calls):
            for number in range(60):
                async with aio.insecure_channel(address) as channel:
                    call = call_of(channel)
                    for _ in range(number % 7):
                        await asyncio.sleep(0)  # another moment of the call each time
                    if number % 2:
                        call.cancel()
                    with suppress(aio.AioRpcError, asyncio.CancelledError):
                        await call.read()
    assert calls.seen
    assert errors(caplog, logs) == []


@pytest.mark.parametrize("ending", ["write", "abort", "refusal", "read"])
async def test_a_caller_that_is_gone_before_the_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ending: str
) -> None:
    """What gRPC raises then is the call's end, whatever the handler was about to do."""

    began, over = asyncio.Event(), asyncio.Event()

    async def handler(_requests: AsyncIterator[bytes], context: Any) -> None:
        began.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()  # until gRPC cancels it, because the caller is gone
        try:
            if ending == "write":
                await context.write(b"x")
            elif ending == "abort":
                await context.abort(grpc.StatusCode.INTERNAL, "x")
            elif ending == "refusal":
                with suppress(Exception):
                    await context.abort(grpc.StatusCode.INTERNAL, "x")
                await abort_with(context, REFUSAL)
            else:
                await context.read()
        finally:
            over.set()

    with capture_logs() as logs:
        async with (
            serving(tmp_path, handler, local_caller(LOCAL)) as (address, calls),
            aio.insecure_channel(address) as channel,
            asyncio.timeout(HANG_S),
        ):
            call = call_of(channel)
            await began.wait()
            call.cancel()
            await over.wait()
            if ending == "refusal":
                await calls.hang_up.wait()
    assert errors(caplog, logs) == []


async def test_agents_that_hang_up_while_their_stream_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with World() as world:
        with capture_logs() as logs:
            for _ in range(20):
                async with world.client("no-such-node") as client:
                    await asyncio.sleep(0)
                    client._call.cancel()
    assert errors(caplog, logs) == []
