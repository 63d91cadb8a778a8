import asyncio
from typing import Any

import grpc
import pytest
from grpc import aio

from controller.rpc.calls import (
    RequestReader,
    Wakeup,
    read_requests,
    status_of,
    wait_for_left_reads,
)
from gpuwarden.reasons import ReasonCode
from tests.hang import HANG_S

# --- Reads of a stream are never cancelled, whoever stops waiting for them


class Call:
    def __init__(self) -> None:
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        self.reads = 0
        self.cancelled = False

    async def read(self) -> Any:
        self.reads += 1
        try:
            message = await self.incoming.get()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if isinstance(message, Exception):
            raise message
        return message


async def test_one_read_at_a_time_and_its_result_is_taken_once() -> None:
    call: Any = Call()
    reader = RequestReader(call)
    first = reader.pending()
    assert reader.pending() is first
    call.incoming.put_nowait("a")
    await asyncio.wait({first})
    assert reader.take() == "a"
    assert reader.pending() is not first
    reader.leave()
    call.incoming.put_nowait(aio.EOF)
    assert await wait_for_left_reads(5)


async def test_what_is_left_ends_with_its_call_and_can_be_waited_for() -> None:
    call: Any = Call()
    reader = RequestReader(call)
    reader.pending()
    reader.leave()
    reader.leave()
    await asyncio.sleep(0)
    assert not await wait_for_left_reads(0)
    call.incoming.put_nowait(RuntimeError("the call is over"))
    assert await wait_for_left_reads(5)
    assert await wait_for_left_reads(0)
    assert not call.cancelled


async def test_an_iterator_in_the_place_of_grpcs_own() -> None:
    call: Any = Call()
    for message in ("a", "b", aio.EOF):
        call.incoming.put_nowait(message)
    assert [message async for message in read_requests(call)] == ["a", "b"]
    assert call.reads == 3


async def test_cancelling_who_iterates_does_not_cancel_the_read() -> None:
    call: Any = Call()

    async def iterate() -> None:
        async for _ in read_requests(call):
            raise AssertionError("nothing was sent")

    task = asyncio.create_task(iterate())
    while not call.reads:  # noqa: ASYNC110 - a few turns of the loop
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert not call.cancelled
    call.incoming.put_nowait(aio.EOF)
    assert await wait_for_left_reads(5)


async def test_an_error_of_a_read_reaches_who_waits() -> None:
    call: Any = Call()
    call.incoming.put_nowait(ValueError("no message"))
    reader = RequestReader(call)
    await asyncio.wait({reader.pending()})
    with pytest.raises(ValueError, match="no message"):
        reader.take()


# --- A waiter wakes for whatever rings, for time, and for nothing else

LONG_S = 3600.0


async def test_time_wakes() -> None:
    await asyncio.wait_for(Wakeup().wait(0.0), HANG_S)


async def test_a_ring_wakes_and_only_once() -> None:
    wakeup = Wakeup()
    waiting = asyncio.ensure_future(wakeup.wait(LONG_S))
    await asyncio.sleep(0)
    wakeup.ring()
    wakeup.ring()
    await asyncio.wait_for(waiting, HANG_S)
    again = asyncio.ensure_future(wakeup.wait(LONG_S))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()


async def test_a_future_that_is_done_wakes() -> None:
    wakeup = Wakeup()
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.add_done_callback(wakeup.ring)
    waiting = asyncio.ensure_future(wakeup.wait(LONG_S))
    await asyncio.sleep(0)
    future.set_result(1)
    await asyncio.wait_for(waiting, HANG_S)


async def test_a_ring_that_nobody_waits_for_is_forgotten() -> None:
    wakeup = Wakeup()
    wakeup.ring()
    waiting = asyncio.ensure_future(wakeup.wait(LONG_S))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_who_stops_waiting_leaves_nothing_that_rings() -> None:
    wakeup = Wakeup()
    waiting = asyncio.ensure_future(wakeup.wait(LONG_S))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    wakeup.ring()
    await asyncio.wait_for(wakeup.wait(0.0), HANG_S)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ReasonCode.LIMIT_RATE, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (ReasonCode.TLS_RESUMED, grpc.StatusCode.UNAUTHENTICATED),
        (ReasonCode.SVID_EXPIRED, grpc.StatusCode.UNAUTHENTICATED),
        (ReasonCode.NODE_NAME_INVALID, grpc.StatusCode.PERMISSION_DENIED),
        (ReasonCode.ROLE_DENIED, grpc.StatusCode.PERMISSION_DENIED),
        (ReasonCode.NODE_DENIED, grpc.StatusCode.FAILED_PRECONDITION),
        (ReasonCode.BYPASS_ENV, grpc.StatusCode.FAILED_PRECONDITION),
        (ReasonCode.AUDIT_UNAVAILABLE, grpc.StatusCode.UNAVAILABLE),
    ],
)
def test_a_reason_has_a_fitting_status(code: ReasonCode, status: grpc.StatusCode) -> None:
    assert status_of(code) is status


def test_no_refusal_looks_like_success_or_a_crash() -> None:
    statuses = {status_of(code) for code in ReasonCode if code is not ReasonCode.ACCEPTED}
    assert not statuses & {
        grpc.StatusCode.OK,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
