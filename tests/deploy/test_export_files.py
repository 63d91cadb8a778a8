"""The component and the chart's values for exporters: rights, Secret, time, settings."""

from pathlib import Path
from typing import Any

import yaml

from controller.app import DRAIN_SECONDS
from controller.export.inventory import FLUSH_SECONDS
from controller.kube.api.resources import EXPORT_CALLS
from gpuwarden.settings.loader import CONTROLLER, Inputs, load
from tests.chart.rendering import REQUIRED, one, render
from tests.deploy.manifests import BASE, KUSTOMIZE, container_of, pod_of, rendered

COMPONENT = KUSTOMIZE / "components" / "export"
ROLE = "gpuwarden-controller-export"
PAUSE_S = 5
WANTED = {(x.verb.value, x.resource.group, x.rbac_name, x.name, True) for x in EXPORT_CALLS}


def rights(role: dict[str, Any]) -> set[tuple[str, str, str, str | None, bool]]:
    return {
        (verb, group, resource, name, role["kind"] == "Role")
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [None])
    }


def overlay(folder: Path) -> Path:
    above = Path(*[".."] * (len(folder.resolve().parts) - 1))
    text = yaml.safe_dump(
        {
            "resources": [str(above / BASE.relative_to("/"))],
            "components": [str(above / COMPONENT.relative_to("/"))],
        }
    )
    (folder / "kustomization.yaml").write_text(text)
    return folder


def test_the_component_grants_what_exporters_do_and_nothing_else(tmp_path: Path) -> None:
    made = rendered(overlay(tmp_path))
    assert rights(one(made, "Role", ROLE)) == WANTED
    binding = one(made, "RoleBinding", ROLE)
    assert [(x["kind"], x["name"]) for x in binding["subjects"]] == [
        ("ServiceAccount", "gpuwarden-controller")
    ]


def test_the_component_gives_time_and_takes_secrets_by_reference(tmp_path: Path) -> None:
    workload = one(rendered(overlay(tmp_path)), "StatefulSet", "gpuwarden-controller")
    pod = pod_of(workload)
    assert pod["terminationGracePeriodSeconds"] == PAUSE_S + 2 * DRAIN_SECONDS + FLUSH_SECONDS
    (reference,) = container_of(workload)["envFrom"]
    assert reference == {"secretRef": {"name": "gpuwarden-export", "optional": True}}


VALUES: dict[str, Any] = {
    "exporters": ["postgres", "s3"],
    "existingSecret": "warehouse",
    "settings": {
        "postgres": {"host": "db", "database": "fleet", "user": "exporter"},
        "s3": {"bucket": "fleet"},
    },
}


def test_the_chart_grants_the_same() -> None:
    found = render({**REQUIRED, "export": VALUES})
    assert rights(one(found, "Role", ROLE)) == WANTED
    workload = one(found, "StatefulSet", "gpuwarden-controller")
    assert pod_of(workload)["terminationGracePeriodSeconds"] == 25
    assert container_of(workload)["envFrom"] == [{"secretRef": {"name": "warehouse"}}]


def test_the_chart_s_settings_are_those_of_the_controller() -> None:
    found = render({**REQUIRED, "export": VALUES})
    text = one(found, "ConfigMap", "gpuwarden-controller-config")["data"]["controller.yaml"]
    environment = {"POSTGRES_PASSWORD": "x", "POD_NAME": "p", "POD_NAMESPACE": "n"}
    export = load(CONTROLLER, Inputs((), environment, ("f", text.encode()))).settings.export
    assert export.exporters == ("postgres", "s3")
    assert (export.postgres.host, export.s3.bucket) == ("db", "fleet")


def test_without_exporters_the_chart_has_nothing_of_it() -> None:
    found = render({**REQUIRED, "export": {**VALUES, "exporters": []}})
    assert [x for x in found if x["metadata"]["name"] == ROLE] == []
    workload = one(found, "StatefulSet", "gpuwarden-controller")
    assert pod_of(workload)["terminationGracePeriodSeconds"] == 15
    assert "envFrom" not in container_of(workload)
    assert "export:" not in str(one(found, "ConfigMap", "gpuwarden-controller-config")["data"])
