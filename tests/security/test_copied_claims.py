"""What a Node object says about itself is worth nothing: labels, annotations, copied reports.

Intel's isecl-k8s-scheduler let all of these pass: its signed report names no host, so
a copy of another node's passed, as did a node without any.
"""

import json
from typing import Any

import pytest

from tests.builders.fleet_views import fleet, hash_of, healthy
from tests.builders.pods import pod_json
from tests.fakes.placement import World

HASH = hash_of("a")
POD = pod_json({"gpuwarden.dev/required-hash": HASH})
GOOD = healthy("n1")
CLAIMS: dict[str, str] = {
    "gpuwarden.dev/required-hash": HASH,
    "gpuwarden.dev/attestation-hash": HASH,
    "attestation-hash.my-company.com/required-hash": HASH,
    "trusted": "true",
}


def node(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}, "spec": {}, "status": {}}


def passed(world: World, *nodes: dict[str, Any]) -> list[str]:
    body = {"Pod": POD, "Nodes": {"items": list(nodes)}, "NodeNames": None}
    answer = json.loads(world.verbs().filter(json.dumps(body).encode()).body)
    refused = answer["FailedAndUnresolvableNodes"]
    names = [x["metadata"]["name"] for x in answer["Nodes"]["items"]]
    assert set(names) | set(refused) == {x["metadata"]["name"] for x in nodes}
    return names


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_a_node_that_carries_the_claims_of_another_is_what_its_evidence_says(kind: str) -> None:
    world = World(fleet(GOOD, healthy("n2", "b")))
    claims = {kind: CLAIMS}
    assert passed(world, node("n1"), node("n2", **claims), node("n3", **claims)) == ["n1"]


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_nor_do_they_take_anything_away(kind: str) -> None:
    denial = {key: hash_of("b") for key in CLAIMS} | {"trusted": "false"}
    assert passed(World(fleet(GOOD)), node("n1", **{kind: denial})) == ["n1"]


def test_a_node_without_evidence_passes_for_no_managed_pod() -> None:
    assert passed(World(fleet(GOOD)), node("n1"), node("never-heard-of")) == ["n1"]
    assert passed(World(fleet()), node("n1")) == []
