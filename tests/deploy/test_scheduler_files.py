"""The schedulers' configurations say what the extender needs, and fit the code and each other."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.web.extender.extender import Extender, ExtenderLimits
from controller.web.server import HEALTH_PATHS
from gpuwarden.settings.controller import ControllerSettings, SchedulingSettings
from gpuwarden.settings.values import Duration
from tests.fakes.placement import Measurements, Sink, World

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "scheduler"
NAMESPACE = "gpuwarden-system"
NAME = "gpuwarden-scheduler"
SERVICE = f"gpuwarden-extender.{NAMESPACE}.svc"
FILES = ("configuration.yaml", "cluster-scheduler.yaml")
WITHOUT = "no-preemption.yaml"


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def configuration(name: str) -> dict[str, Any]:
    (found,) = documents(name)
    return found


def only(name: str, kind: str) -> dict[str, Any]:
    (found,) = (x for x in documents(name) if x["kind"] == kind)
    return found


@pytest.mark.parametrize("file", FILES)
def test_what_decides_whether_managed_pods_are_safe(file: str) -> None:
    settings = configuration(file)
    (extender,) = settings["extenders"]
    assert settings["percentageOfNodesToScore"] == 100
    assert "percentageOfNodesToScore" not in settings["profiles"][0]
    assert extender["ignorable"] is False
    assert extender["nodeCacheCapable"] is True
    assert (extender["filterVerb"], extender["prioritizeVerb"]) == ("filter", "prioritize")
    assert extender["weight"] > 0
    assert extender["preemptVerb"] == "preempt"
    assert not any("plugins" in profile for profile in settings["profiles"])
    assert "bindVerb" not in extender


def test_a_scheduler_that_does_not_ask_about_evictions_evicts_nobody() -> None:
    """And is the dedicated one in all else."""
    settings, dedicated = configuration(WITHOUT), configuration("configuration.yaml")
    nothing_evicts = {"postFilter": {"disabled": [{"name": "DefaultPreemption"}]}}
    assert all(profile.pop("plugins") == nothing_evicts for profile in settings["profiles"])
    assert dedicated["extenders"][0].pop("preemptVerb")
    assert settings == dedicated


def test_the_verbs_are_paths_of_the_extender() -> None:
    (extender,) = configuration("configuration.yaml")["extenders"]
    served = Extender(
        World().verbs(), note=Sink().note, metrics=Measurements(), limits=ExtenderLimits()
    ).application()
    paths = {x.resource.canonical for x in served.router.routes() if x.resource is not None}
    verbs = {value for key, value in extender.items() if key.endswith("Verb")}
    assert {f"/{verb}" for verb in verbs} == paths - set(HEALTH_PATHS)


@pytest.mark.parametrize("file", FILES)
def test_both_ends_of_the_connection_are_proven(file: str) -> None:
    (extender,) = configuration(file)["extenders"]
    tls = extender["tlsConfig"]
    assert extender["enableHTTPS"] is True
    assert extender["urlPrefix"].startswith("https://")
    assert {"caFile", "certFile", "keyFile"} <= set(tls)
    assert not {"insecure", "keyData"} & set(tls)
    assert SERVICE in {tls.get("serverName"), extender["urlPrefix"].removeprefix("https://")}


@pytest.mark.parametrize("file", FILES)
def test_the_controller_gives_up_on_a_slow_body_before_the_scheduler_does(file: str) -> None:
    (extender,) = configuration(file)["extenders"]
    assert Duration.parse(extender["httpTimeout"]).seconds > ExtenderLimits().receive_s


def test_the_dedicated_one_asks_for_all_its_pods_and_the_cluster_s_own_for_gpu_pods() -> None:
    dedicated, clusters = (configuration(file) for file in FILES)
    named = tuple(x["schedulerName"] for x in dedicated["profiles"])
    assert named == SchedulingSettings().scheduler_names == ("gpuwarden", "gpu-scheduler")
    assert "managedResources" not in dedicated["extenders"][0]
    assert [x["schedulerName"] for x in clusters["profiles"]] == ["default-scheduler"]
    managed = clusters["extenders"][0]["managedResources"]
    defaults = ControllerSettings.__dataclass_fields__["managed_resources"].default
    assert tuple(x["name"] for x in managed) == defaults
    assert all(x["ignoredByScheduler"] is False for x in managed)


def test_the_scheduler_has_its_own_identity_with_the_roles_of_kubernetes_own() -> None:
    found = documents("rbac.yaml")
    bindings = [x for x in found if x["kind"].endswith("RoleBinding")]
    (role,) = (x for x in found if x["kind"] == "Role")
    assert {x["roleRef"]["name"] for x in bindings} == {
        "system:kube-scheduler",
        "system:volume-scheduler",
        "extension-apiserver-authentication-reader",
        role["metadata"]["name"],
    }
    subject = {"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}
    assert all(x["subjects"] == [subject] for x in bindings)
    election = configuration("configuration.yaml")["leaderElection"]
    assert (election["resourceNamespace"], election["resourceName"]) == (NAMESPACE, NAME)
    assert role["metadata"]["namespace"] == NAMESPACE
    rights = [(x["verbs"], x.get("resourceNames")) for x in role["rules"]]
    assert rights == [(["create"], None), (["get", "update"], [NAME])]


def test_the_pods_find_their_files() -> None:
    (deployment,) = documents("deployment.yaml")
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["serviceAccountName"] == NAME
    mounted = {x["name"]: x["mountPath"] for x in container["volumeMounts"]}
    volumes = {x["name"]: x for x in spec["volumes"]}
    (extender,) = configuration("configuration.yaml")["extenders"]
    files = {Path(extender["tlsConfig"][key]) for key in ("caFile", "certFile", "keyFile")}
    assert {str(x.parent) for x in files} == {mounted["extender"]}
    assert {x.name for x in files} == {"ca.crt", "tls.crt", "tls.key"}
    assert volumes["extender"]["secret"]["secretName"] == "gpuwarden-extender-client"
    assert f"--config={mounted['configuration']}/configuration.yaml" in container["command"]


def test_kustomize_renames_nothing_but_the_configuration() -> None:
    """It rewrites every reference to a generated name, also where another object has that name."""
    (kustomization,) = documents("kustomization.yaml")
    (generated,) = kustomization["configMapGenerator"]
    (deployment,) = documents("deployment.yaml")
    volumes = {x["name"]: x for x in deployment["spec"]["template"]["spec"]["volumes"]}
    assert volumes["configuration"]["configMap"]["name"] == generated["name"]
    named = {x["metadata"]["name"] for file in kustomization["resources"] for x in documents(file)}
    assert generated["name"] not in named


def test_the_service_shows_replicas_that_are_ready() -> None:
    (service,) = documents("service.yaml")
    assert service["metadata"]["name"] == SERVICE.partition(".")[0]
    assert "publishNotReadyAddresses" not in service["spec"]
    assert service["spec"]["selector"]["app.kubernetes.io/component"] == "controller"


def test_certificates_have_the_name_that_schedulers_check_and_one_use_each() -> None:
    found = {
        x["metadata"]["name"]: x["spec"]
        for x in documents("certificates.yaml")
        if x["kind"] == "Certificate"
    }
    server, client = found["gpuwarden-extender-server"], found["gpuwarden-extender-client"]
    assert SERVICE in server["dnsNames"]
    assert server["usages"] == ["digital signature", "server auth"]
    assert client["usages"] == ["digital signature", "client auth"]


def test_requests_of_both_accounts_are_kept_out_of_the_common_queue() -> None:
    schema = only("flowschema.yaml", "FlowSchema")["spec"]
    assert schema["priorityLevelConfiguration"]["name"] == "workload-high"
    assert schema["matchingPrecedence"] < 9000
    (rule,) = schema["rules"]
    accounts = {x["serviceAccount"]["name"] for x in rule["subjects"]}
    assert accounts == {NAME, "gpuwarden-controller"}
