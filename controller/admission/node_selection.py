"""Which nodes a pod may go to: affinity as a patch; selectors, affinity and taints as a rule.

Read as kube-scheduler and kubelet read them (core/v1 PodSpec.nodeSelector, NodeSelector,
Toleration): terms of a node selector are alternatives, and a term or a requirement that cannot be
read matches nothing. Must not know GPUs or evidence.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from controller.admission.pod import (
    AdmittedPod,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Toleration,
)
from controller.admission.review import END, Operation, Value, Verb, pointer
from controller.fleet.directory import KnownNode, Taint
from controller.placement.keys import MANAGED_EFFECT, MANAGED_TAINT

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_EXPRESSIONS, _FIELDS = "matchExpressions", "matchFields"


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """A label of the node, or a field of it, has one of `values`."""

    key: str
    values: tuple[str, ...]
    is_field: bool = False
    """A field; `metadata.name` with one value is all that the API knows."""


def on_node(name: str) -> NodeDemand:
    """The node of this name and no other, whatever labels it has."""
    return NodeDemand("metadata.name", (name,), is_field=True)


def demanding(pod: AdmittedPod, demand: NodeDemand) -> Iterator[Operation]:
    """What is missing; nothing where each term has the demand already."""
    made = _requirement(demand)
    fresh: dict[str, Value] = {"nodeSelectorTerms": [{_list_of(demand): [made]}]}
    affinity = pod.spec.affinity
    if affinity is None:
        value: Value = {"nodeAffinity": {_REQUIRED: fresh}}
        yield Operation(Verb.ADD, pointer("spec", "affinity"), value)
        return
    at = pointer("spec", "affinity", "nodeAffinity")
    if affinity.node_affinity is None:
        yield Operation(Verb.ADD, at, {_REQUIRED: fresh})
        return
    at += pointer(_REQUIRED)
    required = affinity.node_affinity.required
    if required is None or not required.node_selector_terms:
        yield Operation(Verb.ADD, at, fresh)
        return
    for index, term in enumerate(required.node_selector_terms):
        yield from _in_term(at + pointer("nodeSelectorTerms", index), term, demand)


def _in_term(at: str, term: NodeSelectorTerm, demand: NodeDemand) -> Iterator[Operation]:
    if not (term.match_expressions or term.match_fields):
        return
    there = (term.match_fields if demand.is_field else term.match_expressions) or ()
    if any(_says(each, demand) for each in there):
        return
    path, made = at + pointer(_list_of(demand)), _requirement(demand)
    if there:
        yield Operation(Verb.ADD, path + pointer(END), made)
    else:
        yield Operation(Verb.ADD, path, [made])


def _says(present: NodeSelectorRequirement, demand: NodeDemand) -> bool:
    found = (present.key, present.operator, present.values or ())
    return found == (demand.key, "In", demand.values)


def _list_of(demand: NodeDemand) -> str:
    return _FIELDS if demand.is_field else _EXPRESSIONS


def _requirement(demand: NodeDemand) -> Value:
    return {"key": demand.key, "operator": "In", "values": list(demand.values)}


# --- matching

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")


class OurToleration(Enum):
    """What becomes of the toleration of our own taint, which a new pod need not have yet."""

    INJECTED = auto()
    """The namespace is enforced: admission adds it."""
    REFUSED = auto()
    """The installation protects its nodes, and the namespace is not enforced: who brings it is
    refused (deploy/policy/protection), after all webhooks."""
    AS_GIVEN = auto()
    """It counts where the pod has it."""


def our_toleration(*, enforced: bool, protected: bool) -> OurToleration:
    """For a namespace that is `enforced` or not; `protected` is the setting of the cluster."""
    if enforced:
        return OurToleration.INJECTED
    return OurToleration.REFUSED if protected else OurToleration.AS_GIVEN


def suits(pod: AdmittedPod, name: str, node: KnownNode, ours: OurToleration) -> bool:
    """Whether a scheduler may send the pod to the node."""
    return all(_is_tolerated(x, pod, ours) for x in node.taints) and _matches(pod, name, node)


def is_kept(pod: AdmittedPod, name: str, node: KnownNode, ours: OurToleration) -> bool:
    """Whether kubelet keeps the pod that names the node: only what evicts counts of its taints."""
    evicting = (x for x in node.taints if x.effect == "NoExecute")
    return all(_is_tolerated(x, pod, ours) for x in evicting) and _matches(pod, name, node)


def _matches(pod: AdmittedPod, name: str, node: KnownNode) -> bool:
    labels = node.labels
    wanted = pod.spec.node_selector or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    affinity = pod.spec.affinity
    node_affinity = None if affinity is None else affinity.node_affinity
    required = None if node_affinity is None else node_affinity.required
    if required is None:
        return True
    return any(_term(each, name, labels) for each in required.node_selector_terms or ())


def _is_tolerated(taint: Taint, pod: AdmittedPod, ours: OurToleration) -> bool:
    if taint.key == MANAGED_TAINT:
        if ours is OurToleration.REFUSED:
            return False
        if ours is OurToleration.INJECTED and taint.effect == MANAGED_EFFECT:
            return True
    return any(tolerates(each, taint) for each in pod.spec.tolerations or ())


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether it matches the taint, for however long."""
    if toleration.effect not in {None, "", taint.effect}:
        return False
    if not toleration.key:
        return toleration.operator == "Exists"
    if toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    is_equal = (toleration.value or "") == taint.value
    return toleration.operator in {None, "", "Equal"} and is_equal


def _term(term: NodeSelectorTerm, name: str, labels: Mapping[str, str]) -> bool:
    expressions, fields = term.match_expressions or (), term.match_fields or ()
    if not (expressions or fields):
        return False
    return all(_holds(each, labels) for each in expressions) and all(
        each.key == "metadata.name" and _holds(each, {"metadata.name": name}) for each in fields
    )


def _holds(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(requirement.key), requirement.values or ()
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(requirement.operator, value, values)
    return False


def _compares(operator: str, value: str | None, values: tuple[str, ...]) -> bool:
    if value is None or len(values) != 1:
        return False
    (bound,) = values
    if not (_INTEGER.fullmatch(value) and _INTEGER.fullmatch(bound)):
        return False
    return int(value) > int(bound) if operator == "Gt" else int(value) < int(bound)
