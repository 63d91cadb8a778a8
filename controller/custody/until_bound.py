"""The stations until a pod is bound: what it wished, what is reserved, where it went. Pure.

The pod's own fields are what others wrote; the ledger is ours.
"""

from collections.abc import Iterable

from controller.custody.pod_document import PodDocument
from controller.custody.station import Case, Name, State, Station, cut, keys_of, listed
from controller.fleet.view import NodeMode
from controller.ledger.record import key_of
from controller.scheduling.description import describe
from controller.scheduling.requirements import Requirements, RequirementsInvalid
from controller.scheduling.wish_keys import ATTESTATION_HASH, RESERVATION_ID


def wished(case: Case) -> Station:
    """What it asks for."""
    pod, needs, source = case.pod, case.needs, "pod, by the API server"
    if pod is None or needs is None:
        text = "the API server has no such pod; what it asked for is not known any more"
        return Station(Name.WISHED, State.OVER, source="API server", findings=(text,))
    if isinstance(needs, RequirementsInvalid):
        lines: tuple[str, ...] = (f"cannot be read: {needs.detail()}",)
        return Station(Name.WISHED, State.MISMATCH, pod.created_at, source, findings=lines)
    if not needs.guarded:
        lines = ("nothing of gpuwarden",)
        return Station(Name.WISHED, State.UNNEEDED, pod.created_at, source, findings=lines)
    return Station(Name.WISHED, State.REACHED, pod.created_at, source, findings=describe(needs))


def reserved(case: Case) -> Station:
    """What the ledger holds for it."""
    if case.parts:
        return _held(case)
    if case.ledger_unknown:
        lines = (case.ledger_unknown,)
        return Station(Name.RESERVED, State.UNKNOWN, source="ledger", findings=lines)
    state, text = _not_held(case)
    return Station(Name.RESERVED, state, source="ledger", findings=(text,))


def _held(case: Case) -> Station:
    entry, holder = case.parts[0]
    lacks = {key_of(x) for x in holder.gpus} - {key_of(x) for x in case.reserved}
    states = dict.fromkeys(part.state.value for _, part in case.parts)
    lines = [f"{' and '.join(states)} on {entry.record.node}, by the {holder.origin}"]
    if holder.adopted:
        lines.append("the ledger had lost it, and it was written again for the living pod")
    if entry.record.share is not None:
        others = len(entry.record.holders) - 1
        lines.append(f"shared with {others} others under {entry.record.share.entry}")
    if lacks:
        lines.append(f"no records of {listed(sorted(lacks))}")
    lines.append(f"reservation {holder.reservation}")
    made = min((x.made_at for x, _ in case.parts if x.made_at), default="")
    state = State.MISSING if lacks else State.REACHED
    return Station(Name.RESERVED, state, made, "ledger", gpus=case.reserved, findings=tuple(lines))


def _not_held(case: Case) -> tuple[State, str]:
    pod, needs = case.pod, case.needs
    if case.is_over:
        return State.OVER, "the ledger holds nothing for it"
    if not case.guarded:
        return State.UNNEEDED, "nothing is reserved for a pod that asks for nothing of ours"
    if isinstance(needs, Requirements) and not needs.count:
        return State.UNNEEDED, "it asks for no GPU, so nothing is reserved"
    if pod is None or not pod.node:
        return State.WAITING, "nothing is reserved before it is bound"
    return _bound_without(case, pod)


def _bound_without(case: Case, pod: PodDocument) -> tuple[State, str]:
    if RESERVATION_ID in pod.annotations:
        return State.MISSING, "the pod carries a reservation id, and the ledger has no record of it"
    if case.mode is not NodeMode.ENV:
        return State.UNNEEDED, "on this node kubelet chooses the GPUs, and counts them"
    return State.MISSING, "it is bound, and nothing was reserved for it"


def bound(case: Case) -> Station:
    """Where it went, and what it was told."""
    pod, source = case.pod, "pod, by the API server"
    if pod is None:
        return Station(Name.BOUND, State.OVER, source="API server", findings=("the pod is gone",))
    if not pod.node:
        text = "" if pod.scheduled is None else pod.scheduled.text
        lines = cut(f"scheduler: {text}" if text else "no scheduler has said anything yet")
        at = "" if pod.scheduled is None else pod.scheduled.at
        state = State.OVER if pod.has_ended else State.WAITING
        return Station(Name.BOUND, state, at, source, findings=lines)
    wrong = tuple(_against_binding(case, pod))
    at = "" if pod.scheduled is None else pod.scheduled.at
    lines = (f"node {pod.node}", *_said_of_binding(case, pod), *wrong)
    state = State.MISMATCH if wrong else State.REACHED
    judged_by = "" if case.allowed is None else str(case.allowed.refs.get("evidence", ""))
    return Station(Name.BOUND, state, at, source, judged_by, case.told, lines)


def _against_binding(case: Case, pod: PodDocument) -> Iterable[str]:
    if case.is_authentic is False:
        yield "the reservation id on the pod is not ours for this pod, node and GPUs"
    if any(entry.record.node != pod.node for entry, _ in case.parts):
        yield f"it is reserved on {case.parts[0][0].record.node}"
    if case.parts and case.told and keys_of(case.told) != keys_of(case.reserved):
        yield "the GPUs on the pod are not those that the ledger holds for it"
    if case.parts and RESERVATION_ID not in pod.annotations and case.mode is NodeMode.ENV:
        yield "it is bound without the reservation id"


def _said_of_binding(case: Case, pod: PodDocument) -> Iterable[str]:
    if case.allowed is not None:
        seq, at = case.allowed.seq, case.allowed.ts
        yield f"the gate allowed it at {at}, by the evidence named here: audit record {seq}"
    if case.is_authentic:
        yield "its reservation id is ours, for this pod, node and GPUs"
    was = pod.annotations.get(ATTESTATION_HASH)
    accepted = None if case.node is None else case.node.acceptance
    if was and accepted is not None and was != accepted.attestation_hash:
        yield from cut(f"the node's class was {was}, it is {accepted.attestation_hash} now")
