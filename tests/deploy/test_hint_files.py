"""The component and the chart for hints: webhooks that block nobody, one right, settings."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.admission.hints.webhook import HINTS, RADIX_HINTS
from controller.kube.api.resources import HINT_CALLS
from gpuwarden.settings.loader import CONTROLLER, Inputs, load
from tests.chart.rendering import NAMESPACE, REQUIRED, notes, objects, one, render
from tests.chart.schemas import faults
from tests.deploy.manifests import BASE, KUSTOMIZE, rendered

ROLE = "gpuwarden-controller-hints"
URL = "http://scheduler-agent:8080"
VALUES: dict[str, Any] = {**REQUIRED, "hints": {"schedulerUrl": URL}}
OURS, SEEDS = "hints.pods.gpuwarden.dev", "radix-hints.pods.gpuwarden.dev"
Object = dict[str, Any]


@pytest.fixture(scope="module")
def chart() -> list[Object]:
    return render(VALUES)


@pytest.fixture(scope="module")
def kustomize(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    folder = tmp_path_factory.mktemp("hints")
    above = Path(*[".."] * (len(folder.resolve().parts) - 1))
    components = [KUSTOMIZE / "components" / x for x in ("admission", "hints")]
    parts = {
        "resources": [str(above / BASE.relative_to("/"))],
        "components": [str(above / x.relative_to("/")) for x in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    return rendered(folder)


def webhooks(found: list[Object]) -> dict[str, Object]:
    """By name, without what tells the API server whom to believe."""
    configuration = one(found, "MutatingWebhookConfiguration", "gpuwarden-pods")
    for each in configuration["webhooks"]:
        each["clientConfig"].pop("caBundle", None)
    return {x["name"]: x for x in configuration["webhooks"]}


def test_both_register_the_same_after_all_others(
    chart: list[Object], kustomize: list[Object]
) -> None:
    assert faults(chart, "1.35") == []
    ours, theirs = webhooks(chart), webhooks(kustomize)
    assert {x: ours[x] for x in (OURS, SEEDS)} == {x: theirs[x] for x in (OURS, SEEDS)}
    first = ["enforced.pods.gpuwarden.dev", "asking.pods.gpuwarden.dev"]
    assert list(ours) == list(theirs) == [*first, OURS, SEEDS]


@pytest.mark.parametrize("values", [VALUES, {**VALUES, "enforcement": "report"}])
def test_hints_are_ignored_where_they_fail_and_the_others_are_not(values: Object) -> None:
    found = webhooks(render(values))
    policies = {x: each["failurePolicy"] for x, each in found.items()}
    enforced = "Ignore" if "enforcement" in values else "Fail"
    assert [policies.pop(x) for x in (OURS, SEEDS)] == ["Ignore"] * 2
    assert set(policies.values()) == {enforced}
    for name, path in ((OURS, HINTS), (SEEDS, RADIX_HINTS)):
        assert found[name]["clientConfig"]["service"]["path"] == path
        assert found[name]["reinvocationPolicy"] == "Never"
        assert found[name]["sideEffects"] == "NoneOnDryRun"
        rules = {(*x["apiGroups"], *x["operations"], *x["resources"]) for x in found[name]["rules"]}
        assert rules == {("", "CREATE", "pods"), ("batch", "CREATE", "jobs")}


@pytest.mark.parametrize(
    ("labels", "asked"),
    [
        ({}, []),
        ({"gpuwarden.dev/hints": "true"}, [OURS]),
        ({"scheduler.radix.ai/enabled": "true"}, [SEEDS]),
        ({"scheduler.radix.ai/enabled": "true", "gpuwarden.dev/hints": "true"}, [OURS]),
        ({"scheduler.radix.ai/enabled": "true", "gpuwarden.dev/hints": "false"}, []),
        ({"scheduler.radix.ai/enabled": "yes"}, []),
        ({"gpuwarden.dev/hints": "true", "kubernetes.io/metadata.name": "kube-system"}, []),
        ({"gpuwarden.dev/hints": "true", "kubernetes.io/metadata.name": NAMESPACE}, []),
    ],
)
def test_a_namespace_opts_in_by_either_label_and_is_asked_about_once(
    chart: list[Object], labels: dict[str, str], asked: list[str]
) -> None:
    found = webhooks(chart)
    assert [x for x in (OURS, SEEDS) if _selects(found[x], labels)] == asked


def _selects(webhook: Object, labels: dict[str, str]) -> bool:
    return all(
        (labels.get(x["key"]) in x["values"]) is (x["operator"] == "In")
        for x in webhook["namespaceSelector"]["matchExpressions"]
    )


def test_both_grant_what_hints_ask_and_nothing_else(
    chart: list[Object], kustomize: list[Object]
) -> None:
    wanted = {(x.verb.value, x.resource.group, x.rbac_name) for x in HINT_CALLS}
    for found in (chart, kustomize):
        granted = {
            (verb, group, resource)
            for rule in one(found, "ClusterRole", ROLE)["rules"]
            for verb in rule["verbs"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }
        assert granted == wanted
        (subject,) = one(found, "ClusterRoleBinding", ROLE)["subjects"]
        assert (subject["kind"], subject["name"]) == ("ServiceAccount", "gpuwarden-controller")


@pytest.mark.parametrize(("section", "observe"), [("hints", False), ("webhook", True)])
def test_the_controller_is_told_by_the_new_name_and_the_old(section: str, *, observe: bool) -> None:
    values = {**REQUIRED, section: {"schedulerUrl": URL}}
    if not observe:
        values[section] |= {"observe": False}
    found = render(values)
    text = one(found, "ConfigMap", "gpuwarden-controller-config")["data"]["controller.yaml"]
    environment = {"POD_NAME": "p", "POD_NAMESPACE": "n"}
    loaded = load(CONTROLLER, Inputs((), environment, ("f", text.encode()))).settings
    assert (loaded.hints.scheduler_url, loaded.hints.observe) == (URL, observe)
    assert list(webhooks(found))[2:] == [OURS, SEEDS]
    warning = "webhook.schedulerUrl: the old name of hints.schedulerUrl"
    assert (warning in notes(values)) is (section == "webhook")


def test_the_controller_is_given_the_authorities_of_a_scorer() -> None:
    pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----"
    hints = {"schedulerUrl": "https://scheduler-agent:8443", "caBundle": pem}
    files = one(render({**REQUIRED, "hints": hints}), "ConfigMap", "gpuwarden-controller-config")
    text = files["data"]["controller.yaml"]
    environment = {"POD_NAME": "p", "POD_NAMESPACE": "n"}
    loaded = load(CONTROLLER, Inputs((), environment, ("f", text.encode()))).settings
    assert loaded.hints.ca == Path("/etc/gpuwarden/config/scorer-ca.pem")
    assert files["data"]["scorer-ca.pem"].strip() == pem


def test_without_a_scorer_the_chart_has_nothing_of_it() -> None:
    found = render(REQUIRED)
    assert "hints" not in one(found, "ConfigMap", "gpuwarden-controller-config")["data"]
    assert [x for x in found if x["metadata"]["name"] == ROLE] == []
    assert len(webhooks(found)) == 2
    assert "hints" not in str(objects(found, "MutatingWebhookConfiguration"))
