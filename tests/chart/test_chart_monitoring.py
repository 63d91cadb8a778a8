"""Monitors, alerts and dashboards of the chart: off, and otherwise those of kustomize."""

from typing import Any, Final

import pytest
import yaml

from gpuwarden.settings.loader import CONTROLLER, Inputs, load
from tests.chart.rendering import REQUIRED, Object, objects, one, render
from tests.deploy.manifests import KUSTOMIZE

MONITORING: Final = KUSTOMIZE / "components" / "monitoring"
ON: Final = {
    "labels": {"release": "prometheus"},
    "serviceMonitor": {"enabled": True},
    "podMonitor": {"enabled": True},
    "fleet": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
}


@pytest.fixture(scope="module")
def chart() -> list[Object]:
    return render({**REQUIRED, "monitoring": ON, "hints": {"scorer": {"enabled": True}}})


def is_monitoring(x: Object) -> bool:
    name = x["metadata"]["name"]
    return x["apiVersion"].startswith("monitoring.coreos.com/") or name in {
        "gpuwarden-controller-metrics",
        "gpuwarden-dashboards",
    }


def shows_fleet(found: list[Object]) -> bool:
    text = one(found, "ConfigMap", "gpuwarden-controller-config")["data"]["controller.yaml"]
    return load(CONTROLLER, Inputs(file=("c.yaml", text.encode()))).settings.metrics.fleet


def test_monitoring_is_off_by_default() -> None:
    found = render(REQUIRED)
    assert [x for x in found if is_monitoring(x)] == []
    assert not shows_fleet(found)


def test_the_objects_are_those_of_kustomize(chart: list[Object]) -> None:
    files = ("monitors.yaml", "rules.yaml")
    wanted = [x for y in files for x in yaml.safe_load_all((MONITORING / y).read_text())]
    for theirs in wanted:
        ours = one(chart, theirs["kind"], theirs["metadata"]["name"])
        assert ours["spec"] == theirs["spec"]
    dashboards = one(chart, "ConfigMap", "gpuwarden-dashboards")
    folder = MONITORING / "dashboards"
    assert dashboards["data"] == {x.name: x.read_text() for x in folder.glob("*.json")}
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert shows_fleet(chart)


@pytest.mark.parametrize("kind", ["ServiceMonitor", "PodMonitor", "PrometheusRule"])
def test_prometheus_selects_them_by_the_labels_that_are_given(
    chart: list[Object], kind: str
) -> None:
    found = objects(chart, kind)
    assert {x["metadata"]["labels"]["release"] for x in found} == {"prometheus"}


def test_runbooks_point_where_they_are_published() -> None:
    values: dict[str, Any] = {"enabled": True, "runbooks": "https://sre.acme.io/gpuwarden.html"}
    found = render({**REQUIRED, "monitoring": {"prometheusRule": values}})
    (rule,) = [x for x in found if is_monitoring(x)]
    urls = {
        x["annotations"]["runbook_url"].partition("#")[0]
        for x in rule["spec"]["groups"][0]["rules"]
    }
    assert urls == {"https://sre.acme.io/gpuwarden.html"}


def test_without_a_scorer_none_is_scraped() -> None:
    found = render({**REQUIRED, "monitoring": ON})
    names = [x["metadata"]["name"] for x in objects(found, "ServiceMonitor")]
    assert names == ["gpuwarden-controller"]


def test_without_the_fleet_page_it_is_not_scraped() -> None:
    found = render({**REQUIRED, "monitoring": {"serviceMonitor": {"enabled": True}}})
    (monitor,) = objects(found, "ServiceMonitor")
    assert [x["path"] for x in monitor["spec"]["endpoints"]] == ["/metrics"]
