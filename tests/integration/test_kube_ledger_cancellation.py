"""The ledger on GPUReservation objects, whose callers go at any moment."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from controller.kube.api.client import Answer, ApiClient, Request
from controller.kube.api.resources import ApiError
from controller.kube.objects.reservations import (
    RESERVATION_KIND,
    KubernetesLedgerStore,
    reservation_object,
)
from controller.ledger.record import GpuRecord, HolderState
from controller.ledger.store import Entry
from gpuwarden.clock import SystemClock
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.ledger import holder, record
from tests.contracts.ledger_store import ID, entry
from tests.fakes.api_server import DirectExchange, FakeApiServer

COLLECTION = "gpureservations"
_SECOND = 1_000_000_000


class SlowExchange(DirectExchange):
    """Takes steps before and behind each call; while `is_busy` it answers 429."""

    def __init__(self, server: FakeApiServer) -> None:
        super().__init__(server)
        self.is_busy = False
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    @contextlib.asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        await asyncio.sleep(0)
        await self.may_go_on.wait()
        if self.is_busy:
            raise ApiError("too many requests", 429)
        async with super().exchange(request) as answer:
            await asyncio.sleep(0)
            yield answer


class World:
    """A store without a watch, what others do, and what is stored."""

    def __init__(self, server: FakeApiServer) -> None:
        self.server = server
        self.exchange = SlowExchange(server)
        self.store, self.others = self._store(), self._store()

    def _store(self) -> KubernetesLedgerStore:
        return KubernetesLedgerStore(
            ApiClient(self.exchange, Instruments(Process.CONTROLLER, "test")),
            clock=SystemClock(),
            instruments=Instruments(Process.CONTROLLER, "test"),
            stale_after_ns=60 * _SECOND,
            jitter=lambda: 0.5,
        )

    async def given(self, gpu: str) -> Entry:
        assert await self.store.compare_and_set(None, record(holder(gpu), gpu=gpu))
        return entry(self.store, gpu)

    async def ended_by_others(self, gpu: str) -> None:
        """Its object is left."""
        assert await self.others.compare_and_set(None, record(holder(gpu), gpu=gpu))
        first = entry(self.others, gpu)
        body = self.server.objects.get(COLLECTION, gpu.lower())
        over = reservation_object(first.record.moved(ID, HolderState.EXPIRED))
        self.server.change(
            COLLECTION, {**body, "spec": over["spec"], "metadata": {"name": gpu.lower()}}
        )

    def stored(self, gpu: str) -> GpuRecord | None:
        """The record, unless it is closed."""
        if gpu.lower() not in self.server.objects.all(COLLECTION):
            return None
        text = self.server.objects.text(COLLECTION, gpu.lower())
        found = RESERVATION_KIND.entry(text.encode())[1].value.entry.record
        return None if found.is_closed else found

    def demand_nothing_left(self, gpu: str) -> None:
        """Neither a request that the cache waits for, nor a lock that somebody holds."""
        objects = self.store._objects
        assert objects._objects._pending == set()
        assert not objects.turn(gpu.lower()).locked()
        assert objects._writing._value == 16


async def after_steps(work: Coroutine[Any, Any, Any], steps: int) -> bool:
    """Whether it was still at work after so many steps of the loop, and was cancelled."""
    task = asyncio.ensure_future(work)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()


Work = Callable[[], Coroutine[Any, Any, object]]


async def _read(world: World, gpu: str) -> Work:
    await world.given(gpu)
    return lambda: world.store.read(gpu)


async def _create(world: World, gpu: str) -> Work:
    return lambda: world.store.compare_and_set(None, record(holder(gpu), gpu=gpu))


async def _create_where_there_is_one(world: World, gpu: str) -> Work:
    assert await world.others.compare_and_set(None, record(holder(gpu), gpu=gpu))
    return await _create(world, gpu)


async def _create_behind_an_end(world: World, gpu: str) -> Work:
    await world.ended_by_others(gpu)
    return await _create(world, gpu)


async def _change(world: World, gpu: str) -> Work:
    first = await world.given(gpu)
    confirmed = first.record.moved(ID, HolderState.CONFIRMED)
    return lambda: world.store.compare_and_set(first, confirmed)


async def _change_what_another_has_changed(world: World, gpu: str) -> Work:
    work = await _change(world, gpu)
    seen = await world.others.read(gpu)
    assert seen is not None
    assert await world.others.compare_and_set(seen, seen.record.moved(ID, HolderState.RELEASING))
    return work


async def _end(world: World, gpu: str) -> Work:
    first = await world.given(gpu)
    over = first.record.moved(ID, HolderState.EXPIRED)
    return lambda: world.store.compare_and_set(first, over)


async def _show(world: World, gpu: str) -> Work:
    await world.given(gpu)
    return world.store.show


class TestCancellation:
    """The caller goes at whatever moment; a webhook's does when its time is over."""

    @pytest.mark.parametrize(
        "prepare",
        [
            _read,
            _create,
            _create_where_there_is_one,
            _create_behind_an_end,
            _change,
            _change_what_another_has_changed,
            _end,
            _show,
        ],
    )
    @pytest.mark.parametrize("is_behind_another", [False, True])
    async def test_it_leaves_nothing_wherever_it_comes(
        self,
        server: FakeApiServer,
        prepare: Callable[[World, str], Awaitable[Work]],
        is_behind_another: bool,
    ) -> None:
        world = World(server)
        steps, is_over = 0, False
        while not is_over:
            gpu = f"GPU-{steps}"
            work = await prepare(world, gpu)
            others = [asyncio.create_task(world.store.read(gpu))] if is_behind_another else []
            await asyncio.sleep(0)
            is_over = not await after_steps(work(), steps)
            await asyncio.gather(*others)
            world.demand_nothing_left(gpu)
            await self._demand_right_answers(world, gpu)
            steps += 1
        assert steps > 4

    async def test_also_while_the_server_wants_us_to_wait(self, server: FakeApiServer) -> None:
        world = World(server)
        for steps, prepare in enumerate((_read, _create, _change, _end, _show)):
            gpu = f"GPU-{steps}"
            work = await prepare(world, gpu)
            world.exchange.is_busy = True
            assert await after_steps(work(), 8)
            world.exchange.is_busy = False
            world.demand_nothing_left(gpu)
            await self._demand_right_answers(world, gpu)

    async def test_also_while_there_are_too_many_requests(self, server: FakeApiServer) -> None:
        world = World(server)
        work = await _change(world, "GPU-a")
        world.exchange.may_go_on.clear()
        many = [asyncio.create_task(world.store.read(f"GPU-{n}")) for n in range(20)]
        await asyncio.sleep(0)
        assert await after_steps(work(), 8)
        world.exchange.may_go_on.set()
        await asyncio.gather(*many)
        world.demand_nothing_left("GPU-a")
        await self._demand_right_answers(world, "GPU-a")

    async def test_a_write_that_may_be_done_is_found_out_by_the_next(
        self, server: FakeApiServer
    ) -> None:
        world = World(server)
        steps, done = 0, [False]
        while True:
            gpu = f"GPU-{steps}"
            first = await world.given(gpu)
            confirmed = first.record.moved(ID, HolderState.CONFIRMED)
            if not await after_steps(world.store.compare_and_set(first, confirmed), steps):
                break
            is_done = world.stored(gpu) == confirmed
            releasing = first.record.moved(ID, HolderState.RELEASING)
            assert await world.store.compare_and_set(first, releasing) is not is_done
            assert entry(world.store, gpu).record == (confirmed if is_done else releasing)
            steps, done = steps + 1, [*done, is_done]
        assert {*done} == {True, False}

    @staticmethod
    async def _demand_right_answers(world: World, gpu: str) -> None:
        found = await world.store.read(gpu)
        assert (None if found is None else found.record) == world.stored(gpu)
        if found is None:
            new = record(holder(gpu), gpu=gpu)
        else:
            part = found.record.holders[0]
            new = found.record.with_holder(replace(part, answers=part.answers + 1))
        assert await world.store.compare_and_set(found, new)
        assert world.stored(gpu) == entry(world.store, gpu).record == new
