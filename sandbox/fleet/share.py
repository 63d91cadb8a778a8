"""The part of a simulated fleet that lives in one process and one event loop."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from sandbox.fleet.hardware import NodeHardware
from sandbox.fleet.node import SimulatedNode, Surroundings
from sandbox.fleet.plan import Happening, Kind

AT_THE_DOOR: Final = 40
"""Agents of a process that have been started and not been accepted yet."""
_LOOK_S: Final = 0.05


class Share:
    """Nodes by their number in the whole fleet."""

    def __init__(
        self, around: Surroundings, hardware: Mapping[int, NodeHardware], *, seed: int
    ) -> None:
        self.tally = around.tally
        self.nodes = {
            number: SimulatedNode(around, one, random.Random(f"{seed} {number}"))  # noqa: S311 - repeatable on purpose
            for number, one in hardware.items()
        }
        self._busy: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def start(self, per_second: float) -> None:
        """Start all agents, at most so many a second, and no faster than they are let in.

        Handshakes that a busy machine does not finish in time are begun anew, so without
        the second bound a fleet that starts too fast never stands.
        """
        loop = asyncio.get_running_loop()
        due, waiting = loop.time(), list[SimulatedNode]()
        for node in self.nodes.values():
            while len(waiting) >= AT_THE_DOOR:
                await asyncio.sleep(_LOOK_S)
                waiting = [one for one in waiting if not one.accepted_hash]
                due = max(due, loop.time())
            await _until(due)
            node.start()
            waiting.append(node)
            due += 1 / per_second

    async def live(self, happenings: Sequence[Happening]) -> None:
        """Carry out what happens to nodes of this share; returns after the last of it."""
        begun = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            for one in happenings:
                if one.node in self.nodes:
                    await _until(begun + one.at_s)
                    tasks.create_task(self._happen(one))

    async def stop(self) -> None:
        """End all agents in good order."""
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))

    async def _happen(self, one: Happening) -> None:
        node = self.nodes[one.node]
        async with self._busy[one.node]:
            match one.kind:
                case Kind.DROP:
                    await node.drop()
                case Kind.RESTART:
                    await node.restart()
                case Kind.ROTATE:
                    node.rotate()
                case Kind.UPGRADE:
                    await node.upgrade()
        self.tally.happened[one.kind] += 1


async def _until(time: float) -> None:
    await asyncio.sleep(max(0.0, time - asyncio.get_running_loop().time()))
