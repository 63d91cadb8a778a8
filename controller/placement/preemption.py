"""Which nodes may be emptied for a pod: what /preempt answers.

kube-scheduler chooses nodes and victims by what it counts itself: a node that it finds full never
reaches /filter. So the nodes that it wants to empty are judged here by the very code of /filter,
as they will be once the victims are gone. Must not add a node or a victim to what was asked.

An eviction cannot be taken back. So what is not known to help is refused: GPUs of which nobody
knows who has them, or that kubelet has given on a node where it gives none, stay taken.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from controller.fleet.view import NodeView
from controller.ledger.record import HolderState, PodRef, key_of
from controller.ledger.store import Entry
from controller.placement.filter_and_score import FilterOutcome, HeldBack, filter_nodes
from controller.placement.requirements import Requirements, RequirementsInvalid
from controller.placement.snapshot import Scene
from controller.placement.verdict_cache import PlacementMemory, packed
from gpuwarden.reasons import ReasonCode

Uids = AbstractSet[str]
"""Of pods."""


def preempt_nodes(
    victims: Mapping[str, Uids],
    needs: Requirements | RequirementsInvalid,
    scene: Scene,
    denied: AbstractSet[str] = frozenset(),
    held_back: HeldBack | None = None,
) -> FilterOutcome:
    """Decide for every node of `victims` whether the pod would pass there without these pods.

    `denied` and `held_back`: as in `filter_nodes`.
    """
    return filter_nodes(list(victims), needs, _without(victims, scene), denied, held_back)


def none_of(names: Sequence[str]) -> FilterOutcome:
    """No node is emptied: the pod waits for GPUs that are being given back."""
    return FilterOutcome([], {}, lambda: packed([ReasonCode.GPU_BUSY]) * len(names), names)


def waits_for(
    node: str,
    needs: Requirements | RequirementsInvalid,
    scene: Scene,
    is_leaving: Callable[[PodRef], bool],
    denied: AbstractSet[str] = frozenset(),
) -> bool:
    """Whether the pod only waits until its nominated node gives back what its victims had.

    kube-scheduler counts no GPUs of `env` nodes: once the victims are deleted it sees room there,
    /filter still says GPU_BUSY, and it would empty the next node. `is_leaving`: whether a pod is
    being deleted or gone.
    """
    if node in denied:
        return True
    leaving = {
        uid
        for entry in _entries(node, scene)
        for holder in entry.record.holders
        if (uid := holder.pod.uid) is not None
        and (holder.state is HolderState.RELEASING or is_leaving(holder.pod))
    }
    if filter_nodes([node], needs, scene).passed:
        return False
    return bool(preempt_nodes({node: leaving}, needs, scene).passed)


# --- a scene without some pods


def _without(gone: Mapping[str, Uids], scene: Scene) -> Scene:
    """The nodes of `gone` alone, as they are when these pods are gone and all is given back.

    Nothing of it may be remembered: these nodes and this use never were.
    """
    freed = frozenset(
        entry.record.gpu
        for node, uids in gone.items()
        for entry in _entries(node, scene)
        if all(holder.pod.uid in uids for holder in entry.record.holders)
    )
    known = scene.fleet.nodes
    nodes = {name: _idle(known[name], uids) for name, uids in gone.items() if name in known}
    return replace(
        scene,
        fleet=replace(scene.fleet, nodes=nodes),
        busy=scene.busy - freed,
        claimed=scene.claimed - freed,
        memory=PlacementMemory(),
    )


def _entries(node: str, scene: Scene) -> Iterator[Entry]:
    """What the ledger has of a node's GPUs and MIG devices, shown or not."""
    view = scene.fleet.nodes.get(node)
    if view is None or view.acceptance is None:
        return
    for card in {*scene.parts(node), *(gpu.uuid for gpu in view.acceptance.gpus)}:
        entry = scene.holders.entries.get(key_of(card))
        if entry is not None:
            yield entry


def _idle(node: NodeView, gone: Uids) -> NodeView:
    """The node without the processes of these pods."""
    accepted = node.acceptance
    if accepted is None or not accepted.processes:
        return node
    left = tuple(x for x in accepted.processes if x.pod_uid not in gone)
    counts = Counter(x.gpu for x in left)
    return replace(
        node, acceptance=replace(accepted, processes=left, processes_by_gpu=dict(counts))
    )
