"""Whether a pod may go to a node by selector, required affinity and taints. Pure.

As kube-scheduler and kubelet read them: core/v1 PodSpec.nodeSelector, NodeSelector, Toleration; a
term or a requirement that cannot be read matches nothing. A cordoned node has a taint, and so has
one that is not ready. Our own taint is no obstacle to a pod that admission gives its toleration.
"""

import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from controller.admission.pod_view import (
    AdmittedPod,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Toleration,
)
from controller.fleet.directory import KnownNode, Taint
from controller.scheduling.reserved_keys import MANAGED_EFFECT, MANAGED_TAINT

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
    return any(_tolerates(each, taint) for each in pod.spec.tolerations or ())


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
