"""The decision about a Binding: untouched, refused, or let through with what is written. Pure.

A pod is judged on its node by the very same code as in /filter, against this moment's
evidence and ledger; GPUs are chosen only then. Nothing here claims: a `Reserve` says what to
claim, and counts once it is claimed and its audit record is durable.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from controller.admission.early import Granted, granted_early
from controller.admission.judgement import validated
from controller.admission.pod_view import AdmittedPod
from controller.binding.forgery import forged_key
from controller.binding.request import BindingRequest
from controller.binding.results import Result, result_annotations
from controller.binding.stored_pod import StoredPod, stale_binding
from controller.binding.view import (
    GateView,
    asked_before,
    held_by_namespace,
    scene_on,
)
from controller.fleet.view import NodeMode
from controller.ledger.early import held_early
from controller.ledger.record import PodRef, ShareGroup, in_claiming_order
from controller.ledger.reservation_id import ReservationSubject
from controller.scheduling.judge import Judge
from controller.scheduling.promise import promise_to
from controller.scheduling.requirements import Requirements, RequirementsInvalid, parse_requirements
from controller.scheduling.reserved_keys import reserved_keys
from controller.scheduling.scene import Scene
from controller.scheduling.share_group import controlling_owner, share_group
from gpuwarden.reasons import ReasonCode, Refusal


@dataclass(frozen=True, slots=True)
class Untouched:
    """The pod asks for nothing of ours, and nothing is against it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The Binding is refused; the first code is the answer's."""

    refusals: tuple[Refusal, ...]
    guarded: bool = False
    """Whether the pod was found and asks for something of ours."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Let through without a reservation: kubelet chooses the GPUs, or none are asked for."""

    annotations: Mapping[str, str]
    evidence: str = ""
    """Digest of the node's evidence that it was judged by; empty without one."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Let through once all of `gpus` are claimed under `reservation`."""

    annotations: Mapping[str, str]
    reservation: str
    pod: PodRef
    gpus: tuple[str, ...]
    """In claiming order."""
    share: ShareGroup | None
    evidence: str = ""
    """As of `Placed`."""


Decision = Untouched | Refused | Placed | Reserve
UNTOUCHED: Final = Untouched()


def forged(request: BindingRequest, view: GateView) -> Refused | None:
    """What is known without the pod: keys that the caller must not bring."""
    refusal = forged_key(request, reserved_keys(view.rules.wishes))
    return None if refusal is None else Refused((refusal,))


def decide_binding(
    request: BindingRequest, stored: StoredPod | None, view: GateView, *, enforced: bool
) -> Decision:
    """Decide; `stored` is None where the API server has no such pod."""
    refusal = forged(request, view)
    if refusal is not None:
        return refusal
    if stored is None:
        return _refused(ReasonCode.POD_UNKNOWN, "there is no such pod")
    stale = stale_binding(request, stored)
    if stale is not None or stored.pod is None:
        return Refused((stale or Refusal(ReasonCode.BINDING_STALE, "the pod is not to be bound"),))
    granted = granted_early(stored.pod, request.namespace, view.ids)
    judged = validated(
        stored.pod, view.rules, enforced=enforced, injected=not view.report, granted=granted
    )
    needs = parse_requirements(stored.pod, view.rules.wishes, enforced=enforced)
    guarded = isinstance(needs, RequirementsInvalid) or needs.guarded
    if judged.refusals:
        return Refused(judged.refusals, guarded)
    if isinstance(needs, RequirementsInvalid) or not needs.guarded:
        return UNTOUCHED
    ref = PodRef(request.namespace, request.pod, stored.uid, controlling_owner(stored.pod))
    early = _held_since_creation(granted, stored.uid, view)
    if early is not None and granted is not None and granted.node != request.node:
        decision: Refused | Placed | Reserve = _refused(
            ReasonCode.RESERVATION_CONFLICT,
            "the pod's GPUs are reserved on another node since its creation",
        )
    else:
        decision = on_node(case_of(view, request.node, ref, stored.pod, needs, early=early))
    return replace(decision, guarded=True) if isinstance(decision, Refused) else decision


def _held_since_creation(granted: Granted | None, uid: str, view: GateView) -> "Early | None":
    """None also where it is over: then the pod is reserved for anew, like any other."""
    if granted is None or held_early(view.ledger, granted.reservation, uid) is None:
        return None
    return Early(granted.reservation, granted.gpus)


@dataclass(frozen=True, slots=True)
class Early:
    """What is reserved for the pod since its creation, and is not chosen anew."""

    reservation: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A guarded pod that is to go to a node."""

    node: str
    ref: PodRef
    pod: AdmittedPod
    needs: Requirements
    share: ShareGroup | None
    scene: Scene
    view: GateView
    early: Early | None = None
    nonce: str | None = None
    """Of a pod without a UID."""

    @property
    def uid(self) -> str:
        """The pod's; empty, and so nobody's, while it is unborn."""
        return self.ref.uid or ""


def case_of(
    view: GateView,
    node: str,
    ref: PodRef,
    pod: AdmittedPod,
    needs: Requirements,
    *,
    early: Early | None = None,
    nonce: str | None = None,
) -> Case:
    """A case with the node's scene as the pod sees it: what it holds itself is free."""
    share = share_group(pod, needs)
    own = "" if early is None else early.reservation
    scene = scene_on(view, node, ref.uid or "", share, own)
    return Case(node, ref, pod, needs, share, scene, view, early, nonce)


def on_node(case: Case) -> Refused | Placed | Reserve:
    """Whether the pod may have its GPUs there now, and which."""
    name, view = case.node, case.view
    if view.not_ready is not None:
        return _refused(ReasonCode.CONTROLLER_NOT_READY, view.not_ready)
    judge = Judge(case.needs, case.scene)
    refusal = judge.refusal(name)
    if refusal is not None:
        return Refused((refusal,))
    node = view.scene.fleet.nodes.get(name)
    mode = NodeMode.ENV if node is None else node.mode
    promise = promise_to(case.needs, name, mode, case.scene)
    result = Result(name, _hash_of(name, view), promise)
    if mode is not NodeMode.ENV or not case.needs.count:
        return Placed(result_annotations(result, case.pod), _evidence_of(name, view))
    return _reserve(case, judge, result)


def _reserve(case: Case, judge: Judge, result: Result) -> Refused | Reserve:
    view, early = case.view, case.early
    if case.scene.now.boottime_ns >= view.ledger.fresh_until_ns:
        return _refused(ReasonCode.LEDGER_UNAVAILABLE, "what is known of the ledger is too old")
    if view.ids is None:
        return _refused(ReasonCode.LEDGER_UNAVAILABLE, "admission.idKeys is not set")
    before = asked_before(view, case.node, case.uid) if early is None else early.gpus
    chosen = tuple(device.uuid for device in judge.assigned(case.node, before))
    if early is not None and frozenset(chosen) != frozenset(early.gpus):
        lost = Refusal(ReasonCode.GPU_LOST, "what was reserved at its creation cannot be had")
        return Refused((view.grant_refusal(case.node, early.gpus) or lost,))
    gpus = in_claiming_order(chosen)
    refusal = _against_grant(case, gpus)
    if refusal is not None:
        return Refused((refusal,))
    if early is None:
        subject = ReservationSubject(case.ref.namespace, case.node, gpus, case.ref.uid)
        reservation = view.ids.make(subject, case.nonce)
    else:
        reservation = early.reservation
    told = replace(result, gpus=chosen, reservation=reservation)
    return Reserve(
        result_annotations(told, case.pod),
        reservation,
        case.ref,
        gpus,
        case.share,
        _evidence_of(case.node, view),
    )


def _against_grant(case: Case, gpus: tuple[str, ...]) -> Refusal | None:
    view, count = case.view, len(gpus) if case.early is None else 0
    over = _against_quota(case.ref.namespace, case.uid, count, view)
    return over or view.grant_refusal(case.node, gpus)


def _against_quota(namespace: str, pod_uid: str, count: int, view: GateView) -> Refusal | None:
    """What is held already stays held: only more is counted."""
    if view.quota is None or not count:
        return None
    held = held_by_namespace(view, namespace, pod_uid)
    if held + count <= view.quota:
        return None
    text = f"the namespace holds {held} GPUs and may hold {view.quota}"
    return Refusal(ReasonCode.QUOTA_EXCEEDED, text)


def _evidence_of(node: str, view: GateView) -> str:
    found = view.scene.fleet.nodes.get(node)
    return "" if found is None or found.acceptance is None else found.acceptance.evidence_digest


def _hash_of(node: str, view: GateView) -> str | None:
    found = view.scene.fleet.nodes.get(node)
    if found is not None and found.acceptance is not None:
        return found.acceptance.attestation_hash
    return view.scene.static.hashes.get(node)


def _refused(code: ReasonCode, text: str) -> Refused:
    return Refused((Refusal(code, text),))
