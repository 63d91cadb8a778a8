"""The schema of GPUReservation and the code agree on every field and on every state."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.kube.api.resources import RESERVATIONS
from controller.kube.objects.reservations import (
    API_VERSION,
    KIND,
    reservation_object,
    reservation_spec,
    reservation_status,
)
from controller.ledger.record import ENDS, MAX_GPUS, MAX_HOLDERS, MOVES, HolderState, Origin
from tests.contracts.ledger_store import FULL

FILE = Path(__file__).resolve().parents[2] / "deploy/kustomize/base/gpureservations.yaml"
CRD = yaml.safe_load(FILE.read_text())
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]["properties"]
HOLDER = SCHEMA["spec"]["properties"]["holders"]["items"]


def paths(value: Any, at: str = "") -> set[str]:
    if isinstance(value, dict):
        return {
            x
            for key, inner in value.items()
            for x in ({f"{at}.{key}"} | paths(inner, f"{at}.{key}"))
        }
    if isinstance(value, list):
        return {x for inner in value for x in paths(inner, f"{at}[]")}
    return set()


def declared(schema: dict[str, Any], at: str = "") -> set[str]:
    found = set()
    for key, inner in schema.get("properties", {}).items():
        found |= {f"{at}.{key}"} | declared(inner, f"{at}.{key}")
    if "items" in schema:
        found |= declared(schema["items"], f"{at}[]")
    return found


def leaves(schema: dict[str, Any], at: str) -> list[Any]:
    found = [pytest.param(schema, id=at)]
    for key, inner in schema.get("properties", {}).items():
        found += leaves(inner, f"{at}.{key}")
    return found + (leaves(schema["items"], f"{at}[]") if "items" in schema else [])


def test_it_is_the_resource_that_the_code_speaks() -> None:
    spec = CRD["spec"]
    assert CRD["metadata"]["name"] == f"{RESERVATIONS.plural}.{RESERVATIONS.group}"
    assert (spec["group"], spec["scope"]) == (RESERVATIONS.group, "Cluster")
    assert (spec["names"]["plural"], spec["names"]["kind"]) == (RESERVATIONS.plural, KIND)
    assert [x["name"] for x in spec["versions"]] == [RESERVATIONS.version]
    assert f"{spec['group']}/{VERSION['name']}" == API_VERSION
    assert VERSION["subresources"] == {"status": {}}


def test_every_field_is_declared_and_every_declared_one_is_used() -> None:
    assert paths(reservation_spec(FULL)) == declared(SCHEMA["spec"])
    assert paths(reservation_status(FULL)) == declared(SCHEMA["status"])
    assert reservation_object(FULL)["metadata"]["name"] == FULL.key


@pytest.mark.parametrize(
    "schema", [*leaves(SCHEMA["spec"], "spec"), *leaves(SCHEMA["status"], "status")]
)
def test_everything_is_bounded(schema: dict[str, Any]) -> None:
    """Else the API server refuses the rules in CEL as too costly, and anything fits in."""
    bound = {"string": "maxLength", "array": "maxItems"}.get(schema["type"])
    assert bound is None or bound in schema


def test_bounds_and_words_are_the_codes() -> None:
    properties = HOLDER["properties"]
    assert properties["state"]["enum"] == [x.value for x in HolderState]
    assert set(properties["origin"]["enum"]) == {x.value for x in Origin}
    assert SCHEMA["spec"]["properties"]["holders"]["maxItems"] == MAX_HOLDERS
    assert properties["gpus"]["maxItems"] == MAX_GPUS


def test_each_move_of_the_code_is_in_the_rule_and_no_other() -> None:
    """Read as text: what CEL makes of it is shown on a real API server."""
    rule = HOLDER["x-kubernetes-validations"][0]["rule"]
    found = set()
    for part in rule.split("||")[1:]:
        before, after = part.split("&&")
        (state,) = (x for x in HolderState if f"'{x.value}'" in before)
        found |= {(state, x) for x in HolderState if f"'{x.value}'" in after}
    assert found == set(MOVES)


def test_ends_are_named_alike() -> None:
    rule = SCHEMA["spec"]["x-kubernetes-validations"][-1]["rule"]
    assert {x for x in HolderState if f"'{x.value}'" in rule} == ENDS


def test_a_status_shows_the_least_advanced_holder() -> None:
    assert reservation_status(FULL)["state"] == "Proposed"
    done = tuple(replace(x, state=HolderState.RELEASING) for x in FULL.holders)
    assert reservation_status(replace(FULL, holders=done)) == {
        "state": "Releasing",
        "holders": 3,
        "pod": "team-a/train-0",
        "observedVersion": 1,
    }
