"""Keeps the hint labels of nodes as they should be, where no scheduler asks the extender.

One replica does, the leader, and few nodes in a second. What the labels say is trusted by
nobody: a scheduler that follows an old one meets the gate.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from controller.admission.hint import FITS
from controller.admission.pod_view import AdmittedPod
from controller.fleet.directory import DirectorySnapshot
from controller.kube.api import ApiClient
from controller.kube.errors import ApiError
from controller.kube.hint_plan import HintPlan, LabelChange
from controller.kube.resources import NODES
from controller.scheduling.wish_keys import WishRules
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

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
