"""Chooses the waiting pods that the scheduler is to try again: as many as can be placed.

They are judged one after the other, in the scheduler's order, by the very code of the binding
webhook, and each counts as placed for the next. Pure. Must not wake anybody.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from controller.admission.node_selection import our_toleration, suits
from controller.admission.pod import AdmittedPod
from controller.binding.decision import (
    BindingView,
    InFlight,
    Placed,
    Refused,
    Reserve,
    held_back,
    on_stored_node,
)
from controller.ledger.record import Origin, PodRef, ShareGroup
from controller.placement.filter_and_score import filter_nodes
from controller.placement.requirements import Requirements, share_group
from controller.placement.snapshot import DeviceUse, Scene
from controller.placement.verdict_cache import PlacementMemory
from gpuwarden.reasons import ReasonCode

MOST_AT_ONCE: Final = 64
"""Pods of one choice."""
MOST_NODES: Final = 16
"""Nodes that are tried for a pod which may go anywhere."""
Question = tuple[Requirements, ShareGroup | None]
Where = tuple[Requirements, ShareGroup | None, str]
UNSURE: Final = frozenset({ReasonCode.CONTROLLER_NOT_READY, ReasonCode.LEDGER_UNAVAILABLE})


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A managed pod that is not bound."""

    ref: PodRef
    """With name and UID."""
    pod: AdmittedPod
    needs: Requirements
    enforced: bool
    """Whether its namespace is."""
    is_awake: bool = False
    """Whether the scheduler tries it just now: it counts as placed, and need not be woken."""

    @property
    def turn(self) -> tuple[int, str, str]:
        """Sorts as kube-scheduler does: by priority, then by age."""
        created = self.pod.metadata.creation_timestamp or ""
        return -(self.pod.spec.priority or 0), created, self.ref.uid or ""


@dataclass(frozen=True, slots=True)
class Room:
    """Where there may be room again."""

    nodes: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()
    """Whose pods may go to any node now: others of them have ended, and they have a quota."""
    everywhere: bool = False
    """Whether that holds for every pod: the policy is another one."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The pods that could all be placed now, and where."""

    pods: tuple[tuple[PodRef, str], ...] = ()
    is_unsure: bool = False
    """Whether something could not be decided just now: then to be asked again."""


def choose_to_wake(
    waiting: Iterable[WaitingPod],
    room: Room,
    view: BindingView,
    use: Callable[[str | None, ShareGroup | None], DeviceUse],
) -> Chosen:
    """Choose among the pods that wait."""
    choice = _Choice(room, _with_own_memory(view), use)
    for pod in sorted(waiting, key=lambda x: x.turn):
        choice.consider(pod)
    return Chosen(tuple(choice.placed), choice.is_unsure)


class _Choice:
    """Who is placed so far."""

    def __init__(
        self,
        room: Room,
        view: BindingView,
        use: Callable[[str | None, ShareGroup | None], DeviceUse],
    ) -> None:
        self._room = room
        self._view = view
        self._use = use
        self._claiming: dict[str, InFlight] = dict(view.claiming)
        self._full: set[Where] = set()
        """What can be placed there no more: the more pods are placed, the less is free."""
        self._hopeless: set[tuple[Question, bool]] = set()
        """Likewise, nowhere; with whether any node was meant."""
        self._anywhere: dict[Question, list[str]] = {}
        self._by_kubelet: dict[str, int] = {}
        """GPUs of nodes where kubelet chooses, for pods that were placed."""
        self.placed: list[tuple[PodRef, str]] = []
        self.is_unsure = view.not_ready is not None

    def consider(self, pod: WaitingPod) -> None:
        """Place the pod, if that can be."""
        if len(self.placed) >= MOST_AT_ONCE or self._view.not_ready is not None:
            return
        question = pod.needs, share_group(pod.pod, pod.needs)
        parts = self._view.ledger.parts_of(pod.ref.uid or "")
        if any(x.origin is Origin.BINDING_WEBHOOK for _, x in parts):
            return  # it was answered: a change would make its Binding fail
        if parts:
            own = sorted({x.record.node for x, _ in parts})
            room = self._room
            meant = [x for x in own if room.everywhere or x in room.nodes]
            self._place_somewhere(pod, question[1], meant)
            return
        anywhere = self._room.everywhere or pod.ref.namespace in self._room.namespaces
        if (question, anywhere) in self._hopeless:
            return
        view, ref = replace(self._view, claiming=self._claiming), pod.ref
        if held_back(view, ref.namespace, ref.uid or "", pod.needs.count) is not None:
            return
        every = self._nodes_for(pod, question, anywhere=anywhere)
        nodes = [x for x in every if (*question, x) not in self._full]
        fitting = [x for x in nodes if self._suits(pod, x)]
        full = self._place_somewhere(pod, question[1], fitting)
        self._full |= {(*question, x) for x in full}
        if len(full) == len(nodes):
            self._hopeless.add((question, anywhere))

    def _place_somewhere(
        self, pod: WaitingPod, share: ShareGroup | None, nodes: Iterable[str]
    ) -> list[str]:
        """On the first of `nodes` that takes it; those that did not."""
        view, full = replace(self._view, claiming=self._claiming), list[str]()
        for node in nodes:
            decision = on_stored_node(view, node, pod.ref, pod.pod, pod.needs)
            if not isinstance(decision, Refused) and self._place(pod, share, node, decision):
                self.is_unsure |= pod.is_awake
                if not pod.is_awake:
                    self.placed.append((pod.ref, node))
                break
            if isinstance(decision, Refused):
                self.is_unsure |= decision.refusals[0].code in UNSURE
            full.append(node)
        return full

    def _nodes_for(self, pod: WaitingPod, question: Question, *, anywhere: bool) -> list[str]:
        nodes = sorted(self._room.nodes)
        if anywhere:
            if question not in self._anywhere:
                self._anywhere[question] = self._passing(pod, question[1])
            others = (x for x in self._anywhere[question] if (*question, x) not in self._full)
            nodes += islice((x for x in others if x not in self._room.nodes), MOST_NODES)
        return nodes

    def _passing(self, pod: WaitingPod, share: ShareGroup | None) -> list[str]:
        used, scene = self._use(pod.ref.uid, share), self._view.scene
        seen = replace(
            scene,
            busy=used.busy,
            shared=used.shared,
            claimed=used.claimed,
            parts=used.parts,
            own=used.own,
            holders=used.holders,
        )
        return filter_nodes(list(scene.fleet.nodes), pod.needs, seen).passed

    def _suits(self, pod: WaitingPod, node: str) -> bool:
        known = self._view.scene.nodes.nodes.get(node)
        ours = our_toleration(enforced=pod.enforced, protected=self._view.scene.protected)
        return known is None or suits(pod.pod, node, known, ours)

    def _place(
        self, pod: WaitingPod, share: ShareGroup | None, node: str, decision: Placed | Reserve
    ) -> bool:
        if isinstance(decision, Reserve):
            self._claiming |= dict.fromkeys(decision.gpus, InFlight(pod.ref, share))
            return True
        placed = self._by_kubelet.get(node, 0) + pod.needs.count
        self._by_kubelet[node] = placed
        return placed <= _gpus_of(self._view.scene, node) or not pod.needs.count


def _gpus_of(scene: Scene, node: str) -> int:
    """Of a node where kubelet gives them: which are free only kubelet and the scheduler know."""
    found = scene.fleet.nodes.get(node)
    if found is None or found.acceptance is None:
        return 0
    return len(scene.memory.pool(node, found.acceptance).devices)


def _with_own_memory(view: BindingView) -> BindingView:
    """What is asked here is asked once: it must not push out what /filter remembers."""
    return replace(view, scene=replace(view.scene, memory=PlacementMemory()))


class NamespaceRoom:
    """Which namespaces hold fewer GPUs than before. One per process."""

    def __init__(self) -> None:
        self._held: Mapping[str, int] = {}

    def freed(self, held: Mapping[str, int], namespaces: Collection[str]) -> frozenset[str]:
        """Those of `namespaces` that hold fewer since the last time they were asked about."""
        before, self._held = self._held, {x: held.get(x, 0) for x in namespaces}
        return frozenset(x for x, count in self._held.items() if count < before.get(x, 0))
