"""The overlays as they would be applied: complete, and without anything left to make by hand."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.ledger.reservation_id import ReservationKey
from controller.policies.file import decode_policy
from gpuwarden.settings.controller import Protection
from gpuwarden.settings.loader import CONTROLLER, Inputs, load
from tests.chart.manifests import main
from tests.chart.schemas import faults
from tests.deploy.manifests import KUSTOMIZE, Object, container_of, one, pod_of, rendered

OVERLAYS = KUSTOMIZE / "overlays"
MADE_BY_THE_LEADER = {"gpuwarden-scheduler-client-tls"}
MADE_BY_PEOPLE = {"dev": set[str](), "prod": {"gpuwarden-reservation-keys"}}
NAMES = pytest.mark.parametrize("name", MADE_BY_PEOPLE)


def config(found: list[Object], start: str) -> Object:
    (only,) = [
        x for x in found if x["kind"] == "ConfigMap" and x["metadata"]["name"].startswith(start)
    ]
    return only


def settings(found: list[Object]) -> Any:
    container = container_of(one(found, "StatefulSet", "gpuwarden-controller"))
    (text,) = config(found, "gpuwarden-controller-config")["data"].values()
    known = {x["name"]: x.get("value", "c-0") for x in container["env"]}
    return load(CONTROLLER, Inputs((), known, ("controller.yaml", text.encode()))).settings


@NAMES
def test_what_is_applied_is_valid(name: str) -> None:
    assert faults(rendered(OVERLAYS / name), "1.35") == []


@NAMES
def test_every_secret_is_there_or_made_by_somebody_named(name: str) -> None:
    found = rendered(OVERLAYS / name)
    made = {x["metadata"]["name"] for x in found if x["kind"] == "Secret"}
    workloads = [x for x in found if x["kind"] in {"DaemonSet", "StatefulSet", "Deployment"}]
    mounted = {
        x["secret"]["secretName"] for y in workloads for x in pod_of(y)["volumes"] if "secret" in x
    }
    assert mounted == made | MADE_BY_THE_LEADER | MADE_BY_PEOPLE[name]


@NAMES
def test_certificates_are_the_controllers_own(name: str) -> None:
    """Each listener's files are in the folder that a replica keeps; nobody else writes a bundle."""
    found = rendered(OVERLAYS / name)
    loaded = settings(found)
    own = loaded.certificates.self_managed
    assert own.enabled
    for listener in ("extender", "admission", "access"):
        tls = getattr(loaded, listener).tls
        assert (tls.cert, tls.key) == (
            own.folder / listener / "tls.crt",
            own.folder / listener / "tls.key",
        )
    assert loaded.extender.tls.client_ca == own.folder / "extender" / "ca.crt"
    assert loaded.access.tls.ca == own.folder / "access" / "ca.crt"
    assert loaded.admission.tls.client_ca is None
    mounts = container_of(one(found, "StatefulSet", "gpuwarden-controller"))["volumeMounts"]
    places = [Path(x["mountPath"]) for x in mounts if not x.get("readOnly")]
    assert any(own.folder.is_relative_to(x) for x in places)
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for x in found:
            assert x["kind"] != kind or "annotations" not in x["metadata"]


def test_prod_is_protected_and_names_its_images_by_digest() -> None:
    found = rendered(OVERLAYS / "prod")
    assert settings(found).protection is Protection.CLUSTER
    assert one(found, "ValidatingAdmissionPolicyBinding", "gpuwarden-protection")
    image = container_of(one(found, "DaemonSet", "gpuwarden-agent"))["image"]
    policy = decode_policy(
        one(found, "ConfigMap", "gpuwarden-policy")["data"]["policy.yaml"].encode()
    )
    assert policy.attestors is not None
    assert policy.attestors["k8s_psat"].images == frozenset([image.partition("@")[2]])
    assert "@sha256:" in image


def test_devs_keys_say_that_everybody_knows_them() -> None:
    (file,) = (OVERLAYS / "dev").glob("known*")
    assert file.name == "known-to-everybody"
    (line,) = file.read_text().splitlines()
    name, digits = line.split()
    assert name == "dev"
    assert ReservationKey(name, bytes.fromhex(digits)).key_id == "dev"


def test_manifests_are_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "build" / "install.yaml"
    assert main([str(file)]) == 0
    assert [*yaml.safe_load_all(file.read_text())] == rendered(OVERLAYS / "dev")
    assert capsys.readouterr().out == f"{file}\n"


def test_an_overlay_that_cannot_be_rendered_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: [absent.yaml]\n")
    file = tmp_path / "install.yaml"
    assert main([str(file), "--overlay", str(tmp_path)]) == 1
    assert "absent.yaml" in capsys.readouterr().err
    assert not file.exists()
