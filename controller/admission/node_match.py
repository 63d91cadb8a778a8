"""Whether a pod may go to a node by selector, required affinity and taints. Pure.

As kube-scheduler reads them: core/v1 PodSpec.nodeSelector, NodeSelector, Toleration; a term or
a requirement that cannot be read matches nothing. A cordoned node has a taint, and so has one
that is not ready. Our own taint is no obstacle: admission sees to its toleration.
"""

import re
from collections.abc import Mapping
from typing import Final

from controller.admission.pod_view import (
    AdmittedPod,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Toleration,
)
from controller.fleet.directory import KnownNode, Taint
from controller.scheduling.reserved_keys import MANAGED_TAINT

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")


def suits(pod: AdmittedPod, name: str, node: KnownNode) -> bool:
    """Whether the pod may go to the node."""
    labels = node.labels
    if not all(_is_tolerated(each, pod) for each in node.taints):
        return False
    wanted = pod.spec.node_selector or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    affinity = pod.spec.affinity
    node_affinity = None if affinity is None else affinity.node_affinity
    required = None if node_affinity is None else node_affinity.required
    if required is None:
        return True
    return any(_term(each, name, labels) for each in required.node_selector_terms or ())


def _is_tolerated(taint: Taint, pod: AdmittedPod) -> bool:
    return taint.key == MANAGED_TAINT or any(
        _tolerates(each, taint) for each in pod.spec.tolerations or ()
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
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
    if not (_INTEGER.fullmatch(value) and _INTEGER.fullmatch(values[0])):
        return False
    own, bound = int(value), int(values[0])
    return own > bound if operator == "Gt" else own < bound
