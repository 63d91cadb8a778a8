"""Values that cannot work are refused before anything is installed: key, value, expectation."""

from typing import Any

import pytest

from agent.settings import AgentSettings
from controller.settings import ControllerSettings
from gpuwarden.settings.keys import keys_of
from tests.chart.rendering import CA, REQUIRED, RefusedError, render

EVALUATION = {"evaluation": {"enabled": True}}


def refused(values: dict[str, Any], **options: Any) -> str:
    with pytest.raises(RefusedError) as error:
        render({**REQUIRED, **values}, **options)
    return str(error.value)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"trustDomain": ""}, "trustDomain is empty, expected the SPIFFE trust domain"),
        ({"trustDomain": "Prod.acme.io"}, 'trustDomain: "Prod.acme.io", expected a trust domain'),
        ({"trustDomain": "example.org"}, 'trustDomain: "example.org" is an example\'s'),
        ({"trustDomain": "gpu.example.com"}, 'trustDomain: "gpu.example.com" is an example\'s'),
        ({"trustDomain": "lab.test"}, 'trustDomain: "lab.test" is an example\'s'),
        ({"clusterName": ""}, "clusterName is empty, expected a name for this cluster"),
        ({"clusterName": "a b"}, 'clusterName: "a b", expected letters, digits'),
        ({"clusterName": "example-cluster"}, 'clusterName: "example-cluster" is an example\'s'),
        (
            {**EVALUATION, "protection": {"enabled": True}},
            "protection.enabled: true, expected false with evaluation.enabled",
        ),
        (
            {**EVALUATION, "agentImages": ["a@sha256:0"]},
            "agentImages: given, expected [] with evaluation.enabled",
        ),
        (
            {"console": {"enabled": True}},
            "console.enabled: true, expected httpApi.enabled: true too",
        ),
        (
            {"networkPolicies": {"enabled": False, "egress": {"enabled": True}}},
            "networkPolicies.egress.enabled: true, expected networkPolicies.enabled: true too",
        ),
        (
            {"spire": {"serverAddress": ""}},
            "spire.serverAddress is empty, expected host:port of your SPIRE server",
        ),
        (
            {"spire": {"mode": "bundled", "serverAddress": "off"}},
            'spire.serverAddress: "off", expected another value with spire.mode: bundled',
        ),
        (
            {"certificates": {"mode": "given"}},
            "certificates.caBundle is empty, expected the PEM text",
        ),
        (
            {"certificates": {"mode": "given", "caBundle": "LS0tLS1CRUdJTg=="}},
            "certificates.caBundle: no PEM text, expected lines that begin with -----BEGIN",
        ),
        (
            {"webhooks": {"callerCertificate": True}},
            "webhooks.callerCertificate: true, expected false with certificates.mode: self-managed",
        ),
        (
            {"certificates": {"mode": "given", "caBundle": CA, "servePrevious": True}},
            "certificates.servePrevious: true, expected false with certificates.mode: given",
        ),
        (
            {"certificates": {"caBundle": CA}},
            "certificates.caBundle: given, expected empty with certificates.mode: self-managed",
        ),
        (
            {"webhooks": {"enabled": False}, "protection": {"enabled": True}},
            "protection.enabled: true, expected false with webhooks.enabled: false",
        ),
        (
            {"webhooks": {"enabled": False}, "mode": "env"},
            'mode: "env", expected plugin with webhooks.enabled: false',
        ),
        (
            {"webhooks": {"enabled": False}, "scheduling": {"mode": "affinity"}},
            'scheduling.mode: "affinity", expected extender with webhooks.enabled: false',
        ),
        (
            {"scheduling": {"mode": "affinity"}},
            "scheduler.enabled: true, expected false with scheduling.mode: affinity",
        ),
        (
            {"protection": {"enabled": True}, "policies": {"enabled": False}},
            "policies.enabled: false, expected true with protection.enabled",
        ),
        (
            {"agent": {"mig": True, "gpuAccess": "nri"}},
            'agent.gpuAccess: "nri", expected runtimeClass or privileged with agent.mig',
        ),
        ({"image": {"tag": "latest"}}, "Here they are imageRegistry, controller.image and agent"),
        ({"image": {"repository": "a/b"}}, "image.repository, image.tag: given, expected nothing"),
        (
            {"webhook": {"caBundle": "LS0tLS1CRUdJTg=="}},
            "webhook.caBundle: given, expected nothing with certificates.mode: self-managed",
        ),
        (
            {"webhook": {"caBundle": "no base64"}, "certificates": {"mode": "given"}},
            "certificates.caBundle: no PEM text",
        ),
        (
            {"webhook": {"failurePolicy": "Ignore"}},
            'webhook.failurePolicy: "Ignore", expected nothing',
        ),
        (
            {"webhooks": {"enabled": False}, "webhook": {"schedulerUrl": "http://agent:8080"}},
            "hints.schedulerUrl: given, expected nothing with webhooks.enabled: false",
        ),
        (
            {"hints": {"schedulerUrl": "agent:8080"}},
            'hints.schedulerUrl: "agent:8080", expected an http:// or https:// URL',
        ),
        (
            {"hints": {"schedulerUrl": "http://agent:8080", "caBundle": "x"}},
            "hints.caBundle: given, expected hints.schedulerUrl: https://… with it",
        ),
        (
            {"hints": {"schedulerUrl": "https://agent:8080", "caBundle": "x"}},
            "hints.caBundle: no PEM text",
        ),
        ({"resources": {"limits": {"cpu": "1"}}}, "here it is controller.resources, scheduler."),
        ({"nodeSelector": {"a": "b"}}, "nodeSelector: given, expected nothing"),
        ({"tolerations": [{}]}, "tolerations: given, expected nothing"),
        ({"affinity": {"a": {}}}, "or agent.affinity"),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, Any], told: str) -> None:
    assert told in refused(values)


SECRET = "hunter2"  # noqa: S105 - of nobody
BY_SECRET = "into the Secret that export.existingSecret names"  # noqa: S105 - a sentence
NONE = "given, expected nothing: no secret belongs into values."
HEADERS = "GPUWARDEN_TELEMETRY_OTLP_HEADERS"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            {"export": {"settings": {"postgres": {"password": SECRET}}}},
            f"export.settings.postgres.password: {NONE} Put it as POSTGRES_PASSWORD {BY_SECRET}",
        ),
        (
            {"export": {"settings": {"http": {"authToken": SECRET}}}},
            f"export.settings.http.authToken: {NONE} Put it as HTTP_AUTH_TOKEN {BY_SECRET}",
        ),
        (
            {"export": {"settings": {"s3": {"secretAccessKey": SECRET}}}},
            "export.settings.s3.secretAccessKey: given, expected nothing",
        ),
        (
            {"controller": {"config": {"export": {"postgres": {"password": SECRET}}}}},
            f"Put it as POSTGRES_PASSWORD {BY_SECRET}",
        ),
        (
            {"controller": {"config": {"telemetry": {"otlpHeaders": f"a={SECRET}"}}}},
            f"telemetry.otlpHeaders: {NONE} Give {HEADERS} by valueFrom.secretKeyRef in contr",
        ),
        (
            {"controller": {"config": {"hints": {"authToken": SECRET}}}},
            f"hints.authToken: {NONE} Give GPUWARDEN_HINTS_AUTH_TOKEN by valueFrom.secretKeyRef in",
        ),
        (
            {"hints": {"scorer": {"config": {"databasePassword": SECRET}}}},
            f"{NONE} Give GPUWARDEN_DATABASE_PASSWORD by valueFrom.secretKeyRef in hints.scorer.ex",
        ),
        (
            {"controller": {"extraEnv": [{"name": "POSTGRES_PASSWORD", "value": SECRET}]}},
            "extraEnv[0].value: given for POSTGRES_PASSWORD, expected valueFrom.secretKeyRef",
        ),
        (
            {"agent": {"extraEnv": [{"name": "A"}, {"name": "B_TOKEN", "value": SECRET}]}},
            "agent.extraEnv[1].value: given for B_TOKEN",
        ),
    ],
)
def test_secrets_in_values_are_refused_and_not_shown(values: dict[str, Any], told: str) -> None:
    text = refused(values)
    assert told in text
    assert SECRET not in text


@pytest.mark.parametrize(
    ("group", "settings"), [("controller", ControllerSettings), ("agent", AgentSettings)]
)
def test_every_setting_that_is_a_secret_is_refused(group: str, settings: type) -> None:
    secrets = [x for x in keys_of(settings) if x.spec.secret]
    assert secrets
    for key in secrets:
        given: Any = SECRET
        for part in reversed(key.path):
            given = {part: given}
        assert f"{'.'.join(key.path)}: given" in refused({group: {"config": given}})
        variable = {"name": key.env, "value": SECRET}
        assert f"given for {key.env}" in refused({group: {"extraEnv": [variable]}})


def test_secrets_by_reference_are_taken() -> None:
    by_key = {"secretKeyRef": {"name": "otlp", "key": "headers"}}
    variables = [
        {"name": HEADERS, "valueFrom": by_key},
        {"name": "AWS_WEB_IDENTITY_TOKEN_FILE", "value": "/var/run/token"},
    ]
    objects = render(
        {
            **REQUIRED,
            "export": {
                "exporters": ["postgres"],
                "settings": {"postgres": {"passwordFile": "/run/password", "password": ""}},
                "existingSecret": "gpuwarden-export",
            },
            "controller": {"extraEnv": variables, "config": {"listen": {"accessTokens": "[::]:1"}}},
        }
    )
    (controller,) = (x for x in objects if x["kind"] == "StatefulSet")
    (container,) = controller["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "gpuwarden-export"}}]
    assert variables[0] in container["env"]


@pytest.mark.parametrize("namespace", ["default", "kube-system"])
def test_a_namespace_that_is_not_gpuwardens_own_is_refused(namespace: str) -> None:
    told = refused({}, namespace=namespace)
    assert f'namespace: "{namespace}", expected one of gpuwarden\'s own' in told


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"trustDomian": "a.io"}, "'trustDomian' not allowed"),
        ({"agent": {"gpuAcess": "nri"}}, "'gpuAcess' not allowed"),
        ({"spire": {"bundled": {"server": {"imgae": {}}}}}, "'imgae' not allowed"),
        ({"agent": {"gpuAccess": "cdi"}}, "/agent/gpuAccess"),
        ({"mode": "dra"}, "/mode"),
        ({"enforcement": "warn"}, "/enforcement"),
        ({"spire": {"mode": "inside"}}, "/spire/mode"),
        ({"certificates": {"mode": "acme"}}, "/certificates/mode"),
        ({"scheduling": {"mode": "none"}}, "/scheduling/mode"),
        ({"imagePullPolicy": "Sometimes"}, "/imagePullPolicy"),
        ({"controller": {"replicas": 0}}, "/controller/replicas"),
        ({"controller": {"replicas": "two"}}, "/controller/replicas"),
        ({"scheduler": {"names": []}}, "/scheduler/names"),
        ({"webhooks": {"enabled": "yes"}}, "/webhooks/enabled"),
    ],
)
def test_the_schema_refuses_unknown_keys_and_wrong_kinds(values: dict[str, Any], told: str) -> None:
    assert told in refused(values)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"spire": {"namespaces": None}}, "at '/spire': missing property 'namespaces'"),
        ({"networkPolicies": None}, "missing property 'networkPolicies'"),
    ],
)
def test_values_of_an_older_chart_are_refused_by_name(values: dict[str, Any], told: str) -> None:
    """`helm upgrade --reuse-values` takes the older chart's defaults, which lack what is new."""
    assert told in refused(values)


def test_an_older_kubernetes_is_refused() -> None:
    assert "chart requires kubeVersion: >=1.33.0-0" in refused({}, kubernetes="1.32.9")


@pytest.mark.parametrize("values", [{"trustDomain": "example.org"}, {"clusterName": "example"}])
def test_an_evaluation_takes_examples(values: dict[str, Any]) -> None:
    assert render({**REQUIRED, **EVALUATION, **values})
