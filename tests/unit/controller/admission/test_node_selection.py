"""Which nodes a pod may go to: affinity as a patch; selectors, affinity and taints as a rule."""

import json
from typing import Any

import pytest

from controller.admission.node_selection import (
    NodeDemand,
    OurToleration,
    demanding,
    is_kept,
    on_node,
    our_toleration,
    suits,
)
from controller.admission.pod import AdmittedPod, decode_admitted
from controller.admission.review import encode_patch
from controller.fleet.directory import KnownNode, Taint
from sandbox.kube.json_patch import applied
from tests.builders.admitted_pods import admitted, new_pod

# --- Demands of ours beside the affinity that a pod has: narrower in every alternative

LABEL = NodeDemand("example.org/gpus", ("1", "many"))
OURS = {"key": "example.org/gpus", "operator": "In", "values": ["1", "many"]}
NAMED = {"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
RACK = {"key": "rack", "operator": "Exists"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(affinity: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "c"}]} | ({} if affinity is ... else {"affinity": affinity})
    return {"metadata": {"name": "p"}, "spec": spec}


def demanded(document: dict[str, Any], demand: NodeDemand) -> dict[str, Any]:
    operations = demanding(decode_admitted(json.dumps(document).encode()), demand)
    found: dict[str, Any] = applied(document, json.loads(encode_patch(operations)))
    return found


def terms(*given: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(given)}}}


@pytest.mark.parametrize("demand", [LABEL, on_node("gpu-1")], ids=["label", "name"])
@pytest.mark.parametrize(
    "affinity", [..., None, {}, {"nodeAffinity": None}, {"nodeAffinity": {}}, terms()]
)
def test_where_nothing_is_required_the_demand_is_all(affinity: Any, demand: NodeDemand) -> None:
    made = {"matchFields": [NAMED]} if demand.is_field else {"matchExpressions": [OURS]}
    assert demanded(pod(affinity), demand)["spec"]["affinity"] == terms(made)


def test_it_stands_in_each_alternative_and_leaves_the_rest() -> None:
    fields = {"matchFields": [NAMED]}
    given = terms(
        {"matchExpressions": [ZONE, RACK]}, {"matchExpressions": [ZONE], **fields}, fields
    )
    given["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": 1}]
    given["podAffinity"] = {"x": 1}
    found = demanded(pod(given), LABEL)["spec"]["affinity"]
    assert found["podAffinity"] == {"x": 1}
    assert found["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert found["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {"matchExpressions": [ZONE, RACK, OURS]},
        {"matchExpressions": [ZONE, OURS], **fields},
        {"matchExpressions": [OURS], **fields},
    ]


@pytest.mark.parametrize("empty", [{}, {"matchExpressions": []}, {"matchFields": None}])
def test_an_alternative_that_matches_nothing_does_not_begin_to(empty: dict[str, Any]) -> None:
    found = demanded(pod(terms(empty, {"matchExpressions": [ZONE]})), LABEL)
    assert found["spec"]["affinity"] == terms(empty, {"matchExpressions": [ZONE, OURS]})


@pytest.mark.parametrize("demand", [LABEL, on_node("gpu-1")], ids=["label", "name"])
def test_what_has_it_is_left_alone(demand: NodeDemand) -> None:
    once = demanded(pod(terms({"matchExpressions": [ZONE]}, {"matchFields": [NAMED]})), demand)
    assert demanded(once, demand) == once


@pytest.mark.parametrize(
    "other",
    [OURS | {"operator": "NotIn"}, OURS | {"values": ["1"]}, OURS | {"key": "x"}],
    ids=["operator", "values", "key"],
)
def test_what_only_looks_like_it_does_not_count(other: dict[str, Any]) -> None:
    found = demanded(pod(terms({"matchExpressions": [other]})), LABEL)
    assert found["spec"]["affinity"] == terms({"matchExpressions": [other, OURS]})


# --- Which nodes a pod may go to: selectors, affinity and taints as kube-scheduler reads them

NODE = KnownNode("u", labels={"zone": "a", "gpus": "8", "empty": ""})


def pod_to_match(**spec: Any) -> AdmittedPod:
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}}
    return decode_admitted(json.dumps(body).encode())


def suited(node: KnownNode = NODE, name: str = "gpu-1", **spec: Any) -> bool:
    return suits(pod_to_match(**spec), name, node, OurToleration.INJECTED)


def affine(*terms: Any) -> bool:
    return suited(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}})


def term(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_a_pod_that_demands_nothing_goes_anywhere() -> None:
    assert suited()
    assert suited(affinity={})
    assert suited(affinity={"nodeAffinity": {}})


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        ({"zone": "a"}, True),
        ({"zone": "a", "gpus": "8"}, True),
        ({"zone": "b"}, False),
        ({"zone": "a", "rack": "1"}, False),
        ({"empty": ""}, True),
        ({"missing": ""}, False),
    ],
)
def test_every_label_of_a_selector_holds(selector: dict[str, str], *, fits: bool) -> None:
    assert suited(nodeSelector=selector) is fits


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        (("zone", "In", "b", "a"), True),
        (("zone", "In", "b"), False),
        (("missing", "In", "a"), False),
        (("zone", "NotIn", "b"), True),
        (("zone", "NotIn", "a"), False),
        (("missing", "NotIn", "a"), True),
        (("zone", "Exists"), True),
        (("missing", "Exists"), False),
        (("missing", "DoesNotExist"), True),
        (("zone", "DoesNotExist"), False),
        (("gpus", "Gt", "7"), True),
        (("gpus", "Gt", "8"), False),
        (("gpus", "Lt", "9"), True),
        (("gpus", "Lt", "8"), False),
        (("zone", "Gt", "1"), False),
        (("gpus", "Gt", "many"), False),
        (("gpus", "Gt"), False),
        (("missing", "Lt", "9"), False),
        (("zone", "Likes", "a"), False),
    ],
)
def test_operators(expression: tuple[str, ...], *, fits: bool) -> None:
    assert affine(term(*expression)) is fits


def test_one_term_is_enough_and_all_of_it_must_hold() -> None:
    good, bad = term("zone", "In", "a"), term("zone", "In", "b")
    assert affine(bad, good)
    both = {"matchExpressions": [*good["matchExpressions"], *bad["matchExpressions"]]}
    assert not affine(both)
    assert not affine({})
    assert not affine()


@pytest.mark.parametrize(
    ("key", "name", "fits"),
    [
        ("metadata.name", "gpu-1", True),
        ("metadata.name", "gpu-2", False),
        ("metadata.uid", "gpu-1", False),
    ],
)
def test_fields_know_the_name_alone(key: str, name: str, *, fits: bool) -> None:
    assert affine({"matchFields": [{"key": key, "operator": "In", "values": [name]}]}) is fits


SPOT = KnownNode("u", taints=(Taint("spot", "yes", "NoSchedule"),))


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        (None, False),
        ({"key": "spot", "operator": "Exists"}, True),
        ({"key": "spot", "value": "yes"}, True),
        ({"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "spot", "operator": "Equal", "value": "no"}, False),
        ({"key": "spot", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Exists"}, True),
        ({"value": "yes"}, False),
        ({"key": "spot", "operator": "Likes", "value": "yes"}, False),
    ],
)
def test_taints_are_tolerated(toleration: dict[str, str] | None, *, fits: bool) -> None:
    assert suited(SPOT, tolerations=[] if toleration is None else [toleration]) is fits


MANAGED_TAINT = {"key": "gpuwarden.dev/managed", "operator": "Exists", "effect": "NoExecute"}
EVERYTHING = {"operator": "Exists"}


def tainted(*taints: Taint) -> KnownNode:
    return KnownNode("u", labels={"zone": "a"}, taints=taints)


def managed(effect: str = "NoExecute") -> KnownNode:
    return tainted(Taint("gpuwarden.dev/managed", "", effect))


@pytest.mark.parametrize(
    ("enforced", "protected", "toleration", "fits"),
    [
        (True, True, None, True),
        (True, False, None, True),
        (False, True, None, False),
        (False, False, None, False),
        (False, True, MANAGED_TAINT, False),
        (False, True, EVERYTHING, False),
        (False, False, MANAGED_TAINT, True),
        (False, False, EVERYTHING, True),
    ],
)
def test_our_own_taint_is_no_obstacle_to_pods_of_enforced_namespaces_alone(
    *, enforced: bool, protected: bool, toleration: dict[str, str] | None, fits: bool
) -> None:
    ours = our_toleration(enforced=enforced, protected=protected)
    asking = pod_to_match(tolerations=[] if toleration is None else [toleration])
    assert suits(asking, "gpu-1", managed(), ours) is fits
    assert is_kept(asking, "gpu-1", managed(), ours) is fits


def test_with_another_effect_our_taint_is_one_like_any_other() -> None:
    """Nothing but the toleration of NoExecute is injected."""
    assert not suited(managed("NoSchedule"))
    assert not suited(managed("NoSchedule"), tolerations=[MANAGED_TAINT])
    assert suited(managed("NoSchedule"), tolerations=[EVERYTHING])


@pytest.mark.parametrize(
    ("effect", "kept"),
    [("NoSchedule", True), ("NoExecute", False)],
)
def test_kubelet_looks_at_taints_that_evict(effect: str, *, kept: bool) -> None:
    node = tainted(Taint("spot", "yes", effect))
    assert is_kept(pod_to_match(), "gpu-1", node, OurToleration.INJECTED) is kept
    assert not suited(node)


def test_kubelet_looks_at_selectors() -> None:
    elsewhere = pod_to_match(nodeSelector={"zone": "b"})
    assert not is_kept(elsewhere, "gpu-1", tainted(), OurToleration.INJECTED)
    assert is_kept(
        pod_to_match(nodeSelector={"zone": "a"}), "gpu-1", tainted(), OurToleration.INJECTED
    )


# --- The same at the edges of what the API allows


def affine_to(labels: dict[str, str], *terms: dict[str, Any]) -> bool:
    required = {"nodeSelectorTerms": list(terms)}
    pod = admitted(new_pod(affinity={"nodeAffinity": {REQUIRED: required}}))
    return suits(pod, "gpu-1", KnownNode("u", labels=labels), OurToleration.AS_GIVEN)


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def tolerated(taint: Taint, *tolerations: dict[str, Any]) -> bool:
    pod = admitted(new_pod(tolerations=list(tolerations)))
    return suits(pod, "gpu-1", KnownNode("u", taints=(taint,)), OurToleration.AS_GIVEN)


@pytest.mark.parametrize(
    ("own", "operator", "bound", "holds"),
    [
        ("+8", "Gt", "7", True),
        ("-8", "Lt", "-7", True),
        ("-8", "Gt", "-7", False),
        ("8", "Gt", "+7", True),
        ("9" * 18, "Gt", "8", True),
        ("9" * 19, "Gt", "8", False),
        ("8", "Lt", "9" * 18, True),
        ("8", "Lt", "9" * 19, False),
        ("", "Lt", "1", False),
        ("8", "Gt", "", False),
        ("8x", "Gt", "7", False),
        ("8", "Gt", "7x", False),
    ],
)
def test_numbers_are_whole_and_of_bounded_length(
    own: str, operator: str, bound: str, *, holds: bool
) -> None:
    term = {"matchExpressions": [expression("gpus", operator, bound)]}
    assert affine_to({"gpus": own}, term) is holds


@pytest.mark.parametrize("operator", ["Gt", "Lt"])
def test_a_number_is_compared_with_one_other(operator: str) -> None:
    for values in ((), ("8", "8"), ("7", "9")):
        assert not affine_to(
            {"gpus": "8"}, {"matchExpressions": [expression("gpus", operator, *values)]}
        )


def test_an_empty_label_is_a_value() -> None:
    labels = {"empty": ""}
    for operator, values, holds in (
        ("Exists", (), True),
        ("DoesNotExist", (), False),
        ("In", ("",), True),
        ("NotIn", ("",), False),
    ):
        term = {"matchExpressions": [expression("empty", operator, *values)]}
        assert affine_to(labels, term) is holds


def test_expressions_and_fields_of_a_term_hold_together() -> None:
    here, there = (
        {"matchFields": [expression("metadata.name", "In", name)]} for name in ("gpu-1", "gpu-2")
    )
    right, wrong = ({"matchExpressions": [expression("zone", "In", zone)]} for zone in ("a", "b"))
    labels = {"zone": "a"}
    assert affine_to(labels, right | here)
    assert not affine_to(labels, right | there)
    assert not affine_to(labels, wrong | here)
    assert affine_to(labels, here)
    assert affine_to(labels, {**here, "matchExpressions": []})


def test_every_field_of_a_term_holds() -> None:
    here, elsewhere = (expression("metadata.name", "In", name) for name in ("gpu-1", "gpu-2"))
    assert not affine_to({}, {"matchFields": [here, elsewhere]})
    assert affine_to({}, {"matchFields": [here, here]})


def test_a_label_is_no_field_and_a_field_no_label() -> None:
    assert not affine_to({"zone": "a"}, {"matchFields": [expression("zone", "In", "a")]})
    assert not affine_to({}, {"matchExpressions": [expression("metadata.name", "In", "gpu-1")]})


def test_a_demand_is_about_a_label_unless_it_says_so() -> None:
    assert NodeDemand("a", ("b",)).is_field is False
    assert on_node("gpu-1") == NodeDemand("metadata.name", ("gpu-1",), is_field=True)


YES = Taint("spot", "yes", "NoSchedule")
BARE = Taint("spot", "", "NoSchedule")


@pytest.mark.parametrize(
    ("taint", "toleration", "expected"),
    [
        (YES, {"key": "spot", "operator": "", "value": "yes", "effect": ""}, True),
        (YES, {"key": "spot", "operator": "Exists", "effect": ""}, True),
        (YES, {"key": "spot", "operator": "Equal"}, False),
        (BARE, {"key": "spot", "operator": "Equal"}, True),
        (BARE, {"key": "spot"}, True),
        (BARE, {"key": "spot", "value": "yes"}, False),
        (YES, {"key": "", "operator": "Exists"}, True),
        (YES, {"key": "", "operator": "Exists", "effect": "NoSchedule"}, True),
        (YES, {"key": "", "operator": "Exists", "effect": "NoExecute"}, False),
        (YES, {"key": "", "operator": "Equal", "value": "yes"}, False),
        (YES, {}, False),
    ],
)
def test_what_a_toleration_leaves_out_matches_as_in_the_api(
    taint: Taint, toleration: dict[str, Any], *, expected: bool
) -> None:
    assert tolerated(taint, toleration) is expected


def test_every_taint_is_tolerated_by_some_toleration() -> None:
    node = KnownNode("u", taints=(YES, Taint("old", "", "NoExecute")))
    spot, old = ({"key": key, "operator": "Exists"} for key in ("spot", "old"))
    for tolerations, fits, kept in (
        ([spot, old], True, True),
        ([old], False, True),
        ([spot], False, False),
        ([], False, False),
    ):
        pod = admitted(new_pod(tolerations=tolerations))
        assert suits(pod, "gpu-1", node, OurToleration.AS_GIVEN) is fits
        assert is_kept(pod, "gpu-1", node, OurToleration.AS_GIVEN) is kept


@pytest.mark.parametrize(
    ("enforced", "protected", "expected"),
    [
        (True, True, OurToleration.INJECTED),
        (True, False, OurToleration.INJECTED),
        (False, True, OurToleration.REFUSED),
        (False, False, OurToleration.AS_GIVEN),
    ],
)
def test_what_becomes_of_the_toleration_of_our_own_taint(
    expected: OurToleration, *, enforced: bool, protected: bool
) -> None:
    assert our_toleration(enforced=enforced, protected=protected) is expected


def test_the_toleration_that_is_injected_tolerates_no_other_taint() -> None:
    other = KnownNode("u", taints=(Taint("spot", "", "NoExecute"),))
    assert not suits(admitted(new_pod()), "gpu-1", other, OurToleration.INJECTED)
    everything = admitted(new_pod(tolerations=[{"operator": "Exists"}]))
    assert suits(everything, "gpu-1", other, OurToleration.REFUSED)
