"""The YAML of docs/platforms.md is what the chart needs on that platform."""

import re
from typing import Any

import yaml

from tests.chart.rendering import NAMESPACE, REQUIRED, pods, render, rendered
from tests.docs_pages.site import ROOT

PAGE = (ROOT / "docs/platforms.md").read_text()


def block(section: str) -> dict[str, Any]:
    """The only block of YAML in a section."""
    _, _, text = PAGE.partition(f"# {section}\n")
    (found,) = re.findall(r"(?ms)^```yaml\n(.*?)^```", re.split(r"\n#+ ", text)[0])
    document: dict[str, Any] = yaml.safe_load(found)
    return document


def test_the_quota_of_gke_allows_every_priority_class_of_the_system() -> None:
    quota = block("GKE")
    assert (quota["kind"], quota["metadata"]["namespace"]) == ("ResourceQuota", NAMESPACE)
    (scope,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    classes = {
        spec["priorityClassName"]
        for spec in pods(rendered("bundled-spire")).values()
        if "priorityClassName" in spec
    }
    assert set(scope["values"]) == {x for x in classes if x.startswith("system-")}
    assert set(quota["spec"]["hard"]) == {"pods"}


def test_values_for_selinux_are_for_all_pods_that_mount_the_node() -> None:
    values = block("SELinux")
    values["spire"]["mode"] = "bundled"
    for where, spec in pods(render({**REQUIRED, **values})).items():
        (first, *_) = spec["containers"]
        mounts = any("hostPath" in x for x in spec.get("volumes", ()))
        found = first["securityContext"].get("seLinuxOptions")
        assert found == ({"type": "spc_t"} if mounts else None), where
