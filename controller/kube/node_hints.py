"""Labels and annotations on nodes that help kube-scheduler; nothing here is trusted by anybody.

Hint labels say where a waiting pod would pass, for schedulers that do not ask the extender.
The annotation makes the scheduler try waiting pods again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from controller.admission.mutation import FITS, hinted
from controller.admission.pod import AdmittedPod
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.trust import ChangeKind, TrustChange
from controller.kube.client import ApiClient
from controller.kube.resources import GROUP, NODES, ApiError
from controller.placement.keys import RequirementRules
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S, rfc3339
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

RECONCILE_SECONDS: Final = 0.5
MOST_CHANGES: Final = 10
MOST_REQUIREMENTS: Final = 64
"""So many labels of ours a node has at most."""
KEPT_REQUIREMENT_NS: Final = 60 * NS_PER_S


@dataclass(frozen=True, slots=True)
class LabelChange:
    """What changes about one node."""

    node: str
    add: frozenset[str]
    remove: frozenset[str]


@dataclass(slots=True)
class _Requirement:
    pod: AdmittedPod
    """One that has it."""
    waited_ns: int


class HintPlan:
    """Which hint labels nodes should have, and what to change for that. Pure.

    A node has the label of a requirement while a waiting pod with that requirement would pass
    there. A requirement
    that no pod waits with any more is followed for a while, because such pods come in series.
    """

    def __init__(self, rules: RequirementRules) -> None:
        self._rules = rules
        self._requirements: dict[str, _Requirement] = {}

    def __len__(self) -> int:
        return len(self._requirements)

    def follow(self, waiting: Iterable[AdmittedPod], now_ns: int) -> None:
        """Take up the requirements of the pods that wait now, up to a fixed number.

        Where room is short, one of the namespace that has most makes way for one that has fewer.
        """
        for pod in waiting:
            key = hinted(pod, self._rules)
            if key is not None and (key in self._requirements or self._has_room(pod)):
                self._requirements[key] = _Requirement(pod, now_ns)
        for key, requirement in tuple(self._requirements.items()):
            if now_ns - requirement.waited_ns >= KEPT_REQUIREMENT_NS:
                del self._requirements[key]

    def _has_room(self, pod: AdmittedPod) -> bool:
        if len(self._requirements) < MOST_REQUIREMENTS:
            return True
        counts = Counter(
            requirement.pod.metadata.namespace for requirement in self._requirements.values()
        )
        (most, count), *_ = counts.most_common(1)
        if count <= counts[pod.metadata.namespace] + 1:
            return False
        last = next(x for x in reversed(self._requirements) if self._of(x) == most)
        del self._requirements[last]
        return True

    def _of(self, key: str) -> str | None:
        return self._requirements[key].pod.metadata.namespace

    def changes(
        self, nodes: Mapping[str, KnownNode], passing: Callable[[AdmittedPod], Iterable[str]]
    ) -> list[LabelChange]:
        """What to change, first of all where a label is wrong: a scheduler may be at it now."""
        wanted: dict[str, set[str]] = {}
        for key, requirement in self._requirements.items():
            for node in passing(requirement.pod):
                wanted.setdefault(node, set()).add(key)
        found = [
            LabelChange(name, frozenset(keys - node.hints), node.hints - keys)
            for name, node in nodes.items()
            if node.hints != (keys := wanted.get(name, set()))
        ]
        return sorted(found, key=lambda change: not change.remove)


class NodeHints:
    """Writes the hint labels of nodes: only the leader does, and few nodes in a second.

    Nobody trusts what the labels say: a scheduler that follows an old one meets the binding
    webhook. Used from one event loop.
    """

    def __init__(
        self,
        api: ApiClient,
        *,
        waiting: Callable[[], Iterable[AdmittedPod]],
        nodes: Callable[[], DirectorySnapshot],
        passing: Callable[[AdmittedPod], Iterable[str]],
        not_ready: Callable[[], str | None],
        leads: Callable[[], bool],
        boottime_ns: Callable[[], int],
        rules: RequirementRules,
        instruments: Instruments,
    ) -> None:
        """All callables answer from memory.

        `waiting`: managed pods of enforced namespaces that are not bound; `passing`: the nodes
        where such a pod would pass; `not_ready`: why nothing may be decided yet.
        """
        self._api = api
        self._waiting = waiting
        self._nodes = nodes
        self._passing = passing
        self._not_ready = not_ready
        self._leads = leads
        self._boottime_ns = boottime_ns
        self._plan = HintPlan(rules)
        self._count = instruments.counter(names.KUBE_HINTS)
        self._followed = instruments.gauge(names.KUBE_HINTED_REQUIREMENTS)
        self._log = logger("kube")
        self._reported = False

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, NoReturn]]:
        """What has to run, once."""
        return {"kube hints": self.follow()}

    async def follow(self, seconds: float = RECONCILE_SECONDS) -> NoReturn:
        """Change what is due, forever; ends by cancellation only."""
        while True:
            await asyncio.sleep(seconds)
            await self.reconcile()

    async def reconcile(self) -> None:
        """Change what is due now; one failure is enough for a while."""
        for change in self._due()[:MOST_CHANGES]:
            if not await self._change(change):
                return

    def _due(self) -> list[LabelChange]:
        now_ns, nodes = self._boottime_ns(), self._nodes()
        if not self._leads() or self._not_ready() is not None or now_ns >= nodes.fresh_until_ns:
            return []
        self._plan.follow(self._waiting(), now_ns)
        self._followed.set(len(self._plan))
        return self._plan.changes(nodes.nodes, self._passing)

    async def _change(self, change: LabelChange) -> bool:
        labels = dict.fromkeys(change.add, FITS) | dict.fromkeys(change.remove)
        try:
            await self._api.patch(NODES, change.node, {"metadata": {"labels": labels}})
        except ApiError as error:
            if error.is_not_found:
                return True
            self._failed(error)
            return False
        self._count.labels("changed").inc()
        self._reported = False
        return True

    def _failed(self, error: ApiError) -> None:
        self._count.labels("failed").inc()
        if not self._reported:
            self._log.warning(Event.KUBE_HINT_FAILED, reason=str(error))
        self._reported = True


# --- requeueing of waiting pods

KEPT_NODE_NS: Final = 15 * NS_PER_S
"""How long a node is remembered while no pod waits: the cache of the pods may be behind."""
REQUEUES_PER_SECOND: Final = 10.0
BURST: Final = 20.0
_HELPS: Final = frozenset(
    {
        ChangeKind.FIRST_ACCEPTED,
        ChangeKind.RESTORED,
        ChangeKind.FACTS_CHANGED,
        ChangeKind.GPU_BACK,
    }
)


class RequeueQueue:
    """Nodes whose annotation is to be changed so that waiting pods are tried again. Pure.

    kube-scheduler tries a pod that an extender rejected again only after an event that may help
    it: a changed label, annotation or new condition of a node is one, better evidence is none. A
    change is due while managed pods wait. Few are made in a second: each requeues every such pod.
    """

    def __init__(self) -> None:
        self._since: dict[str, int] = {}
        self._tokens = BURST
        self._filled_ns = 0

    def __len__(self) -> int:
        return len(self._since)

    def add(self, changes: Iterable[TrustChange], now_ns: int) -> None:
        """Take the nodes that may pass now for a pod that was rejected before."""
        self.add_nodes((change.node for change in changes if change.kind in _HELPS), now_ns)

    def add_nodes(self, nodes: Iterable[str], now_ns: int) -> None:
        """Take nodes that have room again, or that a pod may be sent to again."""
        for node in nodes:
            self._since.pop(node, None)
            self._since[node] = now_ns

    def due(self, now_ns: int, *, pods_wait: bool) -> str | None:
        """The node to annotate now, the one that waits longest; it stays until `done`."""
        self._fill(now_ns)
        if not pods_wait:
            self._forget(now_ns)
            return None
        if self._tokens < 1.0 or not self._since:
            return None
        self._tokens -= 1.0
        return next(iter(self._since))

    def done(self, node: str) -> None:
        """It was annotated, or is gone."""
        self._since.pop(node, None)

    def _fill(self, now_ns: int) -> None:
        elapsed_s = max(0, now_ns - self._filled_ns) / NS_PER_S
        self._tokens = min(BURST, self._tokens + elapsed_s * REQUEUES_PER_SECOND)
        self._filled_ns = now_ns

    def _forget(self, now_ns: int) -> None:
        for node, since_ns in tuple(self._since.items()):
            if now_ns - since_ns < KEPT_NODE_NS:
                return
            del self._since[node]


ANNOTATION: Final = f"{GROUP}/requeued"


class NodeRequeuer:
    """Touches nodes that pods may go to again, so that the scheduler tries waiting pods again.

    Every replica does so for what it has verified itself: whichever the scheduler asks next may
    have been the last to know. Nobody reads the annotation, and nothing trusts it. Used from one
    event loop.
    """

    def __init__(
        self,
        api: ApiClient,
        *,
        replica: str,
        pods_wait: Callable[[], bool],
        clock: Clock,
        instruments: Instruments,
    ) -> None:
        """`pods_wait`: whether there is a managed pod that is not bound."""
        self._api = api
        self._replica = replica
        self._pods_wait = pods_wait
        self._clock = clock
        self._queue = RequeueQueue()
        self._count = instruments.counter(names.KUBE_REQUEUES)
        self._log = logger("kube")
        self._reported = False

    def wake(self, changes: Iterable[TrustChange]) -> None:
        """Remember what may help a waiting pod; returns at once."""
        self._queue.add(changes, self._clock.boottime_ns())

    def wake_nodes(self, nodes: Iterable[str]) -> None:
        """The same for nodes that have room again; returns at once."""
        self._queue.add_nodes(nodes, self._clock.boottime_ns())

    async def follow(self, seconds: float = RECONCILE_SECONDS) -> NoReturn:
        """Touch what is due, forever; ends by cancellation only."""
        while True:
            await asyncio.sleep(seconds)
            await self.reconcile()

    async def reconcile(self) -> None:
        """Touch what is due now; one failure is enough for a while."""
        while len(self._queue):
            node = self._queue.due(self._clock.boottime_ns(), pods_wait=self._pods_wait())
            if node is None or not await self._requeue(node):
                return

    async def _requeue(self, node: str) -> bool:
        value = f"{rfc3339(self._clock.wall_ns(), digits=6)} {self._replica}"
        try:
            await self._api.patch(NODES, node, {"metadata": {"annotations": {ANNOTATION: value}}})
        except ApiError as error:
            if error.is_not_found:
                self._queue.done(node)
                return True
            self._failed(error)
            return False
        self._queue.done(node)
        self._count.labels("requeued").inc()
        self._reported = False
        return True

    def _failed(self, error: ApiError) -> None:
        self._count.labels("failed").inc()
        if not self._reported:
            self._log.warning(Event.KUBE_REQUEUE_FAILED, reason=str(error))
        self._reported = True
