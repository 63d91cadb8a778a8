"""Touches nodes that pods may go to again, so that the scheduler tries those that wait anew.

Every replica does so for what it has verified itself: whichever the scheduler asks next may
have been the last to know. Nobody reads the annotation, and nothing trusts it.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NoReturn

from controller.fleet.node_trust import TrustChange
from controller.kube.api import ApiClient
from controller.kube.errors import ApiError
from controller.kube.micro_time import micro_time
from controller.kube.resources import GROUP, NODES
from controller.kube.wakeup_queue import WakeupQueue
from gpuwarden.clock import Clock
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

ANNOTATION: Final = f"{GROUP}/touched"
LOOK_SECONDS: Final = 0.5


class NodeToucher:
    """One per process; used from one event loop."""

    def __init__(
        self,
        api: ApiClient,
        *,
        replica: str,
        pods_wait: Callable[[], bool],
        clock: Clock,
        instruments: Instruments,
    ) -> None:
        """`pods_wait`: whether there is a guarded pod that is not bound."""
        self._api = api
        self._replica = replica
        self._pods_wait = pods_wait
        self._clock = clock
        self._queue = WakeupQueue()
        self._count = instruments.counter(names.KUBE_TOUCHES)
        self._log = logger("kube")
        self._told = False

    def wake(self, changes: Iterable[TrustChange]) -> None:
        """Remember what may help a waiting pod; returns at once."""
        self._queue.add(changes, self._clock.boottime_ns())

    def wake_nodes(self, nodes: Iterable[str]) -> None:
        """The same for nodes that have room again; returns at once."""
        self._queue.add_nodes(nodes, self._clock.boottime_ns())

    async def follow(self, seconds: float = LOOK_SECONDS) -> NoReturn:
        """Touch what is due, for ever; ends by cancellation only."""
        while True:
            await asyncio.sleep(seconds)
            await self.look()

    async def look(self) -> None:
        """Touch what is due now; one failure is enough for a while."""
        while len(self._queue):
            node = self._queue.due(self._clock.boottime_ns(), pods_wait=self._pods_wait())
            if node is None or not await self._touched(node):
                return

    async def _touched(self, node: str) -> bool:
        value = f"{micro_time(self._clock.wall_ns())} {self._replica}"
        try:
            await self._api.patch(NODES, node, {"metadata": {"annotations": {ANNOTATION: value}}})
        except ApiError as error:
            if error.is_not_found:
                self._queue.done(node)
                return True
            self._failed(error)
            return False
        self._queue.done(node)
        self._count.labels("touched").inc()
        self._told = False
        return True

    def _failed(self, error: ApiError) -> None:
        self._count.labels("failed").inc()
        if not self._told:
            self._log.warning(Event.KUBE_TOUCH_FAILED, reason=str(error))
        self._told = True
