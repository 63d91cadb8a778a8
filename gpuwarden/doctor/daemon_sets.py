"""Where the pods of a DaemonSet may run, and whether SPIRE's agents reach GPU nodes. Pure.

By labels and taints of nodes: the pods of other namespaces are not read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import Any, Final

from gpuwarden.doctor.facts import (
    DAEMON_SETS,
    Fact,
    Facts,
    Object,
    labels_of,
    name_of,
    pod_spec,
    some,
)

_SPIRE: Final = "spire-agent"
_BARRING: Final = frozenset({"NoSchedule", "NoExecute"})
_PASSING: Final = "node.kubernetes.io/"
"""Keys of taints that Kubernetes sets and takes away; it has DaemonSets tolerate them."""
_RELEASE: Final = "meta.helm.sh/release-name"
_EXPECTED: Final = "a SPIRE agent on every node with GPUs"
_PLACE: Final = "meta.helm.sh/release-namespace"
_EVERYTHING: Final = (
    '[{"op":"add","path":"/spec/template/spec/tolerations","value":[{"operator":"Exists"}]}]'
)


def selects(pods: Object, node: Object) -> bool:
    """Whether node selector and affinity of `pods`, a pod's spec, match the node's labels."""
    labels = labels_of(node)
    if any(labels.get(key) != value for key, value in (pods.get("nodeSelector") or {}).items()):
        return False
    affinity = (pods.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    terms = (one.get("matchExpressions") or () for one in required["nodeSelectorTerms"])
    return any(all(_matches(labels, one) for one in term) for term in terms)


def _matches(labels: Mapping[str, str], wanted: Object) -> bool:
    """One expression of a node selector; of Gt and Lt no fault is made."""
    value, values = labels.get(wanted["key"]), wanted.get("values") or ()
    match wanted["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return True


def untolerated(pods: Object, node: Object) -> list[str]:
    """The node's taints that keep `pods`, a DaemonSet's pod's spec, off it: `KEY:EFFECT`."""
    tolerations = pods.get("tolerations") or ()
    return [
        f"{taint['key']}:{taint['effect']}"
        for taint in (node.get("spec") or {}).get("taints") or ()
        if taint["effect"] in _BARRING
        and not taint["key"].startswith(_PASSING)
        and not any(_tolerates(one, taint) for one in tolerations)
    ]


def _tolerates(toleration: Object, taint: Object) -> bool:
    """One toleration; of Gt and Lt no fault is made."""
    if toleration.get("effect") not in {None, "", taint["effect"]}:
        return False
    key, operator = toleration.get("key"), toleration.get("operator") or "Equal"
    if not key:
        return bool(operator == "Exists")
    is_equal = toleration.get("value", "") == taint.get("value", "")
    return bool(key == taint["key"]) and (operator != "Equal" or is_equal)


def spire_agents(facts: Facts) -> tuple[Object, ...]:
    """DaemonSets of SPIRE agents, by name or image; raises UnknownError."""
    return tuple(one for one in facts.all(DAEMON_SETS) if _is_spire(one))


def _is_spire(one: Object) -> bool:
    if _SPIRE in name_of(one):
        return True
    return any(_SPIRE in x.get("image", "") for x in pod_spec(one)["containers"])


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Nodes to which no SPIRE agent goes."""

    seen: str
    expected: str
    command: str


def left_out(facts: Facts, nodes: Iterable[Object]) -> LeftOut | None:
    """Those of `nodes` to which SPIRE's agents do not go; None: none, or nothing is known of SPIRE.

    SPIRE may also run without a DaemonSet.
    """
    if facts.objects.get(DAEMON_SETS, Fact()).value is None:
        return None
    found = [(one, pod_spec(one)) for one in spire_agents(facts)]
    missing = [
        node
        for node in nodes
        if not any(selects(pods, node) and not untolerated(pods, node) for _, pods in found)
    ]
    if not found or not missing:
        return None
    for one, pods in found:
        barred = {name_of(x): untolerated(pods, x) for x in missing if selects(pods, x)}
        if barred:
            taints = some({text for texts in barred.values() for text in texts})
            return LeftOut(
                f"no SPIRE agent on {some(barred)}: the DaemonSet {name_of(one)} does not tolerate"
                f" {taints}",
                _EXPECTED + _what_chart_is(one),
                _tolerate(one),
            )
    one, _ = found[0]
    return LeftOut(
        f"no SPIRE agent on {some(map(name_of, missing))}: node selector or affinity of the"
        f" DaemonSet {name_of(one)}",
        _EXPECTED,
        f"kubectl -n {_namespace(one)} get daemonset {name_of(one)} -o yaml",
    )


def _tolerate(one: Object) -> str:
    """The command that has the pods tolerate every taint."""
    notes = _annotations(one)
    if _is_of_chart(one):
        return (
            f"helm upgrade {notes[_RELEASE]} CHART --namespace {notes.get(_PLACE, 'NAMESPACE')}"
            f" --reuse-values --set {quote('spire-agent.tolerations[0].operator=Exists')}"
        )
    return (
        f"kubectl -n {_namespace(one)} patch daemonset {name_of(one)} --type=json"
        f" -p {quote(_EVERYTHING)}"
    )


def _is_of_chart(one: Object) -> bool:
    """Whether it is of spiffe/helm-charts-hardened, whose values are known."""
    chart = labels_of(one).get("helm.sh/chart", "")
    return _RELEASE in _annotations(one) and chart.startswith(f"{_SPIRE}-")


def _what_chart_is(one: Object) -> str:
    if not _is_of_chart(one):
        return ""
    return "; CHART is SPIRE's chart with --version, as it is installed (helm list -A)"


def _annotations(one: Object) -> Mapping[str, Any]:
    found: Mapping[str, Any] = one["metadata"].get("annotations") or {}
    return found


def _namespace(one: Object) -> str:
    return str(one["metadata"].get("namespace", "NAMESPACE"))
