"""The component of managed certificates: its rights, its files, and what cannot block it."""

import os
from pathlib import Path
from typing import Any

import yaml

from controller.certificates.leaves import leaf_specs
from controller.kube.api.resources import CERTIFICATE_CALLS, Verb
from controller.wiring.certificates import managed_listener
from tests.deploy.manifests import KUSTOMIZE, container_of, one, pod_of, rendered
from tests.deploy.test_admission_files import ADMISSION, OBJECTS, overlay
from tests.deploy.test_http_api_files import EXTENDER, HTTP_API, settings_of

CERTIFICATES = KUSTOMIZE / "components" / "self-managed-certificates"
SCHEDULER = KUSTOMIZE.parent / "scheduler"
SPECS = {spec.name: spec for spec in leaf_specs("gpuwarden-system")}


def rights() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = list(yaml.safe_load_all((CERTIFICATES / "rbac.yaml").read_text()))
    return found


def test_every_call_is_granted_and_nothing_else() -> None:
    granted = [
        (verb, group, resource, name, document["kind"] == "Role")
        for document in rights()
        for rule in document.get("rules", ())
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [None])
    ]
    calls = CERTIFICATE_CALLS
    made = [(x.verb.value, x.resource.group, x.rbac_name, x.name, x.own_namespace) for x in calls]
    assert sorted(granted, key=str) == sorted(made, key=str)


def test_only_create_has_no_name_and_secrets_are_not_listed() -> None:
    for call in CERTIFICATE_CALLS:
        assert (call.name is None) is (call.verb is Verb.CREATE)
        assert call.verb in {Verb.GET, Verb.CREATE, Verb.PATCH}
        assert call.own_namespace or call.resource.group == "admissionregistration.k8s.io"


def test_the_rights_are_the_controllers_alone() -> None:
    bound = {
        (x["roleRef"]["kind"], x["roleRef"]["name"], x["subjects"][0]["name"], len(x["subjects"]))
        for x in rights()
        if x["kind"].endswith("Binding")
    }
    account = "gpuwarden-controller"
    assert bound == {
        (kind, "gpuwarden-controller-certificates", account, 1) for kind in ("Role", "ClusterRole")
    }


def test_listeners_take_their_files_and_no_secret_is_mounted_for_them(tmp_path: Path) -> None:
    made = rendered(overlay(tmp_path, ADMISSION, EXTENDER, CERTIFICATES))
    workload = one(made, "StatefulSet", "gpuwarden-controller")
    settings = settings_of(container_of(workload))
    assert settings.certificates.self_managed.enabled
    volumes = {x["name"]: x for x in pod_of(workload)["volumes"]}
    mounts = {x["mountPath"]: x["name"] for x in container_of(workload)["volumeMounts"]}
    for listener, ca in (("admission", None), ("extender", "ca.crt")):
        tls = getattr(settings, listener).tls
        assert managed_listener(settings, tls.cert) == listener
        assert tls.key == tls.cert.parent / "tls.key"
        assert tls.client_ca == (None if ca is None else tls.cert.parent / ca)
        assert listener not in {*mounts.values(), *volumes}
    assert volumes[mounts["/run/gpuwarden"]]["emptyDir"]["medium"] == "Memory"
    assert settings.certificates.self_managed.folder.parent == Path("/run/gpuwarden")
    assert "inject-ca-from" not in str(made)


def test_the_scheduler_shows_the_managed_certificate(tmp_path: Path) -> None:
    file = overlay(tmp_path, CERTIFICATES) / "kustomization.yaml"
    document = yaml.safe_load(file.read_text())
    document["resources"].append(os.path.relpath(SCHEDULER, tmp_path))
    file.write_text(yaml.safe_dump(document))
    workload = one(rendered(tmp_path), "Deployment", "gpuwarden-scheduler")
    (volume,) = [x for x in pod_of(workload)["volumes"] if x["name"] == "extender"]
    assert volume["secret"]["secretName"] == SPECS["scheduler"].secret


def test_our_webhooks_cannot_block_our_secrets_lease_or_pods() -> None:
    """A controller that was down for a year heals by itself: nothing asks it meanwhile."""
    names = set()
    for document in OBJECTS:
        for webhook in document.get("webhooks", ()):
            names.add(document["metadata"]["name"])
            asked = {name.partition("/")[0] for x in webhook["rules"] for name in x["resources"]}
            assert asked <= {"pods", "bindings"}
            assert all(x["scope"] == "Namespaced" for x in webhook["rules"])
            (left_out,) = [
                x["values"]
                for x in webhook["namespaceSelector"]["matchExpressions"]
                if (x["key"], x["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
            ]
            assert "gpuwarden-system" in left_out
    webhooks = [x.name for x in CERTIFICATE_CALLS if "webhook" in x.resource.plural]
    assert names == set(webhooks)


def test_certificates_have_the_names_of_the_services() -> None:
    for listener, folder in (("admission", ADMISSION), ("api", HTTP_API), ("extender", SCHEDULER)):
        metadata = yaml.safe_load((folder / "service.yaml").read_text())["metadata"]
        assert f"{metadata['name']}.{metadata['namespace']}.svc" in SPECS[listener].names
