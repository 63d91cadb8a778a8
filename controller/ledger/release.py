"""Decides when a GPU is free again, what is recorded of kubelet's allocations, and what drifts.

Pure. Must not claim GPUs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from controller.ledger.attempt import Move
from controller.ledger.record import (
    MAX_HOLDERS,
    GpuRecord,
    Holder,
    HolderState,
    Origin,
    PodRef,
    PodSeen,
    PodSight,
    RecordInvalidError,
    demand_gpus,
    is_over,
    key_of,
)
from controller.ledger.restore import LivePod
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode, Refusal

# --- release
# A GPU is free not when its pod is gone, but when its node has shown it. A pod that was deleted
# by force can outlive its object. The steps of a release:
#
# 1. The pod has ended, or its node is gone: Confirmed becomes Releasing (`end_step`).
# 2. Two reports of the agent in a row, both asked for after the end was known here, show no
#    process of the pod on any GPU, none in its cgroup, and no allocation of this GPU by kubelet
#    (`after_report`). A reboot after the end replaces the first of them.
# 3. Releasing becomes Released (`release_step`).
# 4. A node that was deleted and stays silent for `reservation.nodeGoneGrace` releases too. A node
#    that is only silent keeps what it has, until it is heard or an operator releases it.
#
# Moments are this replica's CLOCK_BOOTTIME: a report is as young as the challenge that it
# answers. A replica that starts begins to count again.

DEFAULT_GRACE_NS: Final = 300 * NS_PER_S
"""`reservation.nodeGoneGrace`."""
_ENOUGH: Final = 2


@dataclass(frozen=True, slots=True)
class GivenDevice:
    """A device that kubelet gave to a pod; PodResources knows no UIDs."""

    namespace: str
    pod: str
    device: str


@dataclass(frozen=True, slots=True)
class UseReport:
    """What one report of a node's agent, verified here, showed of use."""

    boot_id: str
    asked_ns: int
    """When the challenge was made that it answers: it was sampled later."""
    users: Mapping[str, frozenset[str | None]] | None
    """GPU or MIG UUID -> UIDs of the pods whose processes use it (None: of no pod); None where
    processes could not be read."""
    given: frozenset[GivenDevice] | None
    """None where kubelet could not be asked."""
    pods: frozenset[str] | None = frozenset()
    """UIDs of pods of which any process runs, as far as the agent reports; None where it could not
    look."""
    evidence: str = ""
    """Digest of the evidence that it is in."""

    def may_run(self, uid: str | None) -> bool:
        """Whether a pod may still run; what could not be read says that it may."""
        if self.users is None or self.pods is None or uid in self.pods:
            return True
        return any(uid in users for users in self.users.values())


@dataclass(frozen=True, slots=True)
class NodeGone:
    """The node's object is gone, for this replica since `since_ns`, proven all the while."""

    since_ns: int


@dataclass(frozen=True, slots=True)
class ReleaseWatch:
    """What this replica remembers of one Releasing holder."""

    since_ns: int
    """When its pod was first known here to have ended."""
    last_asked_ns: int = 0
    """Of the last report that was counted."""
    quiet: int = 0
    """Reports in a row that show nothing of the pod, as far as they count."""
    boot_ids: frozenset[str] = field(default_factory=frozenset)
    """Seen in reports since the end."""
    evidence: str = ""
    """Digest of the evidence of the last report that was counted."""

    @property
    def is_shown(self) -> bool:
        """Whether the node has shown that nothing of the pod is left."""
        return self.quiet >= _ENOUGH


def watch_release(watch: ReleaseWatch | None, pod: PodSight, now_ns: int) -> ReleaseWatch | None:
    """Go on watching while the pod is proven to have ended; None, from the start, if not.

    A pod that is alive after all (its end came from a ledger that was put back) is never
    let go of, however quiet it is.
    """
    if not is_over(pod):
        return watch if pod is None else None
    return ReleaseWatch(now_ns) if watch is None else watch


def after_report(
    watch: ReleaseWatch, holder: Holder, gpu: str, report: UseReport, *, succeeded: bool = False
) -> ReleaseWatch:
    """Count one report; `succeeded` as in `is_quiet`."""
    if report.asked_ns <= max(watch.since_ns, watch.last_asked_ns):
        return watch
    rebooted = bool(watch.boot_ids) and report.boot_id not in watch.boot_ids
    quiet = 0
    if is_quiet(report, holder.pod, gpu, succeeded=succeeded):
        quiet = _ENOUGH if rebooted else min(watch.quiet + 1, _ENOUGH)
    return replace(
        watch,
        last_asked_ns=report.asked_ns,
        quiet=quiet,
        boot_ids=watch.boot_ids | {report.boot_id},
        evidence=report.evidence,
    )


def is_quiet(report: UseReport, pod: PodRef, gpu: str, *, succeeded: bool) -> bool:
    """Whether the report shows nothing of the pod; what could not be read shows nothing at all.

    `succeeded`: a later pod of the same name has the GPU, so what kubelet says of that name is
    said of it (`has_successor`).
    """
    if report.given is None or report.may_run(pod.uid):
        return False
    if succeeded:
        return True
    name = (pod.namespace, pod.name)
    return not any((x.namespace, x.pod) == name and card_of(x.device) == gpu for x in report.given)


def has_successor(record: GpuRecord, holder: Holder) -> bool:
    """Whether kubelet gave the GPU to a later pod of the same name, as of a StatefulSet."""
    return any(
        x.origin is Origin.KUBELET
        and x.state is HolderState.CONFIRMED
        and x.pod.uid != holder.pod.uid
        and (x.pod.namespace, x.pod.name) == (holder.pod.namespace, holder.pod.name)
        for x in record.holders
    )


def card_of(device: str) -> str | None:
    """UUID of the GPU or MIG device that kubelet's id of a device names, if it names one.

    Time-sliced devices have a suffix: `GPU-…::3`.
    """
    uuid = device.partition("::")[0]
    try:
        demand_gpus((uuid,))
    except RecordInvalidError:
        return None
    return uuid


def release_step(
    watch: ReleaseWatch | None,
    gone: NodeGone | None,
    last_asked_ns: int,
    now_ns: int,
    grace_ns: int,
) -> Move | None:
    """Whether a Releasing holder is to be let go.

    `last_asked_ns`: of the node's last report, 0 where there was none.
    """
    if watch is not None and watch.is_shown:
        cause = "its node shows nothing of it any more"
        return Move(HolderState.RELEASED, cause, watch.evidence)
    return _gone(gone, last_asked_ns, now_ns, grace_ns)


def end_step(holder: Holder, pod: PodSight, gone: NodeGone | None) -> Move | None:
    """Whether a Confirmed holder begins to be released."""
    if holder.state is not HolderState.CONFIRMED:
        return None
    if is_over(pod):
        return Move(HolderState.RELEASING, "its pod has ended")
    return None if gone is None else Move(HolderState.RELEASING, "its node is gone")


def _gone(gone: NodeGone | None, last_asked_ns: int, now_ns: int, grace_ns: int) -> Move | None:
    if gone is None:
        return None
    silent_since_ns = max(gone.since_ns, last_asked_ns)
    if now_ns - silent_since_ns < grace_ns:
        return None
    return Move(HolderState.RELEASED, "its node is gone for good")


# --- release by an operator
# An operator's order replaces what a silent node does not report. It contradicts nobody: it is
# refused while the pod has not ended (RESERVATION_IN_FORCE) and while the node's last report,
# until its lease is over, shows use by the pod (RESERVATION_IN_USE).

_INSTEAD: Final = {
    HolderState.PROPOSED: "an attempt expires by itself",
    HolderState.CONFIRMED: "delete its pod first",
}


@dataclass(frozen=True, slots=True)
class Known:
    """What an operator's word is judged by."""

    pod: PodSight
    """At its newest; PodGone for one that was never born."""
    report: UseReport | None
    """The node's last; None where its lease is over, or nothing was heard."""


def released_by_operator(
    record: GpuRecord | None, reservation: str, known: Known
) -> GpuRecord | Refusal | None:
    """The record without that holder, or why not; None where the GPU is free of it already.

    Other holders keep the GPU. RESERVATION_IN_FORCE: its pod has not ended, as far as is known.
    RESERVATION_IN_USE: the node shows something of it.
    """
    holder = None if record is None else record.holder(reservation)
    if record is None or holder is None:
        return None
    if holder.state is not HolderState.RELEASING:
        instead = _INSTEAD.get(holder.state, "it has ended")
        return Refusal(ReasonCode.RESERVATION_IN_FORCE, f"it is {holder.state}: {instead}")
    if not is_over(known.pod):
        return Refusal(ReasonCode.RESERVATION_IN_FORCE, "its pod has not ended: delete it first")
    succeeded = has_successor(record, holder)
    shown = shown_use(known.report, holder.pod, record.gpu, succeeded=succeeded)
    if shown is not None:
        return Refusal(ReasonCode.RESERVATION_IN_USE, f"{record.node} shows {shown}")
    return record.moved(reservation, HolderState.RELEASED)


def shown_use(report: UseReport | None, pod: PodRef, gpu: str, *, succeeded: bool) -> str | None:
    """What a report positively shows of the pod, in words; what was not read shows nothing.

    A process of it counts wherever it runs, as in `is_quiet`, and so does `succeeded`.
    """
    if report is None:
        return None
    users = report.users or {}
    used = sorted(uuid for uuid, uids in users.items() if pod.uid is not None and pod.uid in uids)
    if used:
        return f"a process of the pod on {used[0]}"
    if pod.uid is not None and pod.uid in (report.pods or ()):
        return "a process of the pod"
    name = (pod.namespace, pod.name)
    given = (x for x in report.given or () if (x.namespace, x.pod) == name)
    if not succeeded and any(card_of(x.device) == gpu for x in given):
        return "that kubelet gives it to a pod of that name"
    return None


# --- kubelet's allocation
# On a node with a stock device plugin nothing can be claimed before kubelet has chosen. The
# record is made from the agent's signed evidence: which pod has which GPU. It begins as
# Confirmed. Each GPU is a reservation of its own, so a report that shows more only adds. A record
# is never taken from its holder. Kubelet names pods, so a pod with the name of one that is being
# released waits until nothing of that one runs.


@dataclass(frozen=True, slots=True)
class GivenGpu:
    """A GPU that kubelet has given to a bound pod that has not ended."""

    pod: PodRef
    """With its UID."""
    node: str
    gpu: str


def allocation_recorded(
    record: GpuRecord | None, given: GivenGpu, reservation: str, call: str, report: UseReport
) -> GpuRecord | None:
    """The record to write so that the GPU is held for the pod; None where there is none to write.

    `report`: the one that shows it. `call` as in a claim. Raises RecordInvalidError.
    """
    part = Holder(
        reservation,
        given.pod,
        (given.gpu,),
        Origin.KUBELET,
        call,
        HolderState.CONFIRMED,
        restored=True,
    )
    if record is None:
        return GpuRecord(given.gpu, given.node, (part,))
    if record.node != given.node or record.of_pod(given.pod.uid or "") is not None:
        return None
    if len(record.holders) >= MAX_HOLDERS or any(
        _may_be_meant(x, given.pod, report) for x in record.holders
    ):
        return None
    return record.with_holder(part)


def _may_be_meant(holder: Holder, pod: PodRef, report: UseReport) -> bool:
    """Whether the holder is an earlier pod of that name of which something may run."""
    if (holder.pod.namespace, holder.pod.name) != (pod.namespace, pod.name):
        return False
    return report.may_run(holder.pod.uid)


# --- drift
# Every replica compares the ledger with the world, and grants nothing on a node before. It counts
# and shows what it finds. It repairs one thing: a live pod without its record, after a quorum
# read of that pod. Attempts and ended pods are no drift: `binding.reconciliation` decides about
# them.


class DriftKind(StrEnum):
    """What does not agree; a metric's label."""

    POD_UNRECORDED = "pod_unrecorded"
    """A live pod's GPU is not held for it: its record is restored after a quorum read."""
    HELD_TWICE = "held_twice"
    """Several holders that are not of one share group, since one of them was restored."""
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
    restore: LivePod | None = None
    """The pod whose record `restored_for_pod` makes, once a quorum read shows the pod unchanged.
    Where the pod has gone before, `restored_as_releasing` makes it."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Pods and GPUs of the cluster as this replica knows them."""

    pods: Mapping[str, PodSeen]
    """By UID."""
    live: tuple[LivePod, ...]
    """Bound pods that have not ended and whose reservation ids are authentic."""
    gpu_nodes: Mapping[str, str]
    """`key_of(gpu)` -> the node that showed it in accepted evidence."""


def find_drift(snapshot: LedgerSnapshot, world: ClusterState) -> tuple[Drift, ...]:
    """All disagreements, by GPU."""
    found = [*_unrecorded(snapshot, world)]
    for entry in snapshot.entries.values():
        found += _in_record(entry.record, snapshot, world)
    return tuple(sorted(found, key=lambda x: (key_of(x.gpu), x.kind, x.reservation)))


def unrecorded_nodes(drifts: tuple[Drift, ...]) -> frozenset[str]:
    """Nodes on which nothing is granted before their pods have their records again."""
    return frozenset(x.node for x in drifts if x.kind is DriftKind.POD_UNRECORDED)


def _unrecorded(snapshot: LedgerSnapshot, world: ClusterState) -> Iterator[Drift]:
    for pod in world.live:
        for gpu in pod.gpus:
            if not _is_recorded(snapshot.get(gpu), pod):
                yield Drift(DriftKind.POD_UNRECORDED, gpu, pod.node, pod.reservation, pod)


def _is_recorded(entry: Entry | None, pod: LivePod) -> bool:
    if entry is None or entry.record.node != pod.node:
        return False
    return entry.record.holder(pod.reservation) is not None


def _in_record(record: GpuRecord, snapshot: LedgerSnapshot, world: ClusterState) -> Iterator[Drift]:
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
    return all(x.origin is Origin.KUBELET for x in record.holders)


def _of_holder(
    record: GpuRecord, holder: Holder, snapshot: LedgerSnapshot, world: ClusterState
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
