"""The granted rights are exactly the calls of the controller, both ways."""

from pathlib import Path
from typing import Any

import yaml

from controller.kube.api.resources import CALLS, ENROLLMENTS
from controller.kube.objects.enrollments import API_VERSION, KIND

BASE = Path(__file__).resolve().parents[2] / "deploy" / "kustomize" / "base"
DELETES = ("delete", "gpuwarden.dev", "gpureservations", None, False)
"""The only objects that go: reservations, when their GPUs are free."""
Right = tuple[str, str, str, str | None, bool]
"""Verb, group, resource, name, whether in the controller's own namespace only."""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((BASE / name).read_text()))


def granted() -> set[Right]:
    return {
        (verb, group, resource, name, document["kind"] == "Role")
        for document in documents("rbac.yaml")
        for rule in document.get("rules", ())
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [None])
    }


def test_every_call_is_granted_and_nothing_else() -> None:
    made = {(x.verb.value, x.resource.group, x.rbac_name, x.name, x.own_namespace) for x in CALLS}
    assert granted() == made


def test_no_right_is_a_wildcard_or_reads_secrets() -> None:
    for right in granted():
        assert "*" not in right
        assert right[2] not in {"secrets", "pods/exec", "serviceaccounts/token"}
        assert not right[0].startswith("delete") or right == DELETES


def test_each_role_is_bound_to_the_controller_alone() -> None:
    found = documents("rbac.yaml")
    roles = {(x["kind"], x["metadata"]["name"]) for x in found if x["kind"].endswith("Role")}
    bound = {
        (x["roleRef"]["kind"], x["roleRef"]["name"]) for x in found if x["kind"].endswith("Binding")
    }
    assert roles == bound
    subjects = [s for x in found for s in x.get("subjects", ())]
    assert {(s["kind"], s["name"]) for s in subjects} == {
        ("ServiceAccount", "gpuwarden-controller")
    }


def test_the_custom_resource_is_the_one_that_the_code_speaks() -> None:
    (crd,) = documents("nodeenrollments.yaml")
    spec = crd["spec"]
    assert crd["metadata"]["name"] == f"{ENROLLMENTS.plural}.{ENROLLMENTS.group}"
    assert (spec["group"], spec["scope"]) == (ENROLLMENTS.group, "Cluster")
    assert (spec["names"]["plural"], spec["names"]["kind"]) == (ENROLLMENTS.plural, KIND)
    assert [x["name"] for x in spec["versions"]] == [ENROLLMENTS.version]
    assert f"{spec['group']}/{spec['versions'][0]['name']}" == API_VERSION


def test_the_base_names_every_file() -> None:
    (kustomization,) = documents("kustomization.yaml")
    files = {x.name for x in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files
