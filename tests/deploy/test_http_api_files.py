"""The component that opens the HTTP API: what kustomize makes of it is what the settings want."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.kube.api.resources import TOKEN_REVIEWS, Verb
from gpuwarden.settings.loader import CONTROLLER, Inputs, load
from tests.deploy.manifests import BASE, KUSTOMIZE, container_of, objects, one, rendered
from tests.deploy.test_admission_files import ADMISSION, overlay

HTTP_API = KUSTOMIZE / "components" / "http-api"
EXTENDER = KUSTOMIZE / "components" / "extender"
CONSOLE = KUSTOMIZE / "components" / "console"
NAME = "gpuwarden-api"


def settings_of(container: dict[str, Any]) -> Any:
    known = {x["name"]: x["value"] for x in container["env"] if "value" in x}
    file = BASE / "config" / "controller.yaml"
    return load(CONTROLLER, Inputs((), known, (str(file), file.read_bytes()))).settings


@pytest.mark.parametrize("others", [(), (ADMISSION, EXTENDER)])
def test_the_component_opens_the_api_over_tls(tmp_path: Path, others: tuple[Path, ...]) -> None:
    made = rendered(overlay(tmp_path, *others, HTTP_API))
    container = container_of(one(made, "StatefulSet", "gpuwarden-controller"))
    settings = settings_of(container)
    mounts = {x["mountPath"]: x["name"] for x in container["volumeMounts"]}
    for path in (settings.api.tls.cert, settings.api.tls.key):
        assert mounts[str(path.parent)] == "api"
    ports = {x["name"]: x["containerPort"] for x in container["ports"]}
    assert ports["api"] == settings.listen.api.port
    policy = one(made, "NetworkPolicy", "gpuwarden-controller")
    (rule,) = [x for x in policy["spec"]["ingress"] if {"port": "api"} in x["ports"]]
    labels = [x["namespaceSelector"]["matchLabels"] for x in rule["from"]]
    assert labels == [{"gpuwarden.dev/enforce": "true"}, {"gpuwarden.dev/clients": "true"}]
    service = one(made, "Service", NAME)
    assert [(x["port"], x["targetPort"]) for x in service["spec"]["ports"]] == [(443, "api")]
    assert "publishNotReadyAddresses" not in service["spec"]


def test_without_the_component_there_is_no_api() -> None:
    container = container_of(one(rendered(BASE), "StatefulSet", "gpuwarden-controller"))
    assert settings_of(container).api.tls.cert is None


def test_the_console_is_off_until_its_component_is_there(tmp_path: Path) -> None:
    for components, is_there in (((HTTP_API,), False), ((HTTP_API, CONSOLE), True)):
        folder = tmp_path / str(is_there)
        folder.mkdir()
        made = rendered(overlay(folder, *components))
        settings = settings_of(container_of(one(made, "StatefulSet", "gpuwarden-controller")))
        assert settings.console.enabled is is_there
        assert (settings.console.loopback, settings.console.proxies) == (False, ())


def test_the_certificate_has_the_services_names_and_secret() -> None:
    found = list(yaml.safe_load_all((HTTP_API / "certificates.yaml").read_text()))
    server = one(found, "Certificate", f"{NAME}-server")["spec"]
    assert server["dnsNames"][:3] == [
        NAME,
        f"{NAME}.gpuwarden-system",
        f"{NAME}.gpuwarden-system.svc",
    ]
    patch = yaml.safe_load((HTTP_API / "controller.yaml").read_text())
    (volume,) = patch["spec"]["template"]["spec"]["volumes"]
    assert volume["secret"]["secretName"] == server["secretName"]


def test_tokens_may_be_reviewed() -> None:
    roles = [x for x in objects() if x["kind"] == "ClusterRole"]
    rules = [rule for x in roles for rule in x["rules"]]
    wanted = {
        "apiGroups": [TOKEN_REVIEWS.group],
        "resources": [TOKEN_REVIEWS.plural],
        "verbs": [Verb.CREATE.value],
    }
    assert wanted in rules
