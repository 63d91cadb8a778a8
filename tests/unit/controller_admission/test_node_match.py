"""Which nodes a pod may go to: selectors, affinity and taints as kube-scheduler reads them."""

import json
from typing import Any

import pytest

from controller.admission.node_match import suits
from controller.admission.pod_view import decode_admitted
from controller.fleet.directory import KnownNode, Taint

NODE = KnownNode("u", labels={"zone": "a", "gpus": "8", "empty": ""})
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def suited(node: KnownNode = NODE, name: str = "gpu-1", **spec: Any) -> bool:
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}}
    return suits(decode_admitted(json.dumps(body).encode()), name, node)


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


def test_our_own_taint_is_no_obstacle() -> None:
    ours = KnownNode("u", taints=(Taint("gpuwarden.dev/managed", "", "NoExecute"),))
    assert suited(ours)
