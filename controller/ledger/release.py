"""When a GPU is free again: not when its pod is gone, but when its node has shown it. Pure.

A pod that was force-deleted can outlive its object by seconds, or with kubelet down for as
long as it likes. So a holder is Releasing from its pod's end until the node's agent has
reported twice in a row, both asked for after the end was known here, that no process of
the pod uses a GPU, that none is in its cgroup, and that kubelet has not given it this one. A
reboot after the end does as much as the first of them. A node that is gone is waited for, then
let go; a node that is merely silent or terminating keeps what it has.

Moments are this replica's CLOCK_BOOTTIME: a report is as young as the challenge that it
answers, and a replica that starts begins to count anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from controller.ledger.attempt import Move
from controller.ledger.pods import PodSight, is_over
from controller.ledger.record import (
    GpuRecord,
    Holder,
    PodRef,
    RecordInvalidError,
    demand_gpus,
)
from controller.ledger.states import HolderState, Origin

DEFAULT_GRACE_NS: Final = 300 * 1_000_000_000
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
    """UIDs of pods of which any process runs, as far as the agent tells; None where it could not
    look."""

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
    )


def is_quiet(report: UseReport, pod: PodRef, gpu: str, *, succeeded: bool = False) -> bool:
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
    """Whether the GPU was settled on a later pod of the same name, as of a StatefulSet."""
    return any(
        x.origin is Origin.SETTLEMENT
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
    if watch is not None and watch.quiet >= _ENOUGH:
        return Move(HolderState.RELEASED, "its node shows nothing of it any more")
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
