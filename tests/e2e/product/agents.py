"""Agents of fake nodes: the product's own from the Attester outwards, with made-up hardware.

They live in one event loop of their own, in a thread of the tests' process.
"""

import asyncio
import random
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import uvloop

from gpuwarden.evidence.model import GpuProcess
from gpuwarden.settings.values import Address
from sandbox.fleet.hardware import NodeHardware
from sandbox.fleet.node import FleetEnvironment, See, SimulatedNode
from sandbox.fleet.process import Share
from sandbox.fleet.tally import Tally
from sandbox.spiffe.ca import InsecureCa
from tests.e2e.lab.waiting import until

T = TypeVar("T")
_WAIT_S = 120.0


class Agents:
    """One agent per node, each with a stream to every controller."""

    def __init__(self, controllers: Sequence[Address], ca: InsecureCa) -> None:
        self._around = FleetEnvironment(controllers, ca, (ca.certificate,), Tally())
        self._nodes: dict[str, SimulatedNode] = {}
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agents", daemon=True)
        self._thread.start()

    def start(self, hardware: NodeHardware, see: See | None = None) -> None:
        """Start the agent of a node; returns at once. `see` adds who uses its GPUs."""
        self._do(self._start(hardware, see))

    def start_all(self, hardware: Iterable[NodeHardware], *, per_second: float) -> None:
        """Start many and wait until each was accepted."""
        share = Share(self._around, dict(enumerate(hardware)), seed=1)
        self._nodes |= {node.name: node for node in share.nodes.values()}
        self._do(share.start(per_second))
        for node in share.nodes.values():
            self.hash_of(node.name)

    def use(self, name: str, users: Mapping[str, str]) -> None:
        """Have reports show from now on that these GPUs are used by processes of pods (UIDs)."""
        processes = [GpuProcess(gpu, 1 + n, uid) for n, (gpu, uid) in enumerate(users.items())]
        self._loop.call_soon_threadsafe(self._nodes[name].use, tuple(processes))

    def stop(self, name: str) -> None:
        """End the agent of a node."""
        self._do(self._nodes.pop(name).stop())

    def hash_of(self, name: str) -> str:
        """The class hash with which the node's evidence was accepted last."""
        node = self._nodes[name]
        return until(f"{name} is accepted", lambda: node.accepted_hash, timeout_s=_WAIT_S)

    def close(self) -> None:
        """End all agents."""
        for name in tuple(self._nodes):
            self.stop(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self, hardware: NodeHardware, see: See | None) -> None:
        draw = random.Random(hardware.name)  # noqa: S311 - repeatable on purpose
        node = self._nodes[hardware.name] = SimulatedNode(self._around, hardware, draw, see)
        node.start()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_WAIT_S)
