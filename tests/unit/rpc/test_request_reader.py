"""Reads of a stream are never cancelled, whoever stops waiting for them."""

import asyncio
from typing import Any

import pytest
from grpc import aio

from controller.rpc.calls import RequestReader, read_requests, wait_for_left_reads


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
