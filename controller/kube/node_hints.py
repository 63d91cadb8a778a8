"""Node hints.

Holds: node hints, node toucher.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from controller.admission.mutation import FITS
from controller.admission.pod_view import AdmittedPod
from controller.fleet.enrollment import DirectorySnapshot
from controller.fleet.trust import TrustChange
from controller.kube.client import ApiClient
from controller.kube.hint_plan import HintPlan, LabelChange, WakeupQueue
from controller.kube.resources import GROUP, NODES, ApiError
from controller.placement.texts import WishRules, micro_time
from gpuwarden.clock import Clock
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

# --- node hints
# Keeps the hint labels of nodes as they should be, where no scheduler asks the extender.
#
# One replica does, the leader, and few nodes in a second. What the labels say is trusted by
# nobody: a scheduler that follows an old one meets the gate.

LOOK_SECONDS: Final = 0.5
MOST_PER_LOOK: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class HintPorts:
    """What is asked at each look; all of it answers from memory."""

    waiting: Callable[[], Iterable[AdmittedPod]]
    """Guarded pods of enforced namespaces that are not bound."""
    nodes: Callable[[], DirectorySnapshot]
    passing: Callable[[AdmittedPod], Iterable[str]]
    """The nodes where such a pod would pass."""
    not_ready: Callable[[], str | None]
    """Why nothing may be decided yet, or None."""
    leads: Callable[[], bool]
    boottime_ns: Callable[[], int]


class NodeHints:
    """One per process; used from one event loop."""

    def __init__(
        self, api: ApiClient, ports: HintPorts, rules: WishRules, instruments: Instruments
    ) -> None:
        self._api = api
        self._ports = ports
        self._plan = HintPlan(rules)
        self._count = instruments.counter(names.KUBE_HINTS)
        self._followed = instruments.gauge(names.KUBE_HINTED_WISHES)
        self._log = logger("kube")
        self._told = False

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, NoReturn]]:
        """What has to run, once."""
        return {"kube hints": self.follow()}

    async def follow(self, seconds: float = LOOK_SECONDS) -> NoReturn:
        """Change what is due, for ever; ends by cancellation only."""
        while True:
            await asyncio.sleep(seconds)
            await self.look()

    async def look(self) -> None:
        """Change what is due now; one failure is enough for a while."""
        for change in self._due()[:MOST_PER_LOOK]:
            if not await self._changed(change):
                return

    def _due(self) -> list[LabelChange]:
        ports, now_ns = self._ports, self._ports.boottime_ns()
        nodes = ports.nodes()
        if not ports.leads() or ports.not_ready() is not None or now_ns >= nodes.fresh_until_ns:
            return []
        self._plan.follow(ports.waiting(), now_ns)
        self._followed.set(len(self._plan))
        return self._plan.changes(nodes.nodes, ports.passing)

    async def _changed(self, change: LabelChange) -> bool:
        labels = dict.fromkeys(change.add, FITS) | dict.fromkeys(change.remove)
        try:
            await self._api.patch(NODES, change.node, {"metadata": {"labels": labels}})
        except ApiError as error:
            if error.is_not_found:
                return True
            self._failed(error)
            return False
        self._count.labels("changed").inc()
        self._told = False
        return True

    def _failed(self, error: ApiError) -> None:
        self._count.labels("failed").inc()
        if not self._told:
            self._log.warning(Event.KUBE_HINT_FAILED, reason=str(error))
        self._told = True


# --- node toucher
# Touches nodes that pods may go to again, so that the scheduler tries those that wait anew.
#
# Every replica does so for what it has verified itself: whichever the scheduler asks next may
# have been the last to know. Nobody reads the annotation, and nothing trusts it.

ANNOTATION: Final = f"{GROUP}/touched"


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
