"""The schemas of the policy's custom resources and the file's document agree on every field."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.kube.api.resources import ATTESTATION_CLASSES, ATTESTATION_POLICIES
from controller.spire.snapshot import ATTESTORS
from gpuwarden.policy.document import policy_schema
from gpuwarden.policy.objects import CLASS, OBJECT_VERSION, POLICY

FILE = Path(__file__).resolve().parents[2] / "deploy/kustomize/base/policies.yaml"
CRDS = {x["spec"]["names"]["kind"]: x for x in yaml.safe_load_all(FILE.read_text())}
DEFINED = policy_schema()["$defs"]
BOUNDS = ("minLength", "minItems", "maxItems", "maxProperties")
Schema = dict[str, Any]


def spec_of(kind: str) -> Schema:
    found: Schema = CRDS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec: Schema = found["properties"]["spec"]
    return spec


def document(name: str, *, without: tuple[str, ...]) -> Schema:
    found = DEFINED[name]
    kept = {k: x for k, x in found["properties"].items() if k not in without}
    required = [x for x in found.get("required", []) if x not in without]
    return {**found, "properties": kept, "required": required}


def resolved(schema: Schema) -> Schema:
    """Without references, and without `null`: leaving a key out says the same."""
    if "$ref" in schema:
        return resolved(DEFINED[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        (one,) = (x for x in schema["anyOf"] if x.get("type") != "null")
        return resolved(one)
    return schema


def kinds(schema: Schema) -> str:
    return str(schema.get("type", "string"))  # an enum of texts has no type in JSON Schema


def differences(crd: Schema, wanted: Schema, at: str = "spec") -> list[str]:
    """What the custom resource says otherwise than the document."""
    wanted = resolved(wanted)
    found = []
    if kinds(crd) != kinds(wanted):
        found.append(f"{at}: {kinds(crd)}, not {kinds(wanted)}")
    if set(crd.get("enum", [])) != set(wanted.get("enum", [])):
        found.append(f"{at}: {crd.get('enum')}, not {wanted.get('enum')}")
    found += [
        f"{at}.{bound}: {crd.get(bound)}, not {wanted[bound]}"
        for bound in BOUNDS
        if bound in wanted and crd.get(bound) != wanted[bound] and "pattern" not in crd
    ]
    if crd.get("maxLength", 0) > wanted.get("maxLength", crd.get("maxLength", 0)):
        found.append(f"{at}.maxLength: {crd['maxLength']}")
    if "items" in wanted:
        found += differences(crd["items"], wanted["items"], f"{at}[]")
    if isinstance(values := wanted.get("additionalProperties"), dict):
        for name, inner in crd.get("properties", {"*": crd.get("additionalProperties")}).items():
            found += differences(inner, values, f"{at}.{name}")
        return found
    if "properties" in wanted:
        there, names = crd["properties"], set(wanted["properties"])
        if set(there) != names or set(crd.get("required", [])) != set(wanted.get("required", [])):
            found.append(f"{at}: {sorted(there)}, not {sorted(names)}")
        for name in names & set(there):
            found += differences(there[name], wanted["properties"][name], f"{at}.{name}")
    return found


def test_a_class_is_read_from_the_file() -> None:
    wanted = document("ClassDocumentEntry", without=("name",))
    assert differences(spec_of(CLASS), wanted) == []


def test_the_policy_is_read_from_the_file() -> None:
    wanted = document("PolicyDocument", without=("apiVersion", "kind", "classes"))
    assert differences(spec_of(POLICY), wanted) == []
    assert set(spec_of(POLICY)["properties"]["attestors"]["properties"]) == set(ATTESTORS)


def objects(schema: Schema, at: str) -> list[Any]:
    found = [pytest.param(schema, id=at)] if "properties" in schema else []
    for key, inner in schema.get("properties", {}).items():
        found += objects(inner, f"{at}.{key}")
    return found + (objects(schema["items"], f"{at}[]") if "items" in schema else [])


@pytest.mark.parametrize(
    "schema", [*objects(spec_of(POLICY), POLICY), *objects(spec_of(CLASS), CLASS)]
)
def test_unknown_keys_reach_the_controller(schema: Schema) -> None:
    """Dropped, a misspelled demand would demand nothing."""
    assert schema["x-kubernetes-preserve-unknown-fields"] is True


def leaves(schema: Schema, at: str) -> list[Any]:
    found = [pytest.param(schema, id=at)]
    for key, inner in schema.get("properties", {}).items():
        found += leaves(inner, f"{at}.{key}")
    if isinstance(inner := schema.get("additionalProperties"), dict):
        found += leaves(inner, f"{at}.*")
    return found + (leaves(schema["items"], f"{at}[]") if "items" in schema else [])


@pytest.mark.parametrize(
    "schema", [*leaves(spec_of(POLICY), POLICY), *leaves(spec_of(CLASS), CLASS)]
)
def test_everything_is_bounded(schema: Schema) -> None:
    bound = {"string": "maxLength", "array": "maxItems"}.get(schema["type"])
    assert bound is None or bound in schema or "enum" in schema
    assert "additionalProperties" not in schema or "maxProperties" in schema


@pytest.mark.parametrize(
    ("kind", "resource"), [(CLASS, ATTESTATION_CLASSES), (POLICY, ATTESTATION_POLICIES)]
)
def test_the_resources_are_those_that_the_code_speaks(kind: str, resource: Any) -> None:
    crd = CRDS[kind]
    spec = crd["spec"]
    assert crd["metadata"]["name"] == f"{resource.plural}.{resource.group}"
    assert (spec["group"], spec["scope"]) == (resource.group, "Cluster")
    assert spec["names"]["plural"] == resource.plural
    (version,) = spec["versions"]
    assert f"{spec['group']}/{version['name']}" == OBJECT_VERSION
    assert version["subresources"] == {"status": {}}
