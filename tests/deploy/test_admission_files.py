"""The webhooks' registration: whom they are asked about, and what happens without us."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.admission.pod_webhooks import ENFORCED
from controller.admission.rules import asks_condition
from controller.binding import webhook as binding_webhook
from controller.kube.nodes.nodes import ENFORCE_LABEL
from controller.placement.keys import RequirementRules
from controller.web.webhook import AdmissionLimits
from gpuwarden.settings.loader import CONTROLLER, Inputs, load
from tests.deploy.manifests import BASE, KUSTOMIZE, Object, container_of, objects, one, rendered
from tests.fakes.admission import AdmissionWorld

ADMISSION = KUSTOMIZE / "components" / "admission"
POLICY = KUSTOMIZE.parent / "policy"
AFFINITY = KUSTOMIZE / "components" / "affinity"
REPORT = KUSTOMIZE / "components" / "admission-report"
KINDS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
OBJECTS: list[Object] = [x for x in objects(ADMISSION) if isinstance(x, dict)]  # type: ignore[redundant-expr]  # a patch is a list
PODS: list[Object] = [x for x in OBJECTS if x["metadata"]["name"] == "gpuwarden-pods"]
WEBHOOKS: list[Object] = [w for x in PODS for w in x["webhooks"]]
BINDING_WEBHOOK: list[Object] = one(OBJECTS, KINDS[0], "gpuwarden-bindings")["webhooks"]
INFRASTRUCTURE = [
    "kube-system",
    "kube-node-lease",
    "spire-server",
    "spire-system",
    "gpuwarden-system",
]


def overlay(folder: Path, *components: Path) -> Path:
    """An overlay of somebody's own."""
    document = {
        "resources": [os.path.relpath(BASE, folder)],
        "components": [os.path.relpath(x, folder) for x in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    return folder


def selected(webhook: Object, name: str, **labels: str) -> bool:
    """Whether a namespace is matched, as the API server evaluates a selector."""
    all_labels = {"kubernetes.io/metadata.name": name, **labels}
    for term in webhook["namespaceSelector"]["matchExpressions"]:
        is_in = all_labels.get(term["key"]) in term["values"]
        if is_in is not (term["operator"] == "In"):
            return False
    return True


def test_there_are_two_of_each_kind() -> None:
    assert [x["name"] for x in WEBHOOKS] == [
        "enforced.pods.gpuwarden.dev",
        "asking.pods.gpuwarden.dev",
    ] * 2


@pytest.mark.parametrize("webhook", [*WEBHOOKS, *BINDING_WEBHOOK])
def test_a_webhook_that_does_not_answer_lets_nothing_in(webhook: Object) -> None:
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["sideEffects"] == "NoneOnDryRun"
    assert webhook["admissionReviewVersions"] == ["v1"]
    assert webhook["matchPolicy"] == "Equivalent"
    limits = AdmissionLimits()
    assert 2 * limits.spare_s < webhook["timeoutSeconds"] <= limits.longest_s
    assert "objectSelector" not in webhook  # a label would be a way round


@pytest.mark.parametrize("webhook", WEBHOOKS)
def test_only_creations_and_ephemeral_containers_are_asked_about(webhook: Object) -> None:
    assert [(x["operations"], x["resources"]) for x in webhook["rules"]] == [
        (["CREATE"], ["pods"]),
        (["UPDATE"], ["pods/ephemeralcontainers"]),
    ]
    assert all(x["apiGroups"] == [""] and x["apiVersions"] == ["v1"] for x in webhook["rules"])


def test_each_path_is_served_and_says_what_the_selector_says() -> None:
    served = AdmissionWorld().webhooks().handlers()
    for kind, verb in zip(KINDS, ("mutate", "validate"), strict=True):
        (configuration,) = (x for x in PODS if x["kind"] == kind)
        for webhook in configuration["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            assert path in served
            assert path.startswith(f"/{verb}/")
            says_enforced = path.endswith(ENFORCED)
            assert selected(webhook, "a", **{ENFORCE_LABEL: "true"}) is says_enforced
            assert selected(webhook, "a") is not says_enforced


def test_every_namespace_is_covered_once_and_the_clusters_own_never() -> None:
    for labels in ({}, {ENFORCE_LABEL: "true"}, {ENFORCE_LABEL: "false"}):
        hits = [x["name"] for x in WEBHOOKS if selected(x, "team", **labels)]
        assert len(hits) == 2
        assert len(set(hits)) == 1
        for name in INFRASTRUCTURE:
            assert not any(selected(x, name, **labels) for x in WEBHOOKS)


def test_elsewhere_only_pods_with_a_key_of_ours_are_asked_about() -> None:
    for webhook in WEBHOOKS:
        if webhook["name"].startswith("enforced"):
            assert "matchConditions" not in webhook
            continue
        (condition,) = webhook["matchConditions"]
        assert re.sub(r"\s+", " ", condition["expression"]) == asks_condition(RequirementRules())


def test_configured_hash_keys_are_asked_about() -> None:
    made = asks_condition(RequirementRules(hash_keys=("example.org/hash",)))
    assert "'example.org/hash'" in made
    assert "my-company" not in made


def test_mutation_is_asked_again_after_others() -> None:
    for x in PODS:
        if x["kind"] == KINDS[0]:
            assert {w["reinvocationPolicy"] for w in x["webhooks"]} == {"IfNeeded"}


def test_the_binding_webhook_is_asked_about_both_ways_to_bind_and_once() -> None:
    for webhook in BINDING_WEBHOOK:
        (rule,) = webhook["rules"]
        assert rule["resources"] == ["pods/binding", "bindings"]
        assert (rule["operations"], rule["apiGroups"], rule["apiVersions"]) == (
            ["CREATE"],
            [""],
            ["v1"],
        )
        assert webhook["reinvocationPolicy"] == "Never"


def test_the_binding_webhook_is_asked_where_it_is_enforced_and_elsewhere_about_our_scheduler() -> (
    None
):
    enforced, scheduled = BINDING_WEBHOOK
    assert enforced["clientConfig"]["service"]["path"] == binding_webhook.BINDING_WEBHOOK + ENFORCED
    assert scheduled["clientConfig"]["service"]["path"] == binding_webhook.BINDING_WEBHOOK
    assert "matchConditions" not in enforced
    (condition,) = scheduled["matchConditions"]
    (policy, *_) = yaml.safe_load_all((POLICY / "bindings.yaml").read_text())
    (registered,) = (x for x in policy["spec"]["variables"] if x["name"] == "registered")
    assert condition["expression"] in registered["expression"]
    for webhook, labels in ((enforced, {ENFORCE_LABEL: "true"}), (scheduled, {})):
        assert selected(webhook, "team", **labels)
        assert not any(selected(webhook, name, **labels) for name in INFRASTRUCTURE)
    assert not selected(enforced, "team")
    assert not selected(scheduled, "team", **{ENFORCE_LABEL: "true"})


def test_the_keys_of_reservation_ids_are_a_secret(tmp_path: Path) -> None:
    made = rendered(overlay(tmp_path, ADMISSION))
    container = container_of(one(made, "StatefulSet", "gpuwarden-controller"))
    mounts = {x["mountPath"]: x["name"] for x in container["volumeMounts"]}
    assert mounts[str(_settings(container).admission.id_keys.parent)] == "reservation-keys"


def test_the_component_opens_the_webhooks_over_mtls(tmp_path: Path) -> None:
    made = rendered(overlay(tmp_path, ADMISSION))
    workload = one(made, "StatefulSet", "gpuwarden-controller")
    container = container_of(workload)
    settings = _settings(container)
    tls = settings.admission.tls
    mounts = {x["mountPath"]: x["name"] for x in container["volumeMounts"]}
    for path in (tls.cert, tls.key, tls.client_ca):
        assert mounts[str(path.parent)] == "admission"
    ports = {x["name"]: x["containerPort"] for x in container["ports"]}
    assert ports["admission"] == settings.listen.admission.port
    policy = one(made, "NetworkPolicy", "gpuwarden-controller")
    assert {"ports": [{"port": "admission"}]} in policy["spec"]["ingress"]
    service = one(made, "Service", "gpuwarden-admission")
    assert {x["port"]: x["targetPort"] for x in service["spec"]["ports"]} == {
        443: "admission",
        8443: "admission",
    }
    for webhook in (*WEBHOOKS, *BINDING_WEBHOOK):
        target = webhook["clientConfig"]["service"]
        assert (target["name"], target["namespace"]) == (
            "gpuwarden-admission",
            service["metadata"]["namespace"],
        )


def test_certificates_have_the_services_names() -> None:
    found = one(OBJECTS, "Certificate", "gpuwarden-admission-server")
    names = found["spec"]["dnsNames"]
    name = "gpuwarden-admission"
    assert names[:3] == [name, f"{name}.gpuwarden-system", f"{name}.gpuwarden-system.svc"]


def test_affinity_is_one_setting_on_top(tmp_path: Path) -> None:
    found = rendered(overlay(tmp_path, ADMISSION, AFFINITY))
    container = one(found, "StatefulSet", "gpuwarden-controller")["spec"]["template"]["spec"]
    environment = {x["name"]: x.get("value") for x in container["containers"][0]["env"]}
    assert environment["GPUWARDEN_SCHEDULING_MODE"] == "affinity"
    assert "GPUWARDEN_ADMISSION_TLS_CERT" in environment


def test_report_only_holds_nothing_back(tmp_path: Path) -> None:
    made = rendered(overlay(tmp_path, ADMISSION, REPORT))
    for kind in KINDS:
        webhooks = one(made, kind, "gpuwarden-pods")["webhooks"]
        assert [x["failurePolicy"] for x in webhooks] == ["Ignore", "Ignore"]
    binding_webhooks = one(made, KINDS[0], "gpuwarden-bindings")["webhooks"]
    assert [x["failurePolicy"] for x in binding_webhooks] == ["Ignore", "Ignore"]
    container = container_of(one(made, "StatefulSet", "gpuwarden-controller"))
    assert _settings(container).enforcement.value == "report"


def _settings(container: Object) -> Any:
    known = {x["name"]: x["value"] for x in container["env"] if "value" in x}
    file = BASE / "config" / "controller.yaml"
    return load(CONTROLLER, Inputs((), known, (str(file), file.read_bytes()))).settings
