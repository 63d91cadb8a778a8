"""The schema of the custom resource and the code agree on every field."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.fleet.enrollment import EnrollmentRecord
from controller.kube.objects.enrollments import enrollment_object, enrollment_spec
from tests.contracts.enrollment_store import FULL

FILE = Path(__file__).resolve().parents[2] / "deploy/kustomize/base/nodeenrollments.yaml"
CRD = yaml.safe_load(FILE.read_text())
SCHEMA = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]


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


def test_every_field_is_declared_and_every_declared_one_is_used() -> None:
    enrolled_gpus = [
        replace(x, serial="1", identity_key="c" * 64, pci_bus_id="b", enrolled=True, complete=False)
        for x in FULL.gpus
    ]
    assert FULL.denial is not None
    assert FULL.denial.candidate is not None
    candidate = replace(
        FULL.denial.candidate, spire_agent=FULL.spire_agent, gpus=tuple(enrolled_gpus)
    )
    full = replace(
        FULL, gpus=tuple(enrolled_gpus), denial=replace(FULL.denial, candidate=candidate)
    )
    assert paths(enrollment_spec(full)) == declared(SCHEMA)


def test_an_empty_record_has_an_empty_spec() -> None:
    assert enrollment_object(EnrollmentRecord("n"))["spec"] == {}


def leaves(schema: dict[str, Any], at: str = "") -> list[Any]:
    found = [pytest.param(schema, id=at or "spec")]
    for key, inner in schema.get("properties", {}).items():
        found += leaves(inner, f"{at}.{key}")
    return found + (leaves(schema["items"], f"{at}[]") if "items" in schema else [])


@pytest.mark.parametrize("schema", leaves(SCHEMA))
def test_everything_is_bounded(schema: dict[str, Any]) -> None:
    """Else the API server refuses the rules in CEL as too costly, and anything fits in."""
    bound = {"string": "maxLength", "array": "maxItems"}.get(schema["type"])
    assert bound is None or bound in schema
