"""Which node and GPUs a pod gets that is not there yet: by /filter's and the gate's code. Pure.

Among the nodes that pass, the one that /prioritize would score highest. Of what the scheduler
looks at besides, selectors, required affinity and taints count; resources other than GPUs and
spreading do not. Nothing here claims.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from controller.admission.early import EarlyAsk
from controller.admission.node_match import is_kept, our_toleration, suits
from controller.binding.decision import Early, Placed, Refused, Reserve, case_of, on_node
from controller.binding.view import GateView
from controller.fleet.directory import KnownNode
from controller.ledger.record import Holder, PodRef, ShareGroup
from controller.ledger.reservation_id import request_nonce
from controller.scheduling.filter import filter_nodes
from controller.scheduling.prioritize import prioritize_nodes
from controller.scheduling.requirements import Requirements
from controller.scheduling.reserved_keys import MANAGED_TAINT
from controller.scheduling.scene import Scene
from controller.scheduling.scenes import DeviceUse
from controller.scheduling.share_group import controlling_owner, share_group
from gpuwarden.reasons import ReasonCode, Refusal

MOST_NODES: Final = 16
"""Of those that pass, how many are tried: what the copy shows as free may be on its way."""
_LAST: Final = frozenset(
    {ReasonCode.MAP_ELSEWHERE, ReasonCode.NODE_MODE, ReasonCode.NODE_NO_EVIDENCE}
)
"""Codes that say little where others do, too."""


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
    view: GateView,
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
    return _of_all(refused, outcome.reasons, names)


def taken_up(ask: EarlyAsk, view: GateView, held: Holder, node: str) -> EarlyPlace | Refusal:
    """The same reservation for a further pod like it, where it still serves."""
    return _on(ask, view, node, Early(held.reservation, held.gpus))


def _on(
    ask: EarlyAsk, view: GateView, node: str, early: Early | None = None
) -> EarlyPlace | Refusal:
    nonce = request_nonce(ask.namespace, ask.request)
    case = case_of(view, node, reference_of(ask), ask.pod, ask.needs, early=early, nonce=nonce)
    match on_node(case):
        case Reserve() as reserve:
            return EarlyPlace(node, reserve)
        case Refused(refusals):
            return refusals[0]
        case Placed():
            text = "kubelet chooses the GPUs there: none can be reserved before"
            return Refusal(ReasonCode.EXACT_UNAVAILABLE, text)


def _candidates(ask: EarlyAsk, view: GateView, nodes: Mapping[str, KnownNode]) -> Iterable[str]:
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
        return Refusal(ReasonCode.DOOR_NODE_NAME, text)
    text = "no node that the pod could go to is known by its evidence"
    if not ask.enforced:
        text += f"; those with the taint {MANAGED_TAINT} are for pods of enforced namespaces"
    return Refusal(ReasonCode.NODE_NO_EVIDENCE, text)


def _ranked(passed: Sequence[str], needs: Requirements, scene: Scene) -> list[str]:
    scores = prioritize_nodes(passed, needs, scene)
    return sorted(passed, key=lambda name: (-scores[name], name))


def _of_all(
    refused: Mapping[ReasonCode, int], reasons: Mapping[str, Refusal], names: Sequence[str]
) -> Refusal:
    """One refusal for all nodes: that of the only one, else what says most."""
    if len(names) == 1:
        return reasons[names[0]]
    first = min(refused, key=lambda code: (_rank(code), -refused[code], code))
    counts = ", ".join(f"{count} {code.value}" for code, count in sorted(refused.items()))
    return Refusal(first, f"no node has what the pod asks for: {counts}")


def _rank(code: ReasonCode) -> int:
    if code is ReasonCode.GPU_BUSY:
        return 0
    return 2 if code in _LAST else 1
