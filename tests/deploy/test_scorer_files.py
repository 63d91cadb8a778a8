"""gpuwarden-score by chart and component: same objects, no rights, reached by controllers only."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwarden.settings.controller import HintSettings
from gpuwarden.settings.loader import CONTROLLER, SCORE, Inputs, load
from tests.chart.comparing import Key, differences, key, plain
from tests.chart.pod_security import violations
from tests.chart.rendering import NAMESPACE, REQUIRED, Object, RefusedError, notes, one, render
from tests.chart.schemas import faults
from tests.deploy.manifests import BASE, KUSTOMIZE, container_of, pod_of, rendered

SCORER = "StatefulSet/gpuwarden-score"
URL = f"http://gpuwarden-score.{NAMESPACE}.svc:8080"
VALUES: dict[str, Any] = {**REQUIRED, "hints": {"scorer": {"enabled": True}}}
FILES = "ConfigMap/gpuwarden-score-config"


@pytest.fixture(scope="module")
def chart() -> dict[Key, Object]:
    return {key(x): plain(x) for x in render(VALUES)}


@pytest.fixture(scope="module")
def kustomize(tmp_path_factory: pytest.TempPathFactory) -> dict[Key, Object]:
    return kustomized(tmp_path_factory.mktemp("scorer"))


def kustomized(folder: Path, *more: str) -> dict[Key, Object]:
    above = Path(*[".."] * (len(folder.resolve().parts) - 1))
    components = [KUSTOMIZE / "components" / x for x in ("admission", "hints", "scorer", *more)]
    parts = {
        "resources": [str(above / BASE.relative_to("/"))],
        "components": [str(above / x.relative_to("/")) for x in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(parts))
    return {key(x): plain(x) for x in rendered(folder)}


def of_scorer(found: dict[Key, Object]) -> set[Key]:
    return {x for x in found if x.endswith(("/gpuwarden-score", "/gpuwarden-score-config"))}


def test_both_run_the_same(chart: dict[Key, Object], kustomize: dict[Key, Object]) -> None:
    kinds = {"ServiceAccount", "StatefulSet", "Service", "NetworkPolicy", "ConfigMap"}
    assert {x.partition("/")[0] for x in of_scorer(chart)} == kinds
    are_the_same(chart, kustomize)


def are_the_same(chart: dict[Key, Object], kustomize: dict[Key, Object]) -> None:
    assert of_scorer(chart) == of_scorer(kustomize)
    image = "/spec/template/spec/containers/score/image"
    found = {
        path
        for name in of_scorer(chart) - {FILES}
        for path in differences(chart[name], kustomize[name])
    }
    assert found == {image}
    texts = [yaml.safe_load(x[FILES]["data"]["score.yaml"]) for x in (chart, kustomize)]
    assert texts[0] == texts[1]


def test_its_objects_are_valid_and_its_pod_is_restricted() -> None:
    found = render(VALUES)
    assert faults(found, "1.35") == []
    assert list(violations(pod_of(one(found, "StatefulSet", "gpuwarden-score")))) == []


def test_it_has_the_controllers_image_and_no_token(chart: dict[Key, Object]) -> None:
    pod = pod_of(chart[SCORER])
    assert pod["automountServiceAccountToken"] is False
    account = chart["ServiceAccount/gpuwarden-score"]
    assert account["automountServiceAccountToken"] is False
    image = container_of(chart["StatefulSet/gpuwarden-controller"])["image"]
    assert container_of(chart[SCORER])["image"] == image
    bound = [x for x in chart.values() if "gpuwarden-score" in str(x.get("subjects"))]
    assert bound == []


def test_it_listens_where_the_service_leads_and_writes_where_the_volume_is(
    chart: dict[Key, Object],
) -> None:
    text = chart[FILES]["data"]["score.yaml"]
    settings = load(SCORE, Inputs((), {}, ("score.yaml", text.encode()))).settings
    container = container_of(chart[SCORER])
    assert settings.ops is not None
    ports = {x["name"]: x["containerPort"] for x in container["ports"]}
    assert ports == {"http": settings.listen.port, "ops": settings.ops.port}
    assert (settings.listen.host, settings.ops.host) == ("", "")
    served = chart["Service/gpuwarden-score"]["spec"]["ports"]
    assert {x["targetPort"]: x["port"] for x in served} == {"http": 8080, "ops": 9090}
    mounts = {x["mountPath"]: x["name"] for x in container["volumeMounts"]}
    assert isinstance(settings.database, Path)
    assert mounts[str(settings.database.parent)] == "data"
    (claim,) = chart[SCORER]["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == "data"
    assert container["args"] == ["--config", "/etc/gpuwarden/score/score.yaml"]
    assert mounts["/etc/gpuwarden/score"] == "config"


def test_several_replicas_share_a_database_of_postgresql(tmp_path: Path) -> None:
    url = "postgresql://score@db.example.org:5432/score?sslmode=verify-full"
    secret = {"secretKeyRef": {"name": "gpuwarden-score-database", "key": "password"}}
    variable = {"name": "GPUWARDEN_DATABASE_PASSWORD", "valueFrom": secret}
    scorer = {
        "enabled": True,
        "replicas": 2,
        "persistence": {"enabled": False},
        "config": {"database": url},
        "extraEnv": [variable],
    }
    found = render({**REQUIRED, "hints": {"scorer": scorer}})
    assert faults(found, "1.35") == []
    are_the_same({key(x): plain(x) for x in found}, kustomized(tmp_path, "scorer-replicas"))
    served = one(found, "StatefulSet", "gpuwarden-score")
    assert served["spec"]["replicas"] == 2
    assert container_of(served)["env"] == [variable]
    text = one(found, "ConfigMap", "gpuwarden-score-config")["data"]["score.yaml"]
    given = {"GPUWARDEN_DATABASE_PASSWORD": "p"}
    settings = load(SCORE, Inputs((), given, ("score.yaml", text.encode()))).settings
    assert str(settings.database) == url


def test_only_the_controllers_teach_it_and_who_monitors_them_sees_it(
    chart: dict[Key, Object],
) -> None:
    spec = chart["NetworkPolicy/gpuwarden-score"]["spec"]
    assert spec["podSelector"] == chart[SCORER]["spec"]["selector"]
    teaching, seeing = spec["ingress"]
    (source,) = teaching["from"]
    assert source == {"podSelector": chart["StatefulSet/gpuwarden-controller"]["spec"]["selector"]}
    assert teaching["ports"] == [{"port": "http"}]
    assert seeing["ports"] == [{"port": "ops"}]
    assert seeing in chart["NetworkPolicy/gpuwarden-controller"]["spec"]["ingress"]


def test_others_reach_it_where_they_are_named() -> None:
    gangs = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gangs"}}}
    scorer = {"enabled": True, "clients": [gangs]}
    found = one(
        render({**REQUIRED, "hints": {"scorer": scorer}}), "NetworkPolicy", "gpuwarden-score"
    )
    teaching, _ = found["spec"]["ingress"]
    assert teaching["from"][1:] == [gangs]


def test_the_controllers_ask_it(chart: dict[Key, Object], kustomize: dict[Key, Object]) -> None:
    for found in (chart, kustomize):
        text = found["ConfigMap/gpuwarden-controller-config"]["data"]["controller.yaml"]
        given = {
            x["name"]: x.get("value", "here")
            for x in container_of(found["StatefulSet/gpuwarden-controller"])["env"]
        }
        loaded = load(CONTROLLER, Inputs((), given, ("f", text.encode()))).settings
        assert loaded.hints.scheduler_url == URL
        assert "ClusterRole/gpuwarden-controller-hints" in found
        webhooks = found["MutatingWebhookConfiguration/gpuwarden-pods"]["webhooks"]
        assert "hints.pods.gpuwarden.dev" in {x["name"] for x in webhooks}


def test_a_trial_keeps_nothing() -> None:
    scorer = {"enabled": True, "persistence": {"enabled": False}}
    found = one(render({**REQUIRED, "hints": {"scorer": scorer}}), "StatefulSet", "gpuwarden-score")
    assert "volumeClaimTemplates" not in found["spec"]
    assert {"name": "data", "emptyDir": {}} in pod_of(found)["volumes"]


@pytest.mark.parametrize(
    ("hints", "told"),
    [
        (
            {"schedulerUrl": "http://other:8080"},
            r'hints.schedulerUrl: "http://other:8080", expected',
        ),
        (
            {"config": {"log": {"password": "x"}}},
            r"valueFrom.secretKeyRef in hints.scorer.extraEnv",
        ),
        (
            {"replicas": 2},
            r"hints.scorer.replicas: 2, expected hints.scorer.config.database: postgresql://",
        ),
        (
            {"replicas": 2, "config": {"database": "/var/lib/gpuwarden/score.db"}},
            r"hints.scorer.replicas: 2, expected hints.scorer.config.database: postgresql://",
        ),
    ],
)
def test_what_cannot_be_is_refused(hints: dict[str, Any], told: str) -> None:
    scorer = {x: hints[x] for x in ("config", "replicas") if x in hints}
    others = {x: value for x, value in hints.items() if x not in scorer}
    values = {**REQUIRED, "hints": {**others, "scorer": {"enabled": True, **scorer}}}
    with pytest.raises(RefusedError, match=told):
        render(values)


def test_without_webhooks_nobody_would_ask_it() -> None:
    with pytest.raises(RefusedError, match=r"hints.schedulerUrl: given, expected nothing"):
        render({**VALUES, "webhooks": {"enabled": False}})


@pytest.mark.parametrize("policy", ["PreemptLowerPriority", "Never"])
def test_the_priority_classes_are_those_of_the_default_buckets(policy: str) -> None:
    classes = {"create": True, "preemptionPolicy": policy}
    found = [
        x
        for x in render({**REQUIRED, "hints": {"priorityClasses": classes}})
        if x["kind"] == "PriorityClass"
    ]
    assert {x["preemptionPolicy"] for x in found} == {policy}
    by_value = sorted(found, key=lambda x: -int(x["value"]))
    buckets = sorted(HintSettings().priority_buckets, key=lambda x: -x.least)
    assert [x["metadata"]["name"] for x in by_value] == [x.priority_class for x in buckets]
    assert not any(x["globalDefault"] for x in found)


def test_who_may_teach_is_told_where_no_policy_keeps_others_out() -> None:
    told = "hints.scorer: who reaches its port can teach it"
    assert told in notes({**VALUES, "networkPolicies": {"enabled": False}})
    assert told not in notes(VALUES)
