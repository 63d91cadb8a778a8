"""The binding decision: whether a pod may be bound to a node, and with which GPUs.

The steps of `decide_binding`, in order, with the reason code that each of them gives:

1. The Binding sets a key that only gpuwarden may write: BINDING_FORGED.
2. The API server has no such pod: POD_UNKNOWN.
3. The pod is another one, has ended, is bound or has changed: BINDING_STALE.
4. The pod fails validation: a BYPASS_* code or REQ_INVALID.
5. The pod is not managed: the Binding stays untouched.
6. The GPUs were reserved on another node at the pod's creation: RESERVATION_CONFLICT.
7. The controller is not ready: CONTROLLER_NOT_READY.
8. The node or its GPUs do not fit, as in /filter: the code of /filter, such as GPU_BUSY.
9. The snapshot of the ledger is too old, or admission.idKeys is not set: LEDGER_UNAVAILABLE.
10. What was reserved at creation cannot be had any more: GPU_LOST.
11. Earlier Bindings of the pod were not stored in time: RESERVATION_EXPIRED.
12. The namespace has reached its quota: QUOTA_EXCEEDED.
13. Startup reconciliation or unreserved use is against it: CONTROLLER_NOT_READY, GPU_BUSY.

Pure. Must not claim: a `Reserve` names what to claim.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never

from controller.admission.early_reservation import EarlyAsk, Granted, granted_early
from controller.admission.node_selection import is_kept, our_toleration, suits
from controller.admission.pod import AdmittedPod
from controller.admission.rules import AdmissionRules
from controller.admission.validation import validated
from controller.binding.request import (
    BindingRequest,
    Result,
    StoredPod,
    forged_key,
    result_annotations,
    stale_binding,
)
from controller.binding.turns import TurnRefusal, no_turns
from controller.fleet.directory import KnownNode, Taint
from controller.ledger.claim import held_early, open_attempt
from controller.ledger.occupancy import Holders
from controller.ledger.record import Holder, HolderState, PodRef, ShareGroup, in_claiming_order
from controller.ledger.reservation_id import ReservationIds, ReservationSubject, request_nonce
from controller.ledger.store import Entry, LedgerSnapshot
from controller.placement.cures import is_passing, rank
from controller.placement.filter_and_score import filter_nodes, prioritize_nodes
from controller.placement.keys import MANAGED_TAINT, reserved_keys
from controller.placement.node_verdict import Judge, promise_to
from controller.placement.refusal_details import detailed
from controller.placement.requirements import (
    Requirements,
    RequirementsInvalid,
    controlling_owner,
    share_group,
)
from controller.placement.snapshot import DeviceUse, Scene
from controller.policy import NodeMode
from gpuwarden.counted import counted
from gpuwarden.reasons import ReasonCode, Refusal

# --- what is known at the moment of a decision

GrantRefusal = Callable[[str, tuple[str, ...]], Refusal | None]
"""What is against granting GPUs of a node now, besides their records (`ledger.reconciliation`)."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Whom a claim that is on its way is for."""

    pod: PodRef
    share: ShareGroup | None = None


@dataclass(frozen=True, slots=True)
class BindingView:
    """Made again for every decision."""

    scene: Scene
    """As /filter has it, without what is busy."""
    ledger: LedgerSnapshot
    claiming: Mapping[str, InFlight]
    """GPUs that claims of this very moment are about, and for whom."""
    ids: ReservationIds | None
    """None where `admission.idKeys` is not set: then nothing can be reserved."""
    rules: AdmissionRules
    not_ready: str | None
    """Why nothing may be decided about managed pods yet, or None."""
    grant_refusal: GrantRefusal
    turn_refusal: TurnRefusal = no_turns
    quota: int | None = None
    """GPUs of one namespace at most (`reservation.quotaPerNamespace`)."""
    report: bool = False
    """Report-only mode: pods are not injected, and nothing is claimed."""


def scene_on(
    view: BindingView, node: str, pod_uid: str, share: ShareGroup | None, own: str
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


def held_back(view: BindingView, namespace: str, pod_uid: str, count: int) -> Refusal | None:
    """What is against giving a pod `count` GPUs whichever they are; asked by /filter, too."""
    turn = view.turn_refusal(pod_uid)
    return turn or _against_quota(view, namespace, pod_uid, count)


def held_by_namespace(view: BindingView, namespace: str, pod_uid: str) -> int:
    """GPUs that count against a namespace's quota; the pod's own open attempts do not."""
    held = view.ledger.held_in.get(namespace, 0) - _attempted(view, pod_uid)
    return held + sum(
        claim.pod.namespace == namespace and claim.pod.uid != pod_uid
        for claim in view.claiming.values()
    )


def _attempted(view: BindingView, pod_uid: str) -> int:
    """GPUs of the pod's open attempts."""
    return sum(_is_own_attempt(entry, pod_uid) for entry, _ in view.ledger.parts_of(pod_uid))


def _against_quota(view: BindingView, namespace: str, pod_uid: str, count: int) -> Refusal | None:
    """What is held already stays held: only more is counted."""
    if view.quota is None or count <= _attempted(view, pod_uid):
        return None
    held = held_by_namespace(view, namespace, pod_uid)
    if held + count <= view.quota:
        return None
    text = f"the namespace holds {counted(held, 'GPU')} and may hold {view.quota}"
    return Refusal(ReasonCode.QUOTA_EXCEEDED, text)


def asked_before(view: BindingView, node: str, pod_uid: str) -> tuple[str, ...]:
    """The GPUs of the pod's open attempt on a node, or of a claim that is on its way."""
    attempt = open_attempt(view.ledger, pod_uid, node)
    if attempt is not None:
        return attempt.gpus
    own = (gpu for gpu, claim in view.claiming.items() if claim.pod.uid == pod_uid)
    there = _uuids_on(view, node)
    return tuple(gpu for gpu in own if gpu in there)


def _is_claimed(claim: InFlight | None, pod_uid: str, share: ShareGroup | None) -> bool:
    """Pods of one share group claim side by side: the ledger joins them."""
    if claim is None or claim.pod.uid == pod_uid:
        return False
    return share is None or claim.share != share


def _is_shared(entry: Entry | None, share: ShareGroup | None) -> bool:
    return entry is not None and entry.record.is_shared_by(share)


def _is_held(entry: Entry | None, pod_uid: str, own: str) -> bool:
    return entry is not None and not _is_own_attempt(entry, pod_uid, own)


def _is_own_attempt(entry: Entry, pod_uid: str, own: str = "") -> bool:
    """A record with others in it stays taken."""
    holders = entry.record.holders
    return (
        len(holders) == 1
        and (holders[0].pod.uid == pod_uid or holders[0].reservation == own)
        and holders[0].state is HolderState.PROPOSED
    )


def _uuids_on(view: BindingView, node: str) -> frozenset[str]:
    """Of all GPUs that a node shows, and of their parts."""
    found = view.scene.fleet.nodes.get(node)
    gpus = () if found is None or found.acceptance is None else found.acceptance.gpus
    return frozenset(x for gpu in gpus for x in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices)))


# --- the decision
# The pod is judged on its node by the code of /filter, by the evidence and the ledger of this
# moment. GPUs are chosen after that. A `Reserve` counts once it is claimed and its audit record
# is durable.


@dataclass(frozen=True, slots=True)
class Untouched:
    """The pod is not managed, and nothing is against it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The Binding is refused; the first code is the answer's."""

    refusals: tuple[Refusal, ...]
    managed: bool = False
    """Whether the pod was found and is managed."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Accepted without a reservation: kubelet chooses the GPUs, or none are asked for."""

    annotations: Mapping[str, str]
    evidence: str
    """Digest of the node's evidence that it was judged by; empty without one."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Accepted once all of `gpus` are claimed under `reservation`."""

    annotations: Mapping[str, str]
    reservation: str
    pod: PodRef
    gpus: tuple[str, ...]
    """In claiming order."""
    share: ShareGroup | None
    evidence: str
    """As of `Placed`."""


Decision = Untouched | Refused | Placed | Reserve
UNTOUCHED: Final = Untouched()


def forged(request: BindingRequest, view: BindingView) -> Refused | None:
    """What is known without the pod: keys that the caller must not bring."""
    refusal = forged_key(request, reserved_keys(view.rules.requirements))
    return None if refusal is None else Refused((refusal,))


def decide_binding(
    request: BindingRequest, stored: StoredPod | None, view: BindingView, *, enforced: bool
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
    needs = judged.needs
    if judged.refusals:
        managed = isinstance(needs, Requirements) and needs.managed
        return Refused(judged.refusals, managed or isinstance(needs, RequirementsInvalid))
    if not isinstance(needs, Requirements) or not needs.managed:
        return UNTOUCHED
    ref = PodRef(request.namespace, request.pod, stored.uid, controlling_owner(stored.pod))
    decision = on_stored_node(view, request.node, ref, stored.pod, needs)
    return replace(decision, managed=True) if isinstance(decision, Refused) else decision


def on_stored_node(
    view: BindingView, node: str, ref: PodRef, pod: AdmittedPod, needs: Requirements
) -> "Refused | Placed | Reserve":
    """`on_node` of a pod that is there, with what was reserved at its creation, if it was."""
    granted = granted_early(pod, ref.namespace, view.ids)
    early = _held_since_creation(granted, ref.uid or "", view)
    if early is not None and granted is not None and granted.node != node:
        text = "the pod's GPUs are reserved on another node since its creation"
        return _refused(ReasonCode.RESERVATION_CONFLICT, text)
    return on_node(case_of(view, node, ref, pod, needs, early=early))


def _held_since_creation(granted: Granted | None, uid: str, view: BindingView) -> "Early | None":
    """None also where it is over: then the pod is reserved for again, like any other."""
    if granted is None or held_early(view.ledger, granted.reservation, uid) is None:
        return None
    return Early(granted.reservation, granted.gpus)


@dataclass(frozen=True, slots=True)
class Early:
    """What is reserved for the pod since its creation, and is not chosen again."""

    reservation: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A managed pod that is to go to a node."""

    node: str
    ref: PodRef
    pod: AdmittedPod
    needs: Requirements
    share: ShareGroup | None
    scene: Scene
    view: BindingView
    early: Early | None = None
    nonce: str | None = None
    """Of a pod without a UID."""

    @property
    def uid(self) -> str:
        """The pod's; empty, and so nobody's, while it is unborn."""
        return self.ref.uid or ""


def case_of(
    view: BindingView,
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
    reserved = replace(result, gpus=chosen, reservation=reservation)
    return Reserve(
        result_annotations(reserved, case.pod),
        reservation,
        case.ref,
        gpus,
        case.share,
        _evidence_of(case.node, view),
    )


def _against_grant(case: Case, gpus: tuple[str, ...]) -> Refusal | None:
    view, count = case.view, len(gpus) if case.early is None else 0
    over = held_back(view, case.ref.namespace, case.uid, count)
    return over or view.grant_refusal(case.node, gpus)


def _evidence_of(node: str, view: BindingView) -> str:
    found = view.scene.fleet.nodes.get(node)
    return "" if found is None or found.acceptance is None else found.acceptance.evidence_digest


def _hash_of(node: str, view: BindingView) -> str | None:
    found = view.scene.fleet.nodes.get(node)
    if found is not None and found.acceptance is not None:
        return found.acceptance.attestation_hash
    return view.scene.static.hashes.get(node)


def _refused(code: ReasonCode, text: str) -> Refused:
    return Refused((Refusal(code, text),))


# --- the choice at a pod's creation
# Among the nodes that pass, the one with the highest score of /prioritize. Selectors, required
# affinity and taints count as well. Other resources and spreading do not.

KUBERNETES_TAINTS: Final = "node.kubernetes.io/"
"""How the taints begin that come and go with a node's state."""
MOST_NODES: Final = 16
"""Of those that pass, how many are tried: what the cache shows as free may be claimed just now."""


@dataclass(frozen=True, slots=True)
class EarlyPlace:
    """What to claim, and where."""

    node: str
    reserve: Reserve


def reference_of(ask: EarlyAsk) -> PodRef:
    """The pod as far as it is known."""
    return PodRef(ask.namespace, ask.pod.metadata.name or None, None, controlling_owner(ask.pod))


def choose_early(
    ask: EarlyAsk,
    view: BindingView,
    use: Callable[[str | None, ShareGroup | None], DeviceUse],
    nodes: Mapping[str, KnownNode],
) -> EarlyPlace | Refusal:
    """Choose a node and GPUs on it; where none can be had, why.

    `nodes`: the cluster's. A pod that names its node goes there, or nowhere.
    """
    if view.not_ready is not None:
        return Refusal(ReasonCode.CONTROLLER_NOT_READY, view.not_ready)
    share = share_group(ask.pod, ask.needs)
    used = use(None, share)
    claimed = {x for x, each in view.claiming.items() if share is None or each.share != share}
    busy = used.busy | claimed if claimed else used.busy
    scene = replace(
        view.scene,
        busy=busy,
        shared=used.shared,
        own=used.own,
        parts=used.parts,
        holders=used.holders,
    )
    names = tuple(_candidates(ask, view, nodes))
    if not names:
        return _nowhere(ask, nodes)
    outcome = filter_nodes(names, ask.needs, scene)
    refused = Counter(outcome.totals().rejected)
    for name in _ranked(outcome.passed, ask.needs, scene)[:MOST_NODES]:
        found = _on(ask, view, name)
        if isinstance(found, EarlyPlace):
            return found
        refused[found.code] += 1
        if len(names) == 1:
            return found
    found = _of_all(refused, outcome.reasons, Judge(ask.needs, scene), scene)
    return found if is_passing(found.code) else _away(ask, view, nodes, scene) or found


def taken_up(ask: EarlyAsk, view: BindingView, held: Holder, node: str) -> EarlyPlace | Refusal:
    """The same reservation for a further pod like it, where it still serves."""
    return _on(ask, view, node, Early(held.reservation, held.gpus))


def _on(
    ask: EarlyAsk, view: BindingView, node: str, early: Early | None = None
) -> EarlyPlace | Refusal:
    nonce = request_nonce(ask.namespace, ask.request)
    case = case_of(view, node, reference_of(ask), ask.pod, ask.needs, early=early, nonce=nonce)
    decision = on_node(case)
    match decision:
        case Reserve() as reserve:
            return EarlyPlace(node, reserve)
        case Refused(refusals):
            return refusals[0]
        case Placed():
            text = "kubelet chooses the GPUs there: none can be reserved before"
            return Refusal(ReasonCode.EXACT_UNAVAILABLE, text)
        case _:
            assert_never(decision)


def _candidates(ask: EarlyAsk, view: BindingView, nodes: Mapping[str, KnownNode]) -> Iterable[str]:
    pod, named = ask.pod, ask.pod.spec.node_name
    ours = our_toleration(enforced=ask.enforced, protected=view.scene.protected)
    takes = is_kept if named else suits
    for name in (named,) if named else sorted(view.scene.fleet.nodes):
        known = nodes.get(name)
        if known is not None and takes(pod, name, known, ours):
            yield name


def _nowhere(ask: EarlyAsk, nodes: Mapping[str, KnownNode]) -> Refusal:
    if ask.pod.spec.node_name in nodes:
        text = "spec.nodeName: kubelet would reject the pod there for its selectors or tolerations"
        return Refusal(ReasonCode.BYPASS_NODE_NAME, text)
    text = "no node that the pod could go to is known by its evidence"
    if not ask.enforced:
        text += f"; those with the taint {MANAGED_TAINT} are for pods of enforced namespaces"
    return Refusal(ReasonCode.NODE_NO_EVIDENCE, text)


def _away(
    ask: EarlyAsk, view: BindingView, nodes: Mapping[str, KnownNode], scene: Scene
) -> Refusal | None:
    """For a node that Kubernetes keeps pods off now: not ready, cordoned. The pod can wait for it.

    None where no such node may take the pod later.
    """
    back = {
        name: replace(known, taints=tuple(x for x in known.taints if not _is_of_kubernetes(x)))
        for name, known in nodes.items()
        if any(map(_is_of_kubernetes, known.taints))
    }
    judge = Judge(ask.needs, scene)
    verdicts = ((name, judge.refusal(name)) for name in _candidates(ask, view, back))
    hopeful = (x for x in verdicts if x[1] is None or is_passing(x[1].code))
    name, refusal = next(hopeful, ("", None))
    if not name:
        return None
    text = f"pods are kept off {name} now by a taint {KUBERNETES_TAINTS}*"
    if refusal is None:
        return Refusal(ReasonCode.NODE_NO_EVIDENCE, f"{text}; it has what the pod asks for")
    return Refusal(refusal.code, f"{text}: {detailed(name, refusal, judge, scene).detail}")


def _is_of_kubernetes(taint: Taint) -> bool:
    return taint.key.startswith(KUBERNETES_TAINTS)


def _ranked(passed: Sequence[str], needs: Requirements, scene: Scene) -> list[str]:
    scores = prioritize_nodes(passed, needs, scene)
    return sorted(passed, key=lambda name: (-scores[name], name))


def _of_all(
    refused: Counter[ReasonCode], reasons: Mapping[str, Refusal], judge: Judge, scene: Scene
) -> Refusal:
    """One refusal for all nodes: that of the only one, else what says most, with an example.

    A code that passes says more than others: the pod can wait for that node.
    """

    def order(code: ReasonCode) -> tuple[bool, int, int, ReasonCode]:
        return not is_passing(code), rank(code, names_gpus=judge.names_gpus), -refused[code], code

    first = min(refused, key=order)
    example = next((name for name, refusal in reasons.items() if refusal.code is first), None)
    counts = ", ".join(f"{count} {code.value}" for code, count in sorted(refused.items()))
    text = f"no node has what the pod asks for: {counts}"
    if example is None:
        return Refusal(first, text)
    found = detailed(example, reasons[example], judge, scene)
    alone = refused.total() == 1
    return found if alone else Refusal(first, f"{text}; {example}: {found.detail}")
