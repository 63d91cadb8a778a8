"""A person's watch over real gRPC: asked about again while open, ended where it is refused."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from controller.access import Caller, CallerKind, Person, TokenReviewUnavailableError
from controller.people.reviews import AccessReviews, AccessReviewUnavailableError, TokenReviews
from controller.people.rights import INSPECT, Right
from controller.people.roles import Roles
from controller.rpc.interceptor import AuthorizationInterceptor
from controller.rpc.people import token_person
from controller.rpc.server import local_server
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.error_metadata import REASON_KEY
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import fleet_pb2_grpc as pb_grpc
from tests.fakes.clock import FakeClock
from tests.hang import HANG_S

JANE = Person("jane")
AGAIN_S = 300.0
WATCH = "/gpuwarden.wire.v1.FleetService/WatchNodes"


class Fleet(pb_grpc.FleetServiceServicer):
    """Sends one message and stays; or sends without end."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.is_endless = False

    async def WatchNodes(self, _request: Any, _context: Any) -> AsyncIterator[Any]:  # noqa: N802
        try:
            yield pb.WatchNodesResponse(synced=True)
            while self.is_endless:
                yield pb.WatchNodesResponse(synced=True)
            await asyncio.Event().wait()
        finally:
            self.ended.set()


@dataclass
class World:
    """The API server, time, and who listens to calls."""

    clock: FakeClock = field(default_factory=FakeClock)
    person: Person | None = JANE
    may: bool = True
    is_silent: bool = False
    fails: bool = False
    reviewed: list[str] = field(default_factory=list)
    calls: list[tuple[str, str | None, Refusal | None]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    pauses: "asyncio.Queue[tuple[float, asyncio.Event]]" = field(default_factory=asyncio.Queue)
    fleet: Fleet = field(default_factory=Fleet)
    stub: Any = None

    async def pause(self, seconds: float) -> None:
        """A pause that ends when the test says so."""
        over = asyncio.Event()
        self.pauses.put_nowait((seconds, over))
        await over.wait()

    async def pass_time(self) -> None:
        """Let the pause be over that a call is in."""
        async with asyncio.timeout(HANG_S):
            seconds, over = await self.pauses.get()
        self.clock.advance(seconds)
        over.set()

    def called(self, method: str, caller: Caller | None, refusal: Refusal | None) -> None:
        self.calls.append((method, None if caller is None else caller.name, refusal))

    def hung_up(self, method: str) -> None:
        pass

    def failed(self, method: str, error: Exception) -> None:
        self.failures.append(f"{method} {error}")


class Tokens:
    def __init__(self, world: World) -> None:
        self._world = world

    async def review(self, _token: str) -> Person | None:
        self._world.reviewed.append("token")
        if self._world.fails:
            raise ZeroDivisionError
        if self._world.is_silent:
            raise TokenReviewUnavailableError("the API server did not answer")
        return self._world.person


class Rights:
    def __init__(self, world: World) -> None:
        self._world = world

    async def review(self, person: Person, right: Right) -> bool:
        self._world.reviewed.append("right")
        if self._world.is_silent:
            raise AccessReviewUnavailableError("the API server did not answer")
        return (person, right) == (JANE, INSPECT) and self._world.may


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World()
    boottime_ns = made.clock.boottime_ns
    reviews: TokenReviews[Person] = TokenReviews(
        Tokens(made), boottime_ns=boottime_ns, reviewed=lambda _: None
    )
    roles = Roles(AccessReviews(Rights(made), boottime_ns=boottime_ns, reviewed=lambda _: None))
    server = local_server(
        path=tmp_path / "s",
        interceptor=AuthorizationInterceptor(
            authenticate=token_person(reviews, roles),
            observer=made,
            clock=made.clock,
            again_s=AGAIN_S,
            pause=made.pause,
        ),
        services=(lambda s: pb_grpc.add_FleetServiceServicer_to_server(made.fleet, s),),
    )
    await server.start()
    async with aio.insecure_channel(server.address) as channel:
        made.stub = pb_grpc.FleetServiceStub(channel)
        yield made
    await server.stop(0)


async def watching(world: World) -> Any:
    """A watch that has begun."""
    call = world.stub.WatchNodes(
        pb.WatchNodesRequest(), metadata=(("authorization", "Bearer abc"),), timeout=HANG_S
    )
    assert (await call.read()).synced
    return call


async def read_to_its_end(call: Any) -> None:
    """Raises what the call ends with."""
    while await call.read():
        pass


async def test_a_watch_goes_on_while_it_is_allowed(world: World) -> None:
    call = await watching(world)
    assert world.reviewed == ["token", "right"]
    for times in (2, 3):
        await world.pass_time()
        seconds, _ = again = await asyncio.wait_for(world.pauses.get(), HANG_S)
        world.pauses.put_nowait(again)
        assert seconds == AGAIN_S
        assert world.reviewed == ["token", "right"] * times
    assert not call.done()
    assert world.calls == [(WATCH, "user jane", None)]


def token_is_gone(world: World) -> None:
    world.person = None


def right_is_gone(world: World) -> None:
    world.may = False


def api_is_silent(world: World) -> None:
    world.is_silent = True


def review_fails(world: World) -> None:
    world.fails = True


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        (token_is_gone, grpc.StatusCode.UNAUTHENTICATED, ReasonCode.TOKEN_INVALID),
        (right_is_gone, grpc.StatusCode.PERMISSION_DENIED, ReasonCode.ROLE_DENIED),
        (api_is_silent, grpc.StatusCode.UNAVAILABLE, ReasonCode.TOKEN_REVIEW_UNAVAILABLE),
        (review_fails, grpc.StatusCode.UNAVAILABLE, ReasonCode.ACCESS_REVIEW_UNAVAILABLE),
    ],
)
async def test_a_watch_ends_when_it_is_refused(
    world: World, change: Any, status: grpc.StatusCode, code: ReasonCode
) -> None:
    call = await watching(world)
    change(world)
    await world.pass_time()
    with pytest.raises(aio.AioRpcError) as found:
        await call.read()
    assert found.value.code() is status
    assert dict(found.value.trailing_metadata() or ())[REASON_KEY] == code
    await asyncio.wait_for(world.fleet.ended.wait(), HANG_S)
    (_, first, allowed), (method, caller, refusal) = world.calls
    assert (first, allowed) == ("user jane", None)
    assert (method, caller) == (WATCH, "user jane")
    assert refusal is not None
    assert refusal.code is code
    assert bool(world.failures) is (change is review_fails)


async def test_nobody_is_asked_about_a_watch_that_is_over(world: World) -> None:
    call = await watching(world)
    call.cancel()
    await asyncio.wait_for(world.fleet.ended.wait(), HANG_S)
    await world.pass_time()
    await watching(world)
    assert world.reviewed == ["token", "right"] * 2


# --- the end comes while something is being sent


@dataclass
class Once:
    """Allows a call, and refuses it when asked again. Neither takes time."""

    asked: int = 0

    async def authenticate(self, *_: Any) -> Caller | Refusal:
        self.asked += 1
        if self.asked == 1:
            return Caller(CallerKind.INSPECTOR, "user jane", None, JANE)
        return Refusal(ReasonCode.TOKEN_INVALID, "withdrawn")


@pytest.mark.parametrize("notice", ["", "a controller of the evaluation"])
async def test_an_end_that_comes_with_the_first_message_is_told(
    tmp_path: Path, notice: str
) -> None:
    world = World()

    async def no_pause(_: float) -> None:
        pass

    server = local_server(
        path=tmp_path / "s",
        interceptor=AuthorizationInterceptor(
            authenticate=Once().authenticate,
            observer=world,
            clock=world.clock,
            notice=notice,
            pause=no_pause,
        ),
        services=(lambda s: pb_grpc.add_FleetServiceServicer_to_server(world.fleet, s),),
    )
    await server.start()
    async with aio.insecure_channel(server.address) as channel:
        call = pb_grpc.FleetServiceStub(channel).WatchNodes(pb.WatchNodesRequest(), timeout=HANG_S)
        with pytest.raises(aio.AioRpcError) as found:
            await read_to_its_end(call)
        assert found.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert found.value.details() == "TOKEN_INVALID: withdrawn"
    await server.stop(0)


async def test_an_end_that_comes_with_a_later_message_is_told(world: World) -> None:
    world.fleet.is_endless = True
    call = await watching(world)
    right_is_gone(world)
    await world.pass_time()
    with pytest.raises(aio.AioRpcError) as found:
        await read_to_its_end(call)
    assert found.value.code() is grpc.StatusCode.PERMISSION_DENIED
    await asyncio.wait_for(world.fleet.ended.wait(), HANG_S)
