"""Drift: where the ledger and the world disagree, and what is written about it. Pure.

Every replica sweeps: none grants anything on a node before it has compared by itself. What it
finds is counted and shown; the one thing that it repairs is a live pod without its record, after
a quorum read of that pod, and the store lets one of equal writes through. Attempts and ended
pods are no drift: `binding.followup` sees to those.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from controller.ledger.adoption import LivePod
from controller.ledger.pods import PodSeen
from controller.ledger.record import GpuRecord, Holder, key_of
from controller.ledger.states import HolderState, Origin
from controller.ledger.store import Entry, LedgerSnapshot


class DriftKind(StrEnum):
    """What does not agree; a metric's label."""

    POD_UNRECORDED = "pod_unrecorded"
    """A live pod's GPU is not held for it: adopted after a quorum read."""
    HELD_TWICE = "held_twice"
    """Several holders that are not of one share group, since one of them was adopted."""
    POD_MISMATCH = "pod_mismatch"
    """A confirmed holder's pod is bound elsewhere or under another reservation."""
    POD_ALIVE = "pod_alive"
    """A holder is being released, but its pod lives: it is kept."""
    GPU_MOVED = "gpu_moved"
    """The GPU was shown by another node than it is reserved on."""
    TORN = "torn"
    """A confirmed reservation lacks some of its GPUs."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One disagreement."""

    kind: DriftKind
    gpu: str
    node: str
    reservation: str
    adopt: LivePod | None = None
    """To be written by `adopted_on`, once a quorum read shows the pod still so; held again by
    `held_again` where the pod has gone before."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The world as this replica knows it."""

    pods: Mapping[str, PodSeen]
    """By UID."""
    live: tuple[LivePod, ...]
    """Bound pods that have not ended and whose reservation ids are authentic."""
    gpu_nodes: Mapping[str, str]
    """`key_of(gpu)` -> the node that showed it in accepted evidence."""


def sweep(snapshot: LedgerSnapshot, world: Surroundings) -> tuple[Drift, ...]:
    """All disagreements, by GPU."""
    found = [*_unrecorded(snapshot, world)]
    for entry in snapshot.entries.values():
        found += _in_record(entry.record, snapshot, world)
    return tuple(sorted(found, key=lambda x: (key_of(x.gpu), x.kind, x.reservation)))


def unrecorded_nodes(drifts: tuple[Drift, ...]) -> frozenset[str]:
    """Nodes on which nothing is granted before their pods have their records again."""
    return frozenset(x.node for x in drifts if x.kind is DriftKind.POD_UNRECORDED)


def _unrecorded(snapshot: LedgerSnapshot, world: Surroundings) -> Iterator[Drift]:
    for pod in world.live:
        for gpu in pod.gpus:
            if not _is_recorded(snapshot.get(gpu), pod):
                yield Drift(DriftKind.POD_UNRECORDED, gpu, pod.node, pod.reservation, pod)


def _is_recorded(entry: Entry | None, pod: LivePod) -> bool:
    if entry is None or entry.record.node != pod.node:
        return False
    return entry.record.holder(pod.reservation) is not None


def _in_record(record: GpuRecord, snapshot: LedgerSnapshot, world: Surroundings) -> Iterator[Drift]:
    first = record.holders[0].reservation
    is_shared = record.is_shared_by(record.share)
    if len(record.holders) > 1 and not is_shared and not _kubelet_gave(record):
        yield Drift(DriftKind.HELD_TWICE, record.gpu, record.node, first)
    if world.gpu_nodes.get(record.key, record.node) != record.node:
        yield Drift(DriftKind.GPU_MOVED, record.gpu, record.node, first)
    for holder in record.holders:
        kind = _of_holder(record, holder, snapshot, world)
        if kind is not None:
            yield Drift(kind, record.gpu, record.node, holder.reservation)


def _kubelet_gave(record: GpuRecord) -> bool:
    """Whether all have it by kubelet's choice: one after the other, or as slices of time."""
    return all(x.origin is Origin.SETTLEMENT for x in record.holders)


def _of_holder(
    record: GpuRecord, holder: Holder, snapshot: LedgerSnapshot, world: Surroundings
) -> DriftKind | None:
    pod = world.pods.get(holder.pod.uid or "")
    if holder.state is HolderState.RELEASING:
        lives = pod is not None and not pod.has_ended and pod.node == record.node
        return DriftKind.POD_ALIVE if lives else None
    if holder.state is not HolderState.CONFIRMED:
        return None
    if pod is not None and (pod.node, pod.reservation) != (record.node, holder.reservation):
        return DriftKind.POD_MISMATCH
    held = {x.record.key for x in snapshot.holding(holder.reservation)}
    return DriftKind.TORN if {key_of(x) for x in holder.gpus} - held else None
