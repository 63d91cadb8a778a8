"""Reads everything that one evidence says about the node: GPUs and kubelet's allocations at once.

Neither waits for the other longer than the slower of the two takes, and each is bounded by
itself. Decides nothing.
"""

import asyncio
from dataclasses import replace
from typing import Protocol

from agent.attester import GpuInventorySource
from agent.claims.allocations import NOT_ASKED, AllocationReading
from agent.gpu.reading import InventoryReading


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
