"""Labels on nodes that help kube-scheduler; nothing here is trusted by anybody.

Hint labels say where a waiting pod would pass, for schedulers that do not ask the extender.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from controller.admission.mutation import FITS, hinted
from controller.admission.pod import AdmittedPod
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.kube.api.client import ApiClient
from controller.kube.nodes.node_labels import Labels, NodeLabels
from controller.placement.keys import RequirementRules
from gpuwarden.moment import NS_PER_S
from gpuwarden.telemetry import names
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

    def labels(self) -> Labels:
        """As a patch."""
        return dict.fromkeys(self.add, FITS) | dict.fromkeys(self.remove)


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
        self._waiting = waiting
        self._nodes = nodes
        self._passing = passing
        self._not_ready = not_ready
        self._leads = leads
        self._boottime_ns = boottime_ns
        self._plan = HintPlan(rules)
        self._labels = NodeLabels(
            api,
            "hint",
            MOST_CHANGES,
            changes=names.KUBE_HINTS,
            failed=Event.KUBE_HINT_FAILED,
            boottime_ns=boottime_ns,
            instruments=instruments,
        )
        self._followed = instruments.gauge(names.KUBE_HINTED_REQUIREMENTS)

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, NoReturn]]:
        """What has to run, once."""
        return {"kube hints": self.follow()}

    async def follow(self, seconds: float = RECONCILE_SECONDS) -> NoReturn:
        """Change what is due, forever; ends by cancellation only."""
        while True:
            await asyncio.sleep(seconds)
            await self.reconcile()

    async def reconcile(self) -> None:
        """Change what is due now, few nodes at a time."""
        await self._labels.write((x.node, x.labels()) for x in self._due())

    def _due(self) -> list[LabelChange]:
        now_ns, nodes = self._boottime_ns(), self._nodes()
        if not self._leads() or self._not_ready() is not None or now_ns >= nodes.fresh_until_ns:
            return []
        self._plan.follow(self._waiting(), now_ns)
        self._followed.set(len(self._plan))
        return self._plan.changes(nodes.nodes, self._passing)
