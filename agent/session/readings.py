"""Readings of the node: GPUs and kubelet's allocations side by side, shared by all streams.

A reading serves a challenge only if it began after the challenge had come. While a reading runs,
all who ask meanwhile share the next one: three replicas that challenge at once cost one or two
readings, never three, and never a stale one.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from agent.attester import GpuInventorySource
from agent.claims.allocations import NOT_ASKED, AllocationReading
from agent.gpu.reading import InventoryReading
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S


class AllocationSource(Protocol):
    """Kubelet's account; the real one is its PodResources API."""

    async def read(self) -> AllocationReading:
        """What is allocated now; bounded in time by the source itself."""

    async def aclose(self) -> None:
        """Let go of kubelet."""


class NoAllocations:
    """The source of an agent that is not to ask kubelet."""

    async def read(self) -> AllocationReading:
        """Nothing was asked."""
        return NOT_ASKED

    async def aclose(self) -> None:
        """Nothing to let go of."""


class NodeSource:
    """Implements `GpuInventorySource` for the node as a whole."""

    def __init__(self, gpus: GpuInventorySource, allocations: AllocationSource) -> None:
        self._gpus = gpus
        self._allocations = allocations

    async def read(self) -> InventoryReading:
        """Both, begun after this call. Raises what the GPUs raise."""
        asking = asyncio.create_task(self._allocations.read(), name="allocations")
        try:
            reading = await self._gpus.read()
            return replace(reading, allocations=await asking)
        finally:
            asking.cancel()


class SharedReadings:
    """One reading at a time; callers that come during one wait for the next.

    `run` is a long-lived task of the process: what the source raises means that
    this process can never read again, so it goes up to the supervisor from there.
    """

    def __init__(
        self,
        source: GpuInventorySource,
        clock: Clock,
        record: Callable[[InventoryReading, float], None],
    ) -> None:
        """`record` gets each reading and how many seconds it took."""
        self._source = source
        self._clock = clock
        self._record = record
        self._asked = asyncio.Event()
        self._waiting: list[asyncio.Future[InventoryReading]] = []

    async def read(self) -> InventoryReading:
        """A reading that begins after this call; waits for as long as the source takes."""
        future: asyncio.Future[InventoryReading] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._asked.set()
        return await future

    async def run(self) -> None:
        """Serve until cancelled; raises what the source raises."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            serving, self._waiting = self._waiting, []
            if all(future.done() for future in serving):
                continue  # whoever asked has gone
            begun_ns = self._clock.boottime_ns()
            reading = await self._source.read()
            self._record(reading, (self._clock.boottime_ns() - begun_ns) / NS_PER_S)
            for future in serving:
                if not future.done():
                    future.set_result(reading)
