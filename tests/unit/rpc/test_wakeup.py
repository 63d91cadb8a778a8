"""A waiter wakes for whatever rings, for time, and for nothing else."""

import asyncio

import pytest

from controller.rpc.calls import Wakeup

LONG_S = 3600.0


async def test_time_wakes() -> None:
    await asyncio.wait_for(Wakeup().wait(0.0), 5)


async def test_a_ring_wakes_and_only_once() -> None:
    wakeup = Wakeup()
    waiting = asyncio.ensure_future(wakeup.wait(LONG_S))
    await asyncio.sleep(0)
    wakeup.ring()
    wakeup.ring()
    await asyncio.wait_for(waiting, 5)
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
    await asyncio.wait_for(waiting, 5)


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
    await asyncio.wait_for(wakeup.wait(0.0), 5)
