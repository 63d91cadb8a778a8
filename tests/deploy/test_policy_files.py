"""The admission policies name the keys, the taint, the label and the codes that the code does."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.admission.eviction import evicted_after_s
from controller.admission.pod import decode_admitted
from controller.kube.nodes.nodes import ENFORCE_LABEL
from controller.placement.keys import (
    LABEL_PREFIXES,
    MANAGED_TAINT,
    MAP,
    REQUIREMENT_ANNOTATIONS,
    RESULT_ANNOTATIONS,
    RUNTIME_DEVICE_PREFIXES,
    RequirementRules,
    reserved_keys,
)
from gpuwarden.reasons import ReasonCode
from tests.builders.hostile_pods import DEVICE_KEYS
from tests.deploy.manifests import Object, rendered

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "policy"
FILES = sorted({*FOLDER.rglob("*.yaml")} - {*FOLDER.rglob("kustomization.yaml")})
OBJECTS = [x for file in FILES for x in yaml.safe_load_all(file.read_text())]
POLICIES = {
    x["metadata"]["name"].removeprefix("gpuwarden-"): x
    for x in OBJECTS
    if x["kind"] == "ValidatingAdmissionPolicy"
}
INFRASTRUCTURE = [
    "kube-system",
    "kube-node-lease",
    "spire-server",
    "spire-system",
    "gpuwarden-system",
]
SCHEDULER = "system:serviceaccount:gpuwarden-system:gpuwarden-scheduler"
KEYS = reserved_keys(RequirementRules())


def variable(policy: str, name: str) -> str:
    (found,) = (x for x in POLICIES[policy]["spec"]["variables"] if x["name"] == name)
    return str(found["expression"])


def listed(policy: str, name: str) -> tuple[str, ...]:
    """A list of texts in CEL is one in Python."""
    return tuple(ast.literal_eval(variable(policy, name)))


def text(policy: str) -> str:
    return yaml.safe_dump(POLICIES[policy], width=1_000_000)


def bindings(found: list[Object]) -> list[Object]:
    return [x for x in found if x["kind"] == "ValidatingAdmissionPolicyBinding"]


@pytest.mark.parametrize("policy", ["keys", "bindings"])
def test_our_keys_are_those_of_the_code(policy: str) -> None:
    assert listed(policy, "prefixes") == KEYS.prefixes
    assert listed(policy, "names") == KEYS.names
    assert listed(policy, "ordinals") == KEYS.ordinals
    assert POLICIES[policy]["spec"]["variables"][1]["name"] == "names"  # docs/policies.md


def test_every_key_that_the_code_reads_or_writes_is_among_them() -> None:
    rules = RequirementRules()
    labels = {f"{prefix}x" for prefix in LABEL_PREFIXES}
    for key in {*REQUIREMENT_ANNOTATIONS, *RESULT_ANNOTATIONS, *rules.hash_keys, *labels}:
        assert KEYS.is_ours(key), key
    assert not KEYS.is_ours("example.org/gpuwarden.dev")


def test_configured_keys_are_among_them() -> None:
    keys = reserved_keys(
        RequirementRules(hash_keys=("example.org/hash", "gpuwarden.dev/required-hash"))
    )
    assert keys.names == ("example.org/hash", MAP)
    assert keys.is_ours("example.org/hash")


def test_ordinals_count_on_pods_with_a_map() -> None:
    assert f"'{MAP}' in variables.annotationsBefore" in variable("keys", "refused")


def test_device_annotations_are_those_of_the_code() -> None:
    assert listed("devices", "prefixes") == RUNTIME_DEVICE_PREFIXES


def test_each_of_them_is_known_from_what_reads_it() -> None:
    """And the other way round: what the bypass checks are tried with is made from documentation."""
    for prefix in RUNTIME_DEVICE_PREFIXES:
        assert any(key.startswith(prefix) for key in DEVICE_KEYS), prefix
    for key in DEVICE_KEYS:
        assert key.startswith(listed("devices", "prefixes")), key


def test_the_label_and_the_taint_are_those_of_the_code() -> None:
    for policy in ("devices", "bindings", "enforcement", "protection"):
        assert ENFORCE_LABEL in text(policy)
    assert f"'{MANAGED_TAINT}'" in variable("protection", "tolerates")


def test_gpuwarden_s_own_pods_stay_on_a_node_that_is_given_the_taint() -> None:
    deploy = FOLDER.parent
    files = (
        deploy / "kustomize/base/controller.yaml",
        deploy / "kustomize/base/agent.yaml",
        deploy / "scheduler/deployment.yaml",
        deploy / "spire/toleration.yaml",
    )
    found = [x for file in files for x in yaml.safe_load_all(file.read_text())]
    templates = [x["spec"]["template"] for x in found if "template" in x.get("spec", {})]
    assert len(templates) == len(files)
    for template in templates:
        spec = {"containers": [{"name": "c"}], **template["spec"]}
        pod = decode_admitted(json.dumps({"metadata": {"name": "p"}, "spec": spec}).encode())
        assert evicted_after_s(pod) is None, template


def test_the_page_gives_infrastructure_the_same_toleration() -> None:
    page = (FOLDER.parents[1] / "docs" / "policies.md").read_text()
    (given,) = re.findall(r"^```yaml\n(tolerations:.*?)^```", page, re.MULTILINE | re.DOTALL)
    patch = yaml.safe_load((FOLDER.parent / "spire" / "toleration.yaml").read_text())
    spec = patch["spec"]["template"]["spec"]
    assert yaml.safe_load(given)["tolerations"] == spec["tolerations"]


def test_controllers_and_schedulers_prefer_other_nodes_than_those_of_the_agents() -> None:
    deploy = FOLDER.parent
    (agents,) = (
        x["spec"]["template"]["spec"]["nodeSelector"]
        for x in yaml.safe_load_all((deploy / "kustomize/base/agent.yaml").read_text())
        if x["kind"] == "DaemonSet"
    )
    for file in ("kustomize/base/controller.yaml", "scheduler/deployment.yaml"):
        (spec,) = (
            x["spec"]["template"]["spec"]
            for x in yaml.safe_load_all((deploy / file).read_text())
            if "template" in x.get("spec", {})
        )
        affinity = spec["affinity"]["nodeAffinity"]
        (preferred,) = affinity.pop("preferredDuringSchedulingIgnoredDuringExecution")
        assert not affinity  # where there are GPU nodes only, they run there
        (expression,) = preferred["preference"]["matchExpressions"]
        assert expression["operator"] == "NotIn"
        assert {expression["key"]: expression["values"][0]}.items() <= agents.items()


def test_the_cluster_s_own_namespaces_are_the_same_everywhere() -> None:
    selector = POLICIES["protection"]["spec"]["matchConstraints"]["namespaceSelector"]
    (names,) = (x for x in selector["matchExpressions"] if x["key"].startswith("kubernetes.io/"))
    assert names["values"] == INFRASTRUCTURE
    assert list(listed("enforcement", "infrastructure")) == INFRASTRUCTURE
    assert str(INFRASTRUCTURE) in variable("bindings", "registered")


def test_a_namespace_of_such_a_name_is_not_created_without_the_right() -> None:
    spec = POLICIES["enforcement"]["spec"]
    (condition,) = spec["matchConditions"]
    assert condition["expression"].startswith("oldObject == null ")
    needed = variable("enforcement", "needsTheRight")
    assert needed.endswith(" || object.metadata.name in variables.infrastructure")
    right, *_ = spec["validations"]
    assert right["expression"].startswith("!variables.needsTheRight || authorizer.")


def test_labels_that_let_namespaces_in_are_not_changed_without_the_right() -> None:
    guarded = listed("enforcement", "guarded")
    files = sorted({*FOLDER.parent.rglob("*.yaml")} - {*(FOLDER.parent / "helm").rglob("*.yaml")})
    documents = [x for file in files for x in yaml.safe_load_all(file.read_text())]
    assert set(guarded) == {x for x in let_in_by(documents) if x.startswith("gpuwarden.dev/")}
    (condition,) = POLICIES["enforcement"]["spec"]["matchConditions"]
    assert f"{list(guarded)} .exists(k, " in condition["expression"]
    assert variable("enforcement", "needsTheRight").startswith("variables.changed.size() > 0 ||")


def let_in_by(document: Any) -> set[str]:
    """The labels of namespaces in all peers of NetworkPolicies, in patches too."""
    if isinstance(document, list):
        return set().union(*map(let_in_by, document))
    if not isinstance(document, dict):
        return set()
    if "namespaceSelector" in document and set(document) <= {"namespaceSelector", "podSelector"}:
        assert set(document["namespaceSelector"]) <= {"matchLabels"}
        return {*document["namespaceSelector"].get("matchLabels", ())}
    return set().union(*map(let_in_by, document.values()))


def test_the_page_adds_a_namespace_to_both_lists(tmp_path: Path) -> None:
    page = (FOLDER.parents[1] / "docs" / "policies.md").read_text()
    blocks = re.findall(r"^```yaml\n(patches:.*?)^```", page, re.MULTILINE | re.DOTALL)
    (patches,) = (x for x in blocks if "gpu-operator" in x)
    above = Path(*[".."] * len(tmp_path.parts[1:]))
    inside = above / FOLDER.relative_to("/")
    document = {"resources": [str(inside), str(inside / "protection")], **yaml.safe_load(patches)}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(document))
    found = {
        x["metadata"]["name"]: x["spec"]
        for x in rendered(tmp_path)
        if x["kind"] == "ValidatingAdmissionPolicy"
    }
    expected = [*INFRASTRUCTURE, "gpu-operator"]
    protection = found["gpuwarden-protection"]["matchConstraints"]["namespaceSelector"]
    assert protection["matchExpressions"][0]["values"] == expected
    names, *_ = found["gpuwarden-enforcement"]["variables"]
    assert names["name"] == "infrastructure"
    assert ast.literal_eval(names["expression"]) == expected


def test_the_binding_webhook_sees_the_bindings_of_the_scheduler_that_is_shipped() -> None:
    assert f"request.userInfo.username == '{SCHEDULER}'" in variable("bindings", "registered")
    rbac = (FOLDER.parent / "scheduler" / "rbac.yaml").read_text()
    (account,) = (x for x in yaml.safe_load_all(rbac) if x["kind"] == "ServiceAccount")
    meta = account["metadata"]
    assert f"system:serviceaccount:{meta['namespace']}:{meta['name']}" == SCHEDULER


def test_everything_that_changes_an_object_is_matched() -> None:
    for policy, wanted in {
        "keys": {("pods", "UPDATE"), ("pods/status", "UPDATE")},
        "devices": {("pods", "UPDATE"), ("pods/status", "UPDATE")},
        "bindings": {("pods/binding", "CREATE"), ("bindings", "CREATE")},
        "enforcement": {
            ("namespaces", "CREATE"),
            ("namespaces", "UPDATE"),
            ("namespaces/status", "UPDATE"),
            ("namespaces/finalize", "UPDATE"),
        },
        "protection": {("pods", "CREATE"), ("pods", "UPDATE")},
    }.items():
        rules = POLICIES[policy]["spec"]["matchConstraints"]["resourceRules"]
        assert {
            (resource, operation)
            for rule in rules
            for resource in rule["resources"]
            for operation in rule["operations"]
        } == wanted


def test_no_match_condition_asks_about_the_namespace() -> None:
    """The server does not tell it there: the expression would fail, and all requests with it."""
    for policy in POLICIES.values():
        for condition in policy["spec"].get("matchConditions", ()):
            assert "namespaceObject" not in condition["expression"]
            assert "variables." not in condition["expression"]


@pytest.mark.parametrize("policy", POLICIES)
def test_each_fails_closed_and_says_a_known_code(policy: str) -> None:
    spec = POLICIES[policy]["spec"]
    assert spec["failurePolicy"] == "Fail"
    for validation in spec["validations"]:
        words = validation.get("message") or validation["messageExpression"].lstrip("'\"")
        match = re.match(r"gpuwarden: ([A-Z_]+) ", words)
        assert match is not None, words
        assert match[1] in ReasonCode.__members__
        assert validation["reason"] in {"Forbidden", "Invalid"}


def test_each_is_bound_once_and_denies() -> None:
    names = [x["metadata"]["name"] for x in POLICIES.values()]
    assert sorted(x["spec"]["policyName"] for x in bindings(OBJECTS)) == sorted(names)
    assert all(x["spec"]["validationActions"] == ["Deny"] for x in bindings(OBJECTS))


def test_every_file_is_named_and_protection_is_chosen_apart() -> None:
    for folder in (FOLDER, FOLDER / "protection"):
        kustomization: dict[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text())
        assert set(kustomization["resources"]) == {x.name for x in FILES if x.parent == folder}


def test_reports_change_nothing_but_the_actions(tmp_path: Path) -> None:
    above = Path(*[".."] * len(tmp_path.parts[1:]))
    inside = above / FOLDER.relative_to("/")
    document = {
        "resources": [str(inside), str(inside / "protection")],
        "components": [str(inside / "report")],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(document))
    made = rendered(tmp_path)
    for binding in bindings(made):
        assert binding["spec"]["validationActions"] == ["Warn", "Audit"]
        binding["spec"]["validationActions"] = ["Deny"]
    assert sorted(map(yaml.safe_dump, made)) == sorted(map(yaml.safe_dump, OBJECTS))
