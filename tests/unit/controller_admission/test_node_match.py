"""Which nodes a pod may go to: selectors, affinity and taints as kube-scheduler reads them."""

import json
from typing import Any

import pytest

from controller.admission.mutation import OurToleration, is_kept, our_toleration, suits
from controller.admission.pod_view import AdmittedPod, decode_admitted
from controller.fleet.directory import KnownNode, Taint

NODE = KnownNode("u", labels={"zone": "a", "gpus": "8", "empty": ""})
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(**spec: Any) -> AdmittedPod:
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}}
    return decode_admitted(json.dumps(body).encode())


def suited(node: KnownNode = NODE, name: str = "gpu-1", **spec: Any) -> bool:
    return suits(pod(**spec), name, node, OurToleration.INJECTED)


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


OURS = {"key": "gpuwarden.dev/managed", "operator": "Exists", "effect": "NoExecute"}
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
        (False, True, OURS, False),
        (False, True, EVERYTHING, False),
        (False, False, OURS, True),
        (False, False, EVERYTHING, True),
    ],
)
def test_our_own_taint_is_no_obstacle_to_pods_of_enforced_namespaces_alone(
    *, enforced: bool, protected: bool, toleration: dict[str, str] | None, fits: bool
) -> None:
    ours = our_toleration(enforced=enforced, protected=protected)
    asking = pod(tolerations=[] if toleration is None else [toleration])
    assert suits(asking, "gpu-1", managed(), ours) is fits
    assert is_kept(asking, "gpu-1", managed(), ours) is fits


def test_with_another_effect_our_taint_is_one_like_any_other() -> None:
    """Nothing but the toleration of NoExecute is injected."""
    assert not suited(managed("NoSchedule"))
    assert not suited(managed("NoSchedule"), tolerations=[OURS])
    assert suited(managed("NoSchedule"), tolerations=[EVERYTHING])


@pytest.mark.parametrize(
    ("effect", "kept"),
    [("NoSchedule", True), ("NoExecute", False)],
)
def test_kubelet_looks_at_taints_that_evict(effect: str, *, kept: bool) -> None:
    node = tainted(Taint("spot", "yes", effect))
    assert is_kept(pod(), "gpu-1", node, OurToleration.INJECTED) is kept
    assert not suited(node)


def test_kubelet_looks_at_selectors() -> None:
    elsewhere = pod(nodeSelector={"zone": "b"})
    assert not is_kept(elsewhere, "gpu-1", tainted(), OurToleration.INJECTED)
    assert is_kept(pod(nodeSelector={"zone": "a"}), "gpu-1", tainted(), OurToleration.INJECTED)
