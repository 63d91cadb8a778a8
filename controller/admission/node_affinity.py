"""Demands of ours on a pod's node, joined to the affinity that the pod has, as a patch. Pure.

Terms of a node selector are alternatives (core/v1 NodeSelector), so a demand has to stand in
each of them. A term without any requirement matches no node and is left as it is: with ours in
it, it would match some.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from controller.admission.json_patch import END, Operation, Value, Verb, pointer
from controller.admission.pod_view import AdmittedPod, NodeSelectorRequirement, NodeSelectorTerm

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
