"""Among which GPU types the scorer may choose, and by which node label a choice is said.

Both stand on accepted evidence. A label is used only where it agrees with it: every node that has
the label's value must have shown the type, so that a label that lies draws no pod.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from controller.admission.hints.request import HintedPod
from controller.admission.node_selection import OurToleration, suits, tolerates
from controller.admission.pod import Toleration
from controller.fleet.directory import DirectorySnapshot, Taint
from controller.fleet.view import FleetSnapshot, NodeState
from controller.placement.cures import is_passing
from controller.placement.gpu_type import gpu_type
from controller.placement.node_verdict import Judge
from controller.placement.requirements import Requirements
from controller.placement.snapshot import Scene

GPU_TAINT: Final = Taint("nvidia.com/gpu", "", "NoSchedule")
"""By which GPU nodes commonly keep other pods away."""
GPU_TOLERATION: Final = Toleration(key=GPU_TAINT.key, operator="Exists", effect=GPU_TAINT.effect)
MOST_LOOKED_AT: Final = 1_000
"""Nodes of a type that are judged for one pod: a pod that suits none of so many may suit others,
and its hint is not worth what they would cost."""
_NOMINAL: Final = 0.9
"""A card sold with 24 GB reports some 22.5 GiB."""


@dataclass(frozen=True, slots=True)
class GpuTypes:
    """The types of a fleet; from one moment, so a node is looked up again before it counts."""

    nodes: Mapping[str, tuple[str, ...]]
    """Nodes by type, both in order."""
    memory_gib: Mapping[str, float]
    """The least that a GPU of the type has; absent where one does not say."""
    labels: Mapping[str, tuple[str, tuple[str, ...]]]
    """The node label that tells the type, and its values; absent where none agrees."""


def gpu_types(
    fleet: FleetSnapshot, nodes: DirectorySnapshot, label_keys: Iterable[str]
) -> GpuTypes:
    """The types of all nodes with evidence; of `label_keys` the first that agrees is used."""
    by_node: dict[str, str] = {}
    memory: dict[str, list[int | None]] = {}
    for name, view in fleet.nodes.items():
        found = None if view.acceptance is None else gpu_type(view.acceptance)
        if view.acceptance is not None and found is not None:
            by_node[name] = found
            memory.setdefault(found, []).extend(x.memory_mib for x in view.acceptance.gpus)
    grouped: dict[str, list[str]] = {}
    for name, found in sorted(by_node.items()):
        grouped.setdefault(found, []).append(name)
    labels: dict[str, tuple[str, tuple[str, ...]]] = {}
    for key in label_keys:
        for found, values in _telling(key, by_node, nodes).items():
            labels.setdefault(found, (key, values))
    return GpuTypes(
        MappingProxyType({x: tuple(grouped[x]) for x in sorted(grouped)}),
        MappingProxyType(
            {x: min(all_) / 1024 for x, each in memory.items() if (all_ := _all(each))}
        ),
        MappingProxyType(labels),
    )


def _all(amounts: list[int | None]) -> list[int]:
    """The amounts, or none where one is not known."""
    known = [x for x in amounts if x]
    return known if len(known) == len(amounts) else []


def _telling(
    key: str, by_node: Mapping[str, str], nodes: DirectorySnapshot
) -> Mapping[str, tuple[str, ...]]:
    """The values of a label by the type that they tell: each of one type's nodes alone."""
    types_of: dict[str, set[str | None]] = {}
    for name, known in nodes.nodes.items():
        if key in known.labels:
            types_of.setdefault(known.labels[key], set()).add(by_node.get(name))
    told: dict[str, list[str]] = {}
    for value, found in sorted(types_of.items()):
        (first, *others) = found
        if first is not None and not others:
            told.setdefault(first, []).append(value)
    return {x: tuple(values) for x, values in told.items()}


def candidates(
    pod: HintedPod,
    needs: Requirements,
    types: GpuTypes,
    scene: Scene,
    *,
    ours: OurToleration,
    memory_gib: float | None,
) -> tuple[str, ...]:
    """Types of which a node that is trusted now could serve the pod, at once or once it is free."""
    judge = Judge(needs, scene) if needs.managed else None
    tolerant = _tolerant(pod)
    return tuple(
        found
        for found, names in types.nodes.items()
        if _is_enough(types.memory_gib.get(found), memory_gib)
        and any(_serves(x, tolerant, scene, judge, ours) for x in names[:MOST_LOOKED_AT])
    )


def _is_enough(has: float | None, asked: float | None) -> bool:
    return has is None or asked is None or _NOMINAL * asked <= has


def tolerates_gpus(pod: HintedPod) -> bool:
    """Whether the pod may go to nodes with the common taint."""
    return any(tolerates(x, GPU_TAINT) for x in pod.spec.tolerations or ())


def _tolerant(pod: HintedPod) -> HintedPod:
    """As the hint makes it."""
    tolerations = (*(pod.spec.tolerations or ()), GPU_TOLERATION)
    return msgspec.structs.replace(
        pod, spec=msgspec.structs.replace(pod.spec, tolerations=tolerations)
    )


def _serves(
    name: str, pod: HintedPod, scene: Scene, judge: Judge | None, ours: OurToleration
) -> bool:
    view, known = scene.fleet.nodes.get(name), scene.nodes.nodes.get(name)
    if view is None or known is None or not suits(pod, name, known, ours):
        return False
    if view.state(scene.now.boottime_ns) is not NodeState.ELIGIBLE:
        return False
    refusal = None if judge is None else judge.refusal(name)
    return refusal is None or is_passing(refusal.code)
