"""Demands of ours beside the affinity that a pod has: narrower in every alternative."""

import json
from typing import Any

import pytest

from controller.admission.mutation import NodeDemand, demanding, encode_patch, on_node
from controller.admission.pod_view import decode_admitted
from tests.fakes.json_patch import applied

LABEL = NodeDemand("example.org/gpus", ("1", "many"))
OURS = {"key": "example.org/gpus", "operator": "In", "values": ["1", "many"]}
NAMED = {"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}
ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
RACK = {"key": "rack", "operator": "Exists"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(affinity: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "c"}]} | ({} if affinity is ... else {"affinity": affinity})
    return {"metadata": {"name": "p"}, "spec": spec}


def patched(document: dict[str, Any], demand: NodeDemand) -> dict[str, Any]:
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
    assert patched(pod(affinity), demand)["spec"]["affinity"] == terms(made)


def test_it_stands_in_each_alternative_and_leaves_the_rest() -> None:
    fields = {"matchFields": [NAMED]}
    given = terms(
        {"matchExpressions": [ZONE, RACK]}, {"matchExpressions": [ZONE], **fields}, fields
    )
    given["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = [{"weight": 1}]
    given["podAffinity"] = {"x": 1}
    found = patched(pod(given), LABEL)["spec"]["affinity"]
    assert found["podAffinity"] == {"x": 1}
    assert found["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert found["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {"matchExpressions": [ZONE, RACK, OURS]},
        {"matchExpressions": [ZONE, OURS], **fields},
        {"matchExpressions": [OURS], **fields},
    ]


@pytest.mark.parametrize("empty", [{}, {"matchExpressions": []}, {"matchFields": None}])
def test_an_alternative_that_matches_nothing_does_not_begin_to(empty: dict[str, Any]) -> None:
    found = patched(pod(terms(empty, {"matchExpressions": [ZONE]})), LABEL)
    assert found["spec"]["affinity"] == terms(empty, {"matchExpressions": [ZONE, OURS]})


@pytest.mark.parametrize("demand", [LABEL, on_node("gpu-1")], ids=["label", "name"])
def test_what_has_it_is_left_alone(demand: NodeDemand) -> None:
    once = patched(pod(terms({"matchExpressions": [ZONE]}, {"matchFields": [NAMED]})), demand)
    assert patched(once, demand) == once


@pytest.mark.parametrize(
    "other",
    [OURS | {"operator": "NotIn"}, OURS | {"values": ["1"]}, OURS | {"key": "x"}],
    ids=["operator", "values", "key"],
)
def test_what_only_looks_like_it_does_not_count(other: dict[str, Any]) -> None:
    found = patched(pod(terms({"matchExpressions": [other]})), LABEL)
    assert found["spec"]["affinity"] == terms({"matchExpressions": [other, OURS]})
