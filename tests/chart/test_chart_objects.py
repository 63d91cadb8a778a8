"""What single values change: access to GPUs, evaluation, SPIRE, certificates, what rolls."""

import base64
import json
import re
import shutil
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.certificates.leaves import EXTENDER, leaf_specs
from controller.kube.api.resources import CALLS, CERTIFICATE_CALLS, Call
from controller.policies.file import decode_policy
from gpuwarden.settings.loader import AGENT, CONTROLLER, Inputs, load
from tests.chart.rendering import (
    CA,
    CHART,
    DIGEST,
    NAMESPACE,
    REQUIRED,
    SETS,
    Object,
    Values,
    notes,
    objects,
    one,
    pods,
    render,
    rendered,
)
from tests.deploy.manifests import KUSTOMIZE
from tests.deploy.manifests import objects as deployed
from tests.e2e.lab.upstreams import SPIRE, SPIRE_CONTROLLER_MANAGER, upstream

AGENT_POD = "DaemonSet/gpuwarden-agent"
UNLESS_OFF = {"key": "gpuwarden.dev/agent", "operator": "NotIn", "values": ["off"]}
PAUSED = ["paused-for-driver-upgrade", "paused-for-mig-change"]
"""What k8s-driver-manager and k8s-mig-manager write into labels while they need the GPUs unused."""
UNLESS_PAUSED = [
    {"key": f"nvidia.com/gpu.deploy.{x}", "operator": "NotIn", "values": PAUSED}
    for x in ("device-plugin", "client")
]
CONTROLLER_POD = "StatefulSet/gpuwarden-controller"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
SPIRE_API = ("spire.spiffe.io/v1alpha1",)


def chart(**values: Any) -> list[Object]:
    return render({**REQUIRED, **values})


def data(found: list[Object], name: str, file: str) -> str:
    text: str = one(found, "ConfigMap", name)["data"][file]
    return text


# --- settings


@pytest.mark.parametrize("name", SETS)
def test_settings_and_policy_of_every_set_are_read(name: str) -> None:
    found = rendered(name)
    places = {"NODE_NAME": "node-1", "POD_NAME": "gpuwarden-controller-0", "POD_NAMESPACE": "x"}
    texts = [
        data(found, f"gpuwarden-{x}-config", f"{x}.yaml").encode() for x in ("agent", "controller")
    ]
    agent = load(AGENT, Inputs((), places, ("agent.yaml", texts[0]))).settings
    controller = load(CONTROLLER, Inputs((), places, ("controller.yaml", texts[1]))).settings
    for loaded in (agent, controller):
        assert (loaded.trust_domain, loaded.cluster) == ("prod.acme.io", "berlin-1")
    decode_policy(data(found, "gpuwarden-policy", "policy.yaml").encode())


def test_settings_of_ones_own_win() -> None:
    found = chart(
        agent={"config": {"log": {"level": "debug"}}},
        controller={"config": {"spire": {"poll": "20s"}, "attestation": {"interval": "20s"}}},
        policy={"minLevel": "L0", "deniedKeys": ["GPU-1"]},
    )
    agent = yaml.safe_load(data(found, "gpuwarden-agent-config", "agent.yaml"))
    settings = yaml.safe_load(data(found, "gpuwarden-controller-config", "controller.yaml"))
    policy = yaml.safe_load(data(found, "gpuwarden-policy", "policy.yaml"))
    assert agent["log"] == {"level": "debug"}
    assert settings["spire"] == {"server": "spire-server.spire-server:443", "poll": "20s"}
    assert settings["attestation"] == {"interval": "20s"}
    assert policy == {
        "apiVersion": "config.gpuwarden.dev/v1alpha1",
        "kind": "Policy",
        "minLevel": "L0",
        "deniedKeys": ["GPU-1"],
    }


def test_mode_env_is_one_switch() -> None:
    text = data(chart(mode="env", envHonoursVariable=True), "gpuwarden-policy", "policy.yaml")
    policy = decode_policy(text.encode())
    assert policy.default_mode == "env"
    (pool,) = policy.pools
    assert (pool.pattern, pool.mode, pool.honours_variable) == ("*", "env", True)


# --- the agent's access to GPUs


@pytest.mark.parametrize(
    ("values", "runtime", "annotation", "capabilities", "is_asked_for"),
    [
        ({}, "nvidia", None, None, True),
        ({"runtimeClassName": ""}, None, None, None, True),
        ({"gpuAccess": "privileged"}, "nvidia", None, ["SYS_ADMIN"], True),
        ({"mig": True}, "nvidia", None, ["SYS_ADMIN"], True),
        (
            {"gpuAccess": "nri"},
            None,
            ("nvidia.cdi.k8s.io/container.agent", "management.nvidia.com/gpu=all"),
            None,
            False,
        ),
    ],
)
def test_access_to_gpus(
    values: dict[str, Any],
    runtime: str | None,
    annotation: tuple[str, str] | None,
    capabilities: list[str] | None,
    is_asked_for: bool,
) -> None:
    workload = one(chart(agent=values), "DaemonSet", "gpuwarden-agent")
    spec = workload["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    cdi = {
        x: y
        for x, y in workload["spec"]["template"]["metadata"]["annotations"].items()
        if "cdi.k8s.io" in x
    }
    variables = {x["name"] for x in container["env"]}
    assert spec.get("runtimeClassName") == runtime
    assert cdi == dict([annotation] if annotation else [])
    assert container["securityContext"]["capabilities"].get("add") == capabilities
    assert ("NVIDIA_VISIBLE_DEVICES" in variables) is is_asked_for
    assert ("NVIDIA_MIG_MONITOR_DEVICES" in variables) is values.get("mig", False)


def test_folders_of_the_node_are_values() -> None:
    found = chart(
        agent={"kubeletRoot": "/data/kubelet", "stateFolder": "/data/gpuwarden"},
        spire={"socketFolder": "/var/spire", "socketName": "agent.sock"},
    )
    spec = pods(found)[AGENT_POD]
    paths = {x["name"]: x["hostPath"]["path"] for x in spec["volumes"] if "hostPath" in x}
    mounts = {x["name"]: x["mountPath"] for x in spec["containers"][0]["volumeMounts"]}
    settings = yaml.safe_load(data(found, "gpuwarden-agent-config", "agent.yaml"))
    assert paths == {
        "spire": "/var/spire",
        "pod-resources": "/data/kubelet/pod-resources",
        "state": "/data/gpuwarden",
    }
    assert settings["workloadApi"] == f"unix://{mounts['spire']}/agent.sock"
    assert settings["agent"]["kubeletSocket"] == f"{mounts['pod-resources']}/kubelet.sock"


@pytest.mark.parametrize(
    "label",
    [
        "nvidia.com/gpu.present",
        "feature.node.kubernetes.io/pci-10de.present",
        "feature.node.kubernetes.io/pci-0302_10de.present",
    ],
)
def test_agents_go_where_feature_discovery_sees_a_gpu(label: str) -> None:
    affinity = pods(rendered("default"))[AGENT_POD]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    found = [x["matchExpressions"] for x in terms]
    assert [
        {"key": label, "operator": "In", "values": ["true"]},
        UNLESS_OFF,
        *UNLESS_PAUSED,
    ] in found


def test_the_gpu_operator_takes_the_agent_off_a_node_for_a_driver_or_mig() -> None:
    """It neither drains DaemonSets nor deletes pods without a GPU (NVIDIA/gpu-operator#2570)."""
    affinity = pods(rendered("default"))[AGENT_POD]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms
    for term in terms:
        assert [x for x in term["matchExpressions"] if x in UNLESS_PAUSED] == UNLESS_PAUSED


@pytest.mark.parametrize("changes", [{}, {"evaluation": {"enabled": True}}], ids=["", "evaluation"])
def test_a_label_takes_the_agent_off_a_node(changes: Object) -> None:
    affinity = pods(chart(**changes))[AGENT_POD]["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert terms
    assert all(UNLESS_OFF in x["matchExpressions"] for x in terms)


def test_selinux_options_are_those_of_the_containers_that_mount_the_node() -> None:
    """Each by its own value; the SPIRE server and jobs mount nothing of it."""
    found = chart(
        agent={"seLinuxOptions": {"type": "spc_t"}},
        controller={"seLinuxOptions": {"type": "spc_t", "level": "s0"}},
        spire={"mode": "bundled", "bundled": {"agent": {"seLinuxOptions": {"type": "own_t"}}}},
    )
    assert {
        where: container["securityContext"]["seLinuxOptions"]
        for where, spec in pods(found).items()
        for container in spec["containers"]
        if "seLinuxOptions" in container["securityContext"]
    } == {
        AGENT_POD: {"type": "spc_t"},
        CONTROLLER_POD: {"type": "spc_t", "level": "s0"},
        "DaemonSet/gpuwarden-spire-agent": {"type": "own_t"},
    }
    mounting = {
        where
        for where, spec in pods(found).items()
        if any("hostPath" in x for x in spec.get("volumes", ()))
    }
    assert mounting == {AGENT_POD, CONTROLLER_POD, "DaemonSet/gpuwarden-spire-agent"}


# --- values of the charts that people come from


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ({"replicaCount": 3}, {"controller": {"replicas": 3}}, "replicaCount"),
        ({"image": {"pullPolicy": "Always"}}, {"imagePullPolicy": "Always"}, "image.pullPolicy"),
        (
            {"scheduler": {"name": "gpu-scheduler"}},
            {"scheduler": {"names": ["gpu-scheduler", "gpuwarden"]}},
            "scheduler.name",
        ),
        (
            {"scheduler": {"name": "other"}},
            {"scheduler": {"names": ["other", "gpuwarden", "gpu-scheduler"]}},
            "scheduler.name",
        ),
        ({"webhook": {"enabled": False}}, {"webhooks": {"enabled": False}}, "webhook.enabled"),
        ({"webhook": {"enabled": True}}, {}, "webhook.enabled"),
        (
            {"webhook": {"timeoutSeconds": 7}},
            {"webhooks": {"timeoutSeconds": 7}},
            "webhook.timeoutSeconds",
        ),
        ({"webhook": {"failurePolicy": "Fail"}}, {}, "webhook.failurePolicy"),
        (
            {
                "webhook": {"caBundle": base64.b64encode(CA.encode()).decode()},
                "certificates": {"mode": "given"},
            },
            {"certificates": {"mode": "given", "caBundle": CA}},
            "webhook.caBundle",
        ),
    ],
    ids=str,
)
def test_an_old_name_does_what_its_new_one_does_and_is_warned_of(
    old: dict[str, Any], new: dict[str, Any], key: str
) -> None:
    keys = {"existingKeysSecret": "k"}  # without it each rendering has other ones
    wanted = {**new, "webhooks": {**keys, **new.get("webhooks", {})}}
    assert chart(webhooks=keys, **old) == chart(**wanted)
    assert f"  - {key}: " in notes({**REQUIRED, **old})


def test_every_template_knows_the_old_names() -> None:
    for file in sorted((CHART / "templates").iterdir()):
        first = file.read_text().splitlines()[0]
        is_rendered = not file.name.startswith("_")
        assert (first == '{{- include "gpuwarden.aliases" . -}}') is is_rendered, file.name


def test_nobody_is_warned_of_old_names_that_were_not_given() -> None:
    assert "old name" not in notes(REQUIRED)


# --- evaluation


def test_an_evaluation_says_so_and_asks_for_no_gpu() -> None:
    found = chart(evaluation={"enabled": True})
    agents = one(found, "DaemonSet", "gpuwarden-agent")
    spec = pods(found)[AGENT_POD]
    (container,) = spec["containers"]
    assert container["image"] == "gpuwarden-agent-evaluation:0.1.0"
    assert [x["name"] for x in container["env"]] == ["NODE_NAME"]
    assert "runtimeClassName" not in spec
    assert "nvidia.com" not in json.dumps(spec["affinity"])
    for labels in (agents["metadata"], agents["spec"]["template"]["metadata"]):
        assert labels["labels"]["gpuwarden.dev/evaluation"] == "true"
    (job,) = [x for x in objects(found, "Job") if x["metadata"]["name"].endswith("-labels")]
    (labelling,) = pods([job]).values()
    assert "gpuwarden.dev/evaluation=true" in labelling["containers"][0]["args"]
    text = data(found, "gpuwarden-controller-config", "controller.yaml").encode()
    places = {"POD_NAME": "gpuwarden-controller-0"}
    assert load(CONTROLLER, Inputs((), places, ("c", text))).settings.evaluation.enabled is True
    assert "*** EVALUATION" in notes({**REQUIRED, "evaluation": {"enabled": True}})


def test_production_says_nothing_of_evaluation() -> None:
    texts = json.dumps([x for x in rendered("production") if x["kind"] != "Job"])
    assert "evaluation" not in texts
    assert "EVALUATION" not in notes(REQUIRED)


# --- SPIRE


def test_entries_are_objects_where_the_cluster_knows_them() -> None:
    found = render(
        {
            **REQUIRED,
            "spire": {"className": "mine", "people": True},
            "agentImages": [f"a@{DIGEST}"],
        },
        apis=SPIRE_API,
    )
    entries = {x["metadata"]["name"]: x["spec"] for x in objects(found, "ClusterSPIFFEID")}
    shipped = {
        x["metadata"]["name"]: x["spec"]
        for file in ("clusterspiffeids.yaml", "people.yaml")
        for x in yaml.safe_load_all((CHART.parents[1] / "spire" / file).read_text())
    }
    assert {x.pop("className") for x in entries.values()} == {"mine"}
    image = entries["gpuwarden-agent"]["workloadSelectorTemplates"].pop()
    assert image == f"k8s:container-image:a@{DIGEST}"
    assert entries == shipped


def test_entries_are_commands_where_it_does_not() -> None:
    assert objects(chart(), "ClusterSPIFFEID") == []
    told = notes({**REQUIRED, "spire": {"people": True}})
    for name in ("agent/NODE-NAME", "controller", "inspector/in-cluster", "operator/in-cluster"):
        assert f"-spiffeID spiffe://prod.acme.io/gpuwarden/{name}" in told
    assert told.count("-parentID spiffe://prod.acme.io/spire/agent/k8s_psat/berlin-1/NODE-UID") == 4
    assert "spire-server entry create" not in notes({**REQUIRED, "spire": {"mode": "bundled"}})


@pytest.mark.parametrize(
    ("spire", "apis", "is_warned"),
    [
        ({}, SPIRE_API, True),
        ({"className": "spire-mgmt-spire"}, SPIRE_API, False),
        ({"mode": "bundled"}, SPIRE_API, False),
        ({"serverAddress": "off"}, SPIRE_API, False),
        ({}, (), False),
    ],
)
def test_notes_warn_of_entries_without_a_class(
    spire: Object, apis: tuple[str, ...], is_warned: bool
) -> None:
    told = notes({**REQUIRED, "spire": spire}, apis)
    assert "\nNext:\n" in told
    assert ("  - spire.className is empty" in told) is is_warned


def test_a_bundled_spire_is_the_one_that_everybody_uses() -> None:
    found = rendered("bundled-spire")
    server = one(found, "ConfigMap", "gpuwarden-spire-server")["data"]
    agent = data(found, "gpuwarden-spire-agent", "agent.conf")
    service = one(found, "Service", "gpuwarden-spire-server")
    settings = yaml.safe_load(data(found, "gpuwarden-controller-config", "controller.yaml"))
    assert settings["spire"] == {"server": "gpuwarden-spire-server:8081"}
    assert [x["port"] for x in service["spec"]["ports"]] == [8081]
    for text in (server["server.conf"], agent):
        assert re.search(r'trust_domain = "prod\.acme\.io"', text)
    assert f'["{NAMESPACE}:gpuwarden-spire-agent"]' in server["server.conf"]
    assert '"berlin-1" = {' in server["server.conf"]
    assert 'cluster = "berlin-1"' in agent
    methods = json.loads(server["authorization.json"])
    assert methods["gpuwarden"]["readers"] == ["spiffe://prod.acme.io/gpuwarden/controller"]
    volumes = {x["name"]: x for x in pods(found)["DaemonSet/gpuwarden-spire-agent"]["volumes"]}
    bundle = volumes["bundle"]["configMap"]
    assert f'config_map = "{bundle["name"]}"' in server["server.conf"]
    assert bundle["items"] == [{"key": "bundle.crt", "path": "bundle.crt"}]
    assert 'trust_bundle_path = "/run/spire/bundle/bundle.crt"' in agent
    manager = yaml.safe_load(server["controller-manager.yaml"])
    entries = [*yaml.safe_load_all(data(found, "gpuwarden-spire-entries", "entries.yaml"))]
    assert {x["spec"]["className"] for x in entries} == {manager["className"]}
    assert len(entries) == 4


def test_a_bundled_spire_is_of_the_versions_that_the_lab_runs() -> None:
    images = {
        container["image"]
        for spec in pods(rendered("bundled-spire")).values()
        for container in spec["containers"]
        if container["image"].startswith("ghcr.io/spiffe/")
    }
    spire, manager = (upstream(x).version for x in (SPIRE, SPIRE_CONTROLLER_MANAGER))
    assert images == {
        f"ghcr.io/spiffe/spire-server:{spire}",
        f"ghcr.io/spiffe/spire-agent:{spire}",
        f"ghcr.io/spiffe/spire-controller-manager:{manager}",
    }


def test_other_entries_are_another_job() -> None:
    def names(**values: Any) -> set[str]:
        found = chart(spire={"mode": "bundled", **values})
        jobs = {x["metadata"]["name"] for x in objects(found, "Job")}
        return {x for x in jobs if x.startswith("gpuwarden-spire-entries-")}

    assert len(names()) == 1
    assert names() == names()
    assert names() & names(people=True) == set()
    other = chart(spire={"mode": "bundled"}, kubectl={"image": {"tag": "v1.36.0"}})
    assert names() & {x["metadata"]["name"] for x in objects(other, "Job")} == set()


# --- certificates


def test_self_managed_webhooks_have_no_bundle_yet_and_no_one_elses() -> None:
    found = rendered("default")
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for configuration in objects(found, kind):
            assert "annotations" not in configuration["metadata"]
            for webhook in configuration["webhooks"]:
                assert "caBundle" not in webhook["clientConfig"]
    assert objects(found, "Certificate") == []


def test_in_a_change_the_extender_has_the_certificate_of_before_too() -> None:
    secrets = {"extender": "ours"}
    found = chart(certificates={"servePrevious": True, "secrets": secrets})
    text = data(found, "gpuwarden-controller-config", "controller.yaml").encode()
    places = {"POD_NAME": "gpuwarden-controller-0"}
    settings = load(CONTROLLER, Inputs((), places, ("c", text))).settings
    spec = pods(found)[CONTROLLER_POD]
    (mount,) = [
        x
        for x in spec["containers"][0]["volumeMounts"]
        if x["mountPath"] == str(settings.extender.tls.previous)
    ]
    (volume,) = [x for x in spec["volumes"] if x["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == "ours"
    assert (
        pods(found)["Deployment/gpuwarden-scheduler"]
        == (pods(chart())["Deployment/gpuwarden-scheduler"])
    )


@pytest.mark.parametrize(
    ("name", "asked"), [("default", EXTENDER), ("given-certificates", None), ("cert-manager", None)]
)
def test_the_scheduler_asks_for_the_managed_certificate_by_its_name(
    name: str, asked: str | None
) -> None:
    found = data(rendered(name), "gpuwarden-scheduler-configuration", "configuration.yaml")
    (extender,) = yaml.safe_load(found)["extenders"]
    assert extender["tlsConfig"].get("serverName") == asked
    (spec,) = [x for x in leaf_specs(NAMESPACE) if x.name == "extender"]
    assert EXTENDER in spec.names


def test_cert_manager_makes_what_pods_mount() -> None:
    found = rendered("cert-manager")
    made = {x["spec"]["secretName"] for x in objects(found, "Certificate")}
    assert {
        "gpuwarden-admission-server",
        "gpuwarden-admission-client",
        "gpuwarden-extender-server",
        "gpuwarden-extender-client",
        "gpuwarden-api-server",
        "gpuwarden-access-server",
    } <= made
    access = one(found, "Certificate", "gpuwarden-access-server")["spec"]
    assert f"gpuwarden-access.{NAMESPACE}.svc" in access["dnsNames"]
    issuers = {x["metadata"]["name"] for x in objects(found, "Issuer")}
    assert {x["spec"]["issuerRef"]["name"] for x in objects(found, "Certificate")} == issuers
    for configuration in objects(found, "MutatingWebhookConfiguration"):
        injected = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
        assert injected == f"{NAMESPACE}/gpuwarden-admission-server"
        assert one(found, "Certificate", "gpuwarden-admission-server")


# --- what changes roll


def pod_templates(**values: Any) -> dict[str, Any]:
    found = chart(**values)
    kinds = ("DaemonSet", "StatefulSet", "Deployment")
    return {
        x["metadata"]["name"]: x["spec"]["template"] for kind in kinds for x in objects(found, kind)
    }


@pytest.mark.parametrize(
    ("values", "rolled"),
    [
        ({"policy": {"minLevel": "L0"}}, set()),
        ({"agent": {"config": {"log": {"level": "debug"}}}}, {"gpuwarden-agent"}),
        ({"controller": {"config": {"log": {"level": "debug"}}}}, {"gpuwarden-controller"}),
        ({"scheduler": {"preemption": False}}, {"gpuwarden-scheduler"}),
        ({"controller": {"replicas": 3}}, set()),
        ({"networkPolicies": {"enabled": False}}, set()),
        ({"commonLabels": {"team": "gpu"}}, set()),
        ({"webhooks": {"timeoutSeconds": 7}}, set()),
    ],
)
def test_a_change_rolls_only_what_reads_it(values: dict[str, Any], rolled: set[str]) -> None:
    before, after = pod_templates(), pod_templates(**values)
    assert {x for x in before if before[x] != after[x]} == rolled


def test_another_version_of_the_chart_rolls_nothing_by_its_labels(tmp_path: Path) -> None:
    """Pods change with the image alone."""
    copy = other_chart(tmp_path, version="9.9.9")
    before = {x["metadata"]["name"]: x for x in objects(chart(), "StatefulSet")}
    after = {x["metadata"]["name"]: x for x in objects(render(REQUIRED, chart=copy), "StatefulSet")}
    assert before != after
    assert {x: y["spec"] for x, y in before.items()} == {x: y["spec"] for x, y in after.items()}


def other_chart(folder: Path, version: str) -> Path:
    copy = folder / "chart"
    shutil.copytree(CHART, copy)
    about = (copy / "Chart.yaml").read_text()
    (copy / "Chart.yaml").write_text(about.replace("\nversion: 0.1.0", f"\nversion: {version}"))
    return copy


# --- names


def test_labels_have_at_most_63_characters(tmp_path: Path) -> None:
    long = f"1.2.3-alpha.{'x' * 60}+build.7"
    found = render(REQUIRED, release="r" * 53, chart=other_chart(tmp_path, long))
    value = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
    for x in found:
        for name, text in x["metadata"].get("labels", {}).items():
            assert value.fullmatch(text), (x["kind"], name, text)
        assert len(x["metadata"]["name"]) <= 63
    charts = {x["metadata"]["labels"]["helm.sh/chart"] for x in objects(found, "Service")}
    assert charts == {f"gpuwarden-1.2.3-alpha.{'x' * 41}"}


def test_no_name_depends_on_the_release() -> None:
    def names(release: str) -> set[tuple[str, str]]:
        found = render(REQUIRED, release=release)
        return {(x["kind"], x["metadata"]["name"]) for x in found}

    assert names("one") == names("another")


def in_kube_system(found: list[Object]) -> set[str]:
    names = {
        x["metadata"]["name"] for x in found if x["metadata"].get("namespace") == "kube-system"
    }
    assert names
    return names


def test_everything_is_in_the_releases_namespace() -> None:
    found = render(REQUIRED, namespace="trust")
    named = {x["metadata"].get("namespace") for x in found}
    assert named == {None, "trust", "kube-system"}
    shipped = [*deployed(), *deployed(KUSTOMIZE.parent / "scheduler")]
    assert in_kube_system(found) == in_kube_system([x for x in shipped if "metadata" in x])
    assert "gpuwarden-system" not in json.dumps(found)


# --- what people add


def test_controllers_go_to_control_plane_nodes_where_they_are_told() -> None:
    label = "node-role.kubernetes.io/control-plane"
    for is_told in (False, True):
        own = {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "own"}]}
        spec = pods(chart(controller={"onControlPlane": is_told, **own}))[CONTROLLER_POD]
        tolerated = {x.get("key"): x.get("effect") for x in spec["tolerations"]}
        assert spec["nodeSelector"] == {"a": "b", **({label: ""} if is_told else {})}
        assert (tolerated.get(label) == "NoSchedule") is is_told
        assert {"own", "gpuwarden.dev/managed"} <= tolerated.keys()


def test_runtime_classes_of_users_pods_are_the_controllers() -> None:
    found = chart(webhooks={"runtimeClasses": ["nvidia", "nvidia-cdi"]})
    text = data(found, "gpuwarden-controller-config", "controller.yaml").encode()
    places = {"POD_NAME": "gpuwarden-controller-0"}
    settings = load(CONTROLLER, Inputs((), places, ("c", text))).settings
    assert settings.admission.runtime_classes == ("nvidia", "nvidia-cdi")


def test_objects_of_ones_own_are_templates() -> None:
    text = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-x"}}
    assert one(chart(extraObjects=[text]), "ConfigMap", "gpuwarden-x")


def test_storage_is_a_class_or_an_empty_folder() -> None:
    (claim,) = one(
        chart(controller={"persistence": {"storageClass": "fast", "size": "20Gi"}}),
        "StatefulSet",
        "gpuwarden-controller",
    )["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"]["requests"] == {"storage": "20Gi"}
    found = rendered("single-replica")
    (folder,) = [x for x in pods(found)[CONTROLLER_POD]["volumes"] if x["name"] == "data"]
    assert folder == {"name": "data", "emptyDir": {}}
    told = notes({**REQUIRED, "controller": {"persistence": {"enabled": False}}})
    assert "the audit log is lost with its pod" in told


def test_infrastructure_is_one_list() -> None:
    found = rendered("production")
    own = ["kube-system", "kube-node-lease", "gpu-operator"]
    names = [*own, "spire-server", "spire-system", NAMESPACE]
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for configuration in objects(found, kind):
            for webhook in configuration["webhooks"]:
                assert webhook["namespaceSelector"]["matchExpressions"][1]["values"] == names
    protection = one(found, "ValidatingAdmissionPolicy", "gpuwarden-protection")["spec"]
    selector = protection["matchConstraints"]["namespaceSelector"]["matchExpressions"]
    assert selector[0]["values"] == names
    for name in ("bindings", "enforcement"):
        policy = one(found, "ValidatingAdmissionPolicy", f"gpuwarden-{name}")
        assert json.dumps(json.dumps(names, separators=(",", ":")))[1:-1] in json.dumps(policy)


@pytest.mark.parametrize(
    ("spire", "names"),
    [
        ({}, ["spire-server", "spire-system"]),
        ({"serverAddress": "off"}, ["spire-server", "spire-system"]),
        ({"serverAddress": "spire-server.spire:443", "namespaces": ["spire"]}, ["spire"]),
        ({"namespaces": ["kube-system"]}, []),
        ({"namespaces": []}, []),
        ({"mode": "bundled"}, []),
    ],
)
def test_namespaces_of_spire_are_left_alone_as_the_notes_say(
    spire: Object, names: list[str]
) -> None:
    found = one(chart(spire=spire), "MutatingWebhookConfiguration", "gpuwarden-pods")
    own = ["kube-system", "kube-node-lease", *names, NAMESPACE]
    for webhook in found["webhooks"]:
        assert webhook["namespaceSelector"]["matchExpressions"][1]["values"] == own
    told = notes({**REQUIRED, "spire": spire})
    assert f"start without gpuwarden and may run on any node:\n  {', '.join(own)}\n" in told


@pytest.mark.parametrize(
    ("address", "missing"),
    [
        ("spire-server.spire-server:443", ""),
        ("spire-server.spire:443", "spire"),
        ("server.identity.svc:8081", "identity"),
        ("server.identity.svc.cluster.local:8081", "identity"),
        ("spire.acme.io:443", ""),
        ("10.0.0.7:8081", ""),
        ("localhost:8081", ""),
    ],
)
def test_notes_warn_of_a_spire_whose_namespace_is_not_named(address: str, missing: str) -> None:
    told = notes({**REQUIRED, "spire": {"serverAddress": address}})
    assert (f'  - spire.namespaces: without "{missing}"' in told) is bool(missing)
    assert ("  - spire.namespaces" in told) is bool(missing)


def test_without_webhooks_no_binding_may_bring_our_annotations() -> None:
    for name, registered in (("default", "true &&"), ("no-webhooks", "false &&")):
        policy = one(rendered(name), "ValidatingAdmissionPolicy", "gpuwarden-bindings")
        (variable,) = [x for x in policy["spec"]["variables"] if x["name"] == "registered"]
        assert variable["expression"].startswith(registered)


def test_report_only_refuses_nothing() -> None:
    found = chart(enforcement="report")
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for configuration in objects(found, kind):
            assert {x["failurePolicy"] for x in configuration["webhooks"]} == {"Ignore"}
    bindings = objects(found, "ValidatingAdmissionPolicyBinding")
    assert {tuple(x["spec"]["validationActions"]) for x in bindings} == {("Warn", "Audit")}


# --- rights


def granted(found: list[Object], name: str) -> set[tuple[str, str, str, str | None, bool]]:
    return {
        (verb, group, resource, only, kind == "Role")
        for kind in ("Role", "ClusterRole")
        for rule in one(found, kind, name)["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for only in rule.get("resourceNames", [None])
    }


@pytest.mark.parametrize(
    ("name", "calls"),
    [("default", (*CALLS, *CERTIFICATE_CALLS)), ("given-certificates", CALLS)],
    ids=["self-managed", "given"],
)
def test_controllers_may_do_exactly_what_they_do(name: str, calls: tuple[Call, ...]) -> None:
    made = {(x.verb.value, x.resource.group, x.rbac_name, x.name, x.own_namespace) for x in calls}
    found = granted(rendered(name), "gpuwarden-controller")
    if calls != CALLS:
        found |= granted(rendered(name), "gpuwarden-controller-certificates")
    assert found == made
    assert len([x for x in rendered(name) if "-certificates" in x["metadata"]["name"]]) == (
        0 if calls == CALLS else 4
    )


# --- before and after


def test_uninstallation_begins_with_what_would_keep_pods_waiting() -> None:
    found = rendered("production")
    (job,) = [x for x in objects(found, "Job") if x["metadata"]["name"] == "gpuwarden-clean-up"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    (spec,) = pods([job]).values()
    (container,) = spec["containers"]
    removed = {x for x in container["args"] if "/" in x}
    blocking = {
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
        "ValidatingAdmissionPolicyBinding",
    }
    there = {
        f"{x['kind'].lower()}s.admissionregistration.k8s.io/{x['metadata']['name']}"
        for x in found
        if x["kind"] in blocking
    }
    test = f"pods/{one(found, 'Pod', 'gpuwarden-helm-test')['metadata']['name']}"
    assert removed == {*there, test}
    assert "--ignore-not-found" in container["args"]
    granted = {
        f"{resource}.{group}/{name}" if group else f"{resource}/{name}"
        for kind in ("ClusterRole", "Role")
        for rule in one(found, kind, "gpuwarden-clean-up")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule["resourceNames"]
    }
    assert granted == removed


def test_hooks_come_before_and_leave_nothing() -> None:
    """Accounts and rights come before the job that uses them; all go when it has succeeded."""
    hooks = [
        x for x in rendered("default") if x["metadata"].get("annotations", {}).get("helm.sh/hook")
    ]
    jobs = {x["metadata"]["name"]: x for x in objects(hooks, "Job")}
    assert jobs.keys() == {"gpuwarden-clean-up", "gpuwarden-namespace-labels"}
    for x in hooks:
        notes_ = x["metadata"]["annotations"]
        if notes_["helm.sh/hook"] == "test":  # its objects are looked at below
            continue
        assert notes_["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
        job = jobs[x["metadata"]["name"]]["metadata"]["annotations"]
        assert notes_["helm.sh/hook"] == job["helm.sh/hook"]
        if x["kind"] != "Job":
            assert int(notes_["helm.sh/hook-weight"]) < int(job["helm.sh/hook-weight"])


def test_what_is_remembered_outlives_the_release() -> None:
    kept = {
        (x["kind"], x["metadata"]["name"])
        for x in rendered("default")
        if x["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep"
    }
    definitions = {
        ("CustomResourceDefinition", f"{x}.gpuwarden.dev")
        for x in ("nodeenrollments", "gpureservations", "attestationclasses", "attestationpolicies")
    }
    assert kept == {*definitions, ("Secret", "gpuwarden-reservation-keys")}


def test_reservation_keys_are_as_controllers_read_them() -> None:
    secret = one(rendered("default"), "Secret", "gpuwarden-reservation-keys")
    text = base64.b64decode(secret["data"]["keys"]).decode()
    assert re.fullmatch(r"k1 [0-9a-f]{64}\n", text)
    again = one(chart(), "Secret", "gpuwarden-reservation-keys")
    assert again["data"] != secret["data"]


def test_helm_test_is_the_doctor_that_comes_in_as_people_do() -> None:
    found = chart()
    pod = one(found, "Pod", "gpuwarden-helm-test")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    assert container["image"] == pods(found)[CONTROLLER_POD]["containers"][0]["image"]
    told = (*container["command"], *container["args"])
    assert told == ("gpuwarden", "doctor", "--wait", "5m", "--namespace", NAMESPACE)
    (file,) = [x["value"] for x in container["env"] if x["name"] == "KUBECONFIG"]
    volumes = {x["name"]: x for x in pod["spec"]["volumes"]}
    (mount,) = [x for x in container["volumeMounts"] if file.startswith(f"{x['mountPath']}/")]
    name = volumes[mount["name"]]["configMap"]["name"]
    text = one(found, "ConfigMap", name)["data"][file.rpartition("/")[2]]
    login = parsed_login(text)
    assert login == ("https://kubernetes.default.svc", f"{SERVICE_ACCOUNT}/ca.crt")
    (folder,) = [x["name"] for x in container["volumeMounts"] if not x.get("readOnly")]
    assert volumes[folder]["emptyDir"]["medium"] == "Memory"


def parsed_login(text: str) -> tuple[str, str]:
    """Server and authority of the kubeconfig's context, which has the account's token."""
    document = yaml.safe_load(text)
    context = {x["name"]: x["context"] for x in document["contexts"]}[document["current-context"]]
    cluster = {x["name"]: x["cluster"] for x in document["clusters"]}[context["cluster"]]
    user = {x["name"]: x["user"] for x in document["users"]}[context["user"]]
    assert user == {"tokenFile": f"{SERVICE_ACCOUNT}/token"}
    return cluster["server"], cluster["certificate-authority"]


def test_the_rights_of_helm_test_are_the_doctors_and_an_inspectors_for_the_time_of_the_test() -> (
    None
):
    bound = {}
    for x in rendered("default"):
        subjects = {y["name"] for y in x.get("subjects") or ()}
        if "gpuwarden-helm-test" in subjects:
            assert subjects == {"gpuwarden-helm-test"}
            bound[x["kind"], x["roleRef"]["kind"], x["roleRef"]["name"]] = x["metadata"]
    assert bound.keys() == {
        ("ClusterRoleBinding", "ClusterRole", "gpuwarden-doctor"),
        ("ClusterRoleBinding", "ClusterRole", "gpuwarden-inspector"),
        ("RoleBinding", "Role", "gpuwarden-doctor"),
        ("RoleBinding", "Role", "gpuwarden-access"),
    }
    account = one(rendered("default"), "ServiceAccount", "gpuwarden-helm-test")["metadata"]
    for metadata in (account, *bound.values()):
        notes_ = metadata["annotations"]
        assert notes_["helm.sh/hook"] == "test"
        assert {"hook-succeeded", "hook-failed"} <= {
            *notes_["helm.sh/hook-delete-policy"].split(",")
        }
    for kind, role, name in bound:
        assert one(rendered("default"), role, name), kind
    assert "pods/exec" not in json.dumps(rendered("default"))


def test_without_access_nobody_comes_with_a_kubeconfig_and_there_is_no_test() -> None:
    found = chart(access={"enabled": False})
    settings = yaml.safe_load(data(found, "gpuwarden-controller-config", "controller.yaml"))
    assert "access" not in settings
    names = {x["metadata"]["name"] for x in found}
    assert names & {"gpuwarden-helm-test", "gpuwarden-access", "gpuwarden-inspector"} == set()
    assert "gpuwarden-doctor" in names
    assert "helm test" not in notes({**REQUIRED, "access": {"enabled": False}}).partition("Next")[2]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"webhooks": {"enabled": False}}, "webhooks.enabled "),
        ({"enforcement": "report"}, "enforcement: report "),
        ({"policies": {"enabled": False}}, "policies.enabled "),
        ({"scheduler": {"enabled": False}}, "scheduler.enabled "),
        ({"access": {"enabled": False}}, "access.enabled "),
        ({"controller": {"replicas": 1}}, "controller.replicas is 1"),
        ({"spire": {"serverAddress": "off"}}, "spire.serverAddress is off"),
    ],
)
def test_notes_say_what_is_off(values: dict[str, Any], told: str) -> None:
    assert told in notes({**REQUIRED, **values})
    assert told not in notes(REQUIRED)


def off(values: Values) -> set[str]:
    """What the notes name as off."""
    told = notes({**REQUIRED, **values}).partition("\nOff:\n")[2].splitlines()
    named = takewhile(lambda line: line.startswith("  "), told)
    return {line.split()[0].rstrip(":") for line in named}


def test_the_notes_name_what_is_off() -> None:
    """What is off by default, and in an installation with everything nothing."""
    assert off({}) == {
        "protection.enabled",
        "httpApi.enabled",
        "console.enabled",
        "export.exporters",
        "hints.schedulerUrl",
        "webhooks.callerCertificate",
    }
    everything = {
        "protection": {"enabled": True},
        "httpApi": {"enabled": True},
        "console": {"enabled": True, "proxies": ["spiffe://prod.acme.io/proxy"]},
        "export": {"exporters": ["stdout"]},
        "hints": {"scorer": {"enabled": True}},
        "webhooks": {"callerCertificate": True},
        "certificates": {"mode": "cert-manager"},
    }
    assert off(everything) == set()
    fewer = {**everything, "webhooks": {"enabled": False}, "hints": {}, "protection": {}}
    assert off(fewer) == {"webhooks.enabled", "protection.enabled", "hints.schedulerUrl"}
    assert off({"policies": {"enabled": False}, "scheduler": {"enabled": False}}) > {
        "policies.enabled",
        "scheduler.enabled",
    }
    assert {"access.enabled", "enforcement"} < off(
        {"access": {"enabled": False}, "enforcement": "report"}
    )
