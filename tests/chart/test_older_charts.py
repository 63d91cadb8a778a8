"""docs/migrate.md: the installation lines and files of projects whose place gpuwarden takes."""

import base64
from collections.abc import Mapping

import pytest

from tests.builders.console_commands import typed, words
from tests.chart.rendering import CA, RefusedError, objects, one, pods, typed_line
from tests.docs_pages.site import ROOT

PAGE = "docs/migrate.md"
REGISTRY = "registry.acme.io/gpuwarden"
IN_THE_PLACE = {
    "Delta-G": (
        "cmd/extender",
        "pkg/extender",
        "pkg/spire",
        "pkg/logging",
        "deploy/rbac.yaml",
        "extender-deployment.yaml",
        "extender-service.yaml",
        "deploy/scheduler-config.yaml",
        "examples/secure-gpu-pod.yaml",
        "docs/ARCHITECTURE.md",
        "make build",
        "./bin/extender",
        "make docker-build",
        "port 8000",
    ),
    "gpu-scheduler": (
        "generate-webhook-certs.sh",
        "certs/webhook-tls-secret.yaml",
        "gpu-scheduler-check",
        "docs/TROUBLESHOOTING.md",
        "port 8080",
        "port 443, to 8443",
        "image.repository",
        "image.tag",
        "webhook.caBundle",
    ),
    "gpuid": (
        "deployment/overlays/prod",
        "deployment/overlays/test",
        "deployments/gpuid/overlays/",
        "deployment/policy/slsa-attestation.yaml",
        "smifaker",
        "port 8080",
    ),
    "radix": (
        "charts/scheduler-webhook",
        "agents/scheduler-webhook",
        "uvicorn app.webhook:app",
        "webhook.priorityBuckets",
        "webhook.rules",
        "webhook.namespaceSelector",
        "tls.certManager",
        "tls.existingSecret",
        "port 8443",
        "port 8080",
    ),
    "gpu-device-assigner": (
        "nix run .#deployContainers",
        "--access-token",
        "--ca-certificate",
        "--kubernetes-url",
        "--log-level",
        "--port",
        "--ui-port",
        "ports 443 and 8080",
    ),
}
"""Files, commands, values and ports of their READMEs that are not here, by the table's heading."""


def rows(project: str) -> Mapping[str, str]:
    """What they have, and what gpuwarden has instead."""
    _, table = (ROOT / PAGE).read_text().split(f"| {project} | gpuwarden |\n|---|---|\n")
    cells = [x.strip("| ").split(" | ") for x in table.split("\n\n")[0].splitlines()]
    return {before: after for before, after in cells if after}


@pytest.mark.parametrize(
    ("project", "name"), [(project, x) for project, names in IN_THE_PLACE.items() for x in names]
)
def test_the_page_says_what_takes_the_place_of(project: str, name: str) -> None:
    assert [before for before in rows(project) if name in before]


MAP_SCHEDULER = (
    "webhook.enabled=true",
    f"webhook.caBundle={base64.b64encode(CA.encode()).decode()}",
    "image.repository=registry.gitlab.com/evgenii19/gpu-scheduler/gpu-scheduler",
    "image.tag=latest",
    "image.pullPolicy=Always",
)
"""What gpu-scheduler's README sets."""


def line_for(release: str) -> list[str]:
    """The words of the page's line after `helm install`."""
    (command,) = (x for x in typed(PAGE, "helm install") if x.startswith(release))
    return words(command)


def older(*left_out: str) -> list[str]:
    """The options of gpu-scheduler's README, but these."""
    return [f"--set={x}" for x in MAP_SCHEDULER if not x.startswith(left_out)]


def test_the_line_of_gpu_scheduler_is_refused_with_what_replaces_each_value() -> None:
    line = line_for("gpu-scheduler")
    with pytest.raises(RefusedError, match=r"Here they are imageRegistry, controller\.image"):
        typed_line(line, *older())
    images = ("image.repository", "image.tag")
    with pytest.raises(RefusedError, match=r"webhook\.caBundle: given, expected nothing"):
        typed_line(line, *older(*images))
    assert typed_line(line, *older(*images), "--set=certificates.mode=given")
    assert typed_line(line, *older(*images, "webhook.caBundle"))


def test_the_line_of_the_page_for_gpu_scheduler() -> None:
    """Its values by their old names; pods that name its scheduler find it."""
    line = line_for("gpu-scheduler")
    set_there = {x.partition("=")[0] for x in MAP_SCHEDULER}
    old = {x.partition("=")[0] for x in line if x.partition("=")[0] in set_there}
    assert old == {"webhook.enabled", "image.pullPolicy"}
    found = typed_line(line)
    assert objects(found, "MutatingWebhookConfiguration")
    (controller,) = pods(found)["StatefulSet/gpuwarden-controller"]["containers"]
    assert controller["image"].startswith(f"{REGISTRY}/gpuwarden-controller:")
    assert controller["imagePullPolicy"] == "Always"
    settings = one(found, "ConfigMap", "gpuwarden-scheduler-configuration")["data"]
    assert any("schedulerName: gpu-scheduler" in x for x in settings.values())


def test_the_line_of_the_page_for_the_scheduler_webhook() -> None:
    line = line_for("scheduler-webhook")
    assert "webhook.schedulerUrl=http://scheduler-agent:8080" in line
    found = typed_line(line)
    (namespace,) = {x["metadata"].get("namespace") for x in objects(found, "StatefulSet")}
    assert namespace == "scheduler"
    settings = one(found, "ConfigMap", "gpuwarden-controller-config")["data"]["controller.yaml"]
    assert "http://scheduler-agent:8080" in settings
