"""What the gate decides by, besides the Binding and the pod: one moment's snapshots. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from controller.admission.rules import AdmissionRules
from controller.ledger.claim import open_attempt
from controller.ledger.pod_use import Holders
from controller.ledger.record import PodRef, ShareGroup
from controller.ledger.reservation_id import ReservationIds
from controller.ledger.states import HolderState
from controller.ledger.store import Entry, LedgerSnapshot
from controller.scheduling.device_facts import Device
from controller.scheduling.scene import Scene
from gpuwarden.reasons import Refusal

GrantRefusal = Callable[[str, tuple[str, ...]], Refusal | None]
"""What is against granting GPUs of a node now, besides their records (`ledger.footing`)."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Whom a claim that is on its way is for."""

    pod: PodRef
    share: ShareGroup | None = None


@dataclass(frozen=True, slots=True)
class GateView:
    """Made anew for every decision."""

    scene: Scene
    """As /filter has it, without what is busy."""
    ledger: LedgerSnapshot
    claiming: Mapping[str, InFlight]
    """GPUs that claims of this very moment are about, and for whom."""
    ids: ReservationIds | None
    """None where `admission.idKeys` is not set: then nothing can be reserved."""
    rules: AdmissionRules
    not_ready: str | None
    """Why nothing may be decided about guarded pods yet, or None."""
    grant_refusal: GrantRefusal
    quota: int | None = None
    """GPUs of one namespace at most (`reservation.quotaPerNamespace`)."""
    report: bool = False
    """Report-only mode: pods are not injected, and nothing is claimed."""


def scene_on(
    view: GateView, node: str, pod_uid: str, share: ShareGroup | None, own: str = ""
) -> Scene:
    """The scene with what is busy for the pod, as `Occupancy` has it, of one node only.

    `pod_uid` is empty, and so nobody's, for a pod that is not there yet; `own`: a reservation
    that may become its own.
    """
    uuids = _uuids_on(view, node) | view.ledger.parts_on(node)
    shared = frozenset(x for x in uuids if _is_shared(view.ledger.get(x), share))
    busy = frozenset(
        x
        for x in uuids
        if _is_claimed(view.claiming.get(x), pod_uid, share)
        or (x not in shared and _is_held(view.ledger.get(x), pod_uid, own))
    )
    held = {x: entry for x in uuids if (entry := view.ledger.get(x)) is not None}
    claimed = frozenset(x for x, entry in held.items() if entry.record.is_claimed)
    return replace(
        view.scene,
        busy=busy,
        shared=shared,
        own=frozenset(held) - busy - shared,
        claimed=claimed,
        parts=view.ledger.parts_on,
        holders=Holders(view.ledger.entries),
    )


def held_by_namespace(view: GateView, namespace: str, pod_uid: str) -> int:
    """GPUs that count against a namespace's quota; the pod's own open attempts do not."""
    held = sum(
        holder.pod.namespace == namespace and not _is_own_attempt(entry, pod_uid)
        for entry in view.ledger.entries.values()
        for holder in entry.record.holders
    )
    return held + sum(
        claim.pod.namespace == namespace and claim.pod.uid != pod_uid
        for claim in view.claiming.values()
    )


def asked_before(view: GateView, node: str, pod_uid: str) -> tuple[str, ...]:
    """The GPUs of the pod's open attempt on a node, or of a claim that is on its way."""
    attempt = open_attempt(view.ledger, pod_uid, node)
    if attempt is not None:
        return attempt.gpus
    own = (gpu for gpu, claim in view.claiming.items() if claim.pod.uid == pod_uid)
    there = {x.uuid for x in _devices_of(view, node)}
    return tuple(gpu for gpu in own if gpu in there)


def _is_claimed(claim: InFlight | None, pod_uid: str, share: ShareGroup | None) -> bool:
    """Pods of one share group claim side by side: the ledger joins them."""
    if claim is None or claim.pod.uid == pod_uid:
        return False
    return share is None or claim.share != share


def _is_shared(entry: Entry | None, share: ShareGroup | None) -> bool:
    return entry is not None and entry.record.is_shared_by(share)


def _is_held(entry: Entry | None, pod_uid: str, own: str = "") -> bool:
    return entry is not None and not _is_own_attempt(entry, pod_uid, own)


def _is_own_attempt(entry: Entry, pod_uid: str, own: str = "") -> bool:
    """A record with others in it stays taken."""
    holders = entry.record.holders
    return (
        len(holders) == 1
        and (holders[0].pod.uid == pod_uid or holders[0].reservation == own)
        and holders[0].state is HolderState.PROPOSED
    )


def _uuids_on(view: GateView, node: str) -> frozenset[str]:
    """Of all GPUs that a node shows, and of their parts."""
    found = view.scene.fleet.nodes.get(node)
    gpus = () if found is None or found.acceptance is None else found.acceptance.gpus
    return frozenset(x for gpu in gpus for x in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices)))


def _devices_of(view: GateView, node: str) -> tuple[Device, ...]:
    found = view.scene.fleet.nodes.get(node)
    if found is None or found.acceptance is None:
        return ()
    return view.scene.memory.pool(node, found.acceptance).devices
