"""Files of examples/values: what each renders to, also with the values that are comments."""

import re
from typing import Any

import pytest
import yaml

from tests.chart.rendering import KUBERNETES, REQUIRED, notes, objects, one, pods, render
from tests.chart.schemas import faults
from tests.docs_pages.site import ROOT

FOLDER = ROOT / "examples/values"
FILES = sorted(x.name for x in FOLDER.glob("*.yaml"))
SPIRE_API = ("spire.spiffe.io/v1alpha1",)
CLASS = "  - spire.className is empty"
OPTIONAL = re.compile(r"^( *)#(?=[a-z])", re.MULTILINE)
"""A value that the reader may switch on: no blank behind the sign."""


def example(name: str, *, is_whole: bool = False) -> dict[str, Any]:
    text = (FOLDER / name).read_text()
    found: dict[str, Any] = yaml.safe_load(OPTIONAL.sub(r"\1", text) if is_whole else text)
    return found


@pytest.mark.parametrize("kubernetes", KUBERNETES)
@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_example_is_valid_for_the_api(name: str, is_whole: bool, kubernetes: str) -> None:
    values = {**REQUIRED, **example(name, is_whole=is_whole)}
    found = render(values, kubernetes=f"{kubernetes}.2", apis=SPIRE_API)
    assert faults(found, kubernetes) == []


def test_kubeadm_with_the_gpu_operator() -> None:
    values = example("kubeadm-gpu-operator.yaml")
    found = render(values)
    assert one(found, "StatefulSet", "gpuwarden-spire-server")
    webhooks = one(found, "MutatingWebhookConfiguration", "gpuwarden-pods")["webhooks"]
    for webhook in webhooks:
        assert "gpu-operator" in webhook["namespaceSelector"]["matchExpressions"][1]["values"]
    assert pods(found)["DaemonSet/gpuwarden-agent"]["runtimeClassName"] == "nvidia"
    assert CLASS not in notes(values, SPIRE_API)


def test_eks_with_spire_of_helm_charts_hardened() -> None:
    values = example("eks-spire.yaml")
    found = render(values, apis=SPIRE_API)
    entries = objects(found, "ClusterSPIFFEID")
    assert {x["spec"]["className"] for x in entries} == {"spire-mgmt-spire"}
    assert len(entries) == 2
    assert "runtimeClassName" not in pods(found)["DaemonSet/gpuwarden-agent"]
    (claim,) = one(found, "StatefulSet", "gpuwarden-controller")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "gp3"
    assert CLASS not in notes(values, SPIRE_API)


def test_optional_values_are_found() -> None:
    for name in ("eks-spire.yaml", "kubeadm-gpu-operator.yaml"):
        more = example(name, is_whole=True)
        assert more["networkPolicies"]["apiServerCidrs"]
        assert "networkPolicies" not in example(name)
