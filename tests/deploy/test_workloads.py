"""The workloads of the base: that their settings load, that names agree."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.app import STOP_S
from agent.health import Ops
from controller.app import DRAIN_SECONDS
from controller.operations.readiness import Readiness
from controller.policies.file import decode_policy
from controller.settings import ControllerSettings
from controller.web.server import ops_app
from gpuwarden import __version__
from gpuwarden.settings.agent import AgentSettings
from gpuwarden.settings.loader import (
    AGENT,
    CONTROLLER,
    ConfigType,
    Inputs,
    Loaded,
    SettingsError,
    load,
)
from gpuwarden.settings.start import parse_arguments
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.deploy.manifests import BASE, KUSTOMIZE, Object, container_of, objects, one, pod_of

ALL = objects()
AGENTS = one(ALL, "DaemonSet", "gpuwarden-agent")
CONTROLLERS = one(ALL, "StatefulSet", "gpuwarden-controller")
WORKLOADS = pytest.mark.parametrize("workload", [AGENTS, CONTROLLERS], ids=["agent", "controller"])
PLACES = {
    "spec.nodeName": "node-1",
    "metadata.name": "gpuwarden-controller-1",
    "metadata.namespace": "gpuwarden-system",
}
"""What the downward API would give."""


def environment(container: Object) -> dict[str, str]:
    return {
        x["name"]: x["value"] if "value" in x else PLACES[x["valueFrom"]["fieldRef"]["fieldPath"]]
        for x in container.get("env", ())
    }


def mounted_file(workload: Object, path: str) -> Path:
    """The file of the base that stands at `path` in the container."""
    folder, _, name = path.rpartition("/")
    (mount,) = [x for x in container_of(workload)["volumeMounts"] if x["mountPath"] == folder]
    (volume,) = [x for x in pod_of(workload)["volumes"] if x["name"] == mount["name"]]
    kustomization = yaml.safe_load((BASE / "kustomization.yaml").read_text())
    (generated,) = [
        x for x in kustomization["configMapGenerator"] if x["name"] == volume["configMap"]["name"]
    ]
    files: dict[str, Path] = {Path(x).name: BASE / x for x in generated["files"]}
    return files[name]


def settings(workload: Object, config: ConfigType[Any], extra: dict[str, str]) -> Loaded[Any]:
    container = container_of(workload)
    arguments = parse_arguments("x", config.keys, container["args"])
    assert arguments.config is not None
    file = mounted_file(workload, arguments.config)
    known = environment(container) | extra
    return load(config, Inputs(arguments.flags, known, (str(file), file.read_bytes())))


def agent_settings() -> AgentSettings:
    found: AgentSettings = settings(AGENTS, AGENT, {}).settings
    return found


def controller_settings() -> ControllerSettings:
    found: ControllerSettings = settings(CONTROLLERS, CONTROLLER, {}).settings
    return found


def test_their_settings_load_and_belong_together() -> None:
    agent, controller = agent_settings(), controller_settings()
    assert (agent.trust_domain, agent.cluster) == (controller.trust_domain, controller.cluster)
    assert agent.workload_api == controller.workload_api
    assert agent.agent.node_name == PLACES["spec.nodeName"]
    assert controller.replica == PLACES["metadata.name"]
    assert controller.kubernetes.namespace == PLACES["metadata.namespace"]
    assert controller.spire.server is not None


def test_a_key_that_does_not_exist_would_be_found() -> None:
    with pytest.raises(SettingsError, match="GPUWARDEN_NO_SUCH_KEY"):
        settings(CONTROLLERS, CONTROLLER, {"GPUWARDEN_NO_SUCH_KEY": "1"})


def test_the_policy_is_one_and_demands_the_agents_own_account() -> None:
    path = controller_settings().policy.file
    policy = decode_policy(mounted_file(CONTROLLERS, str(path)).read_bytes())
    assert policy.attestors is not None
    account = pod_of(AGENTS)["serviceAccountName"]
    assert policy.attestors["k8s_psat"].selectors == (
        f"k8s:ns:{AGENTS['metadata']['namespace']}",
        f"k8s:sa:{account}",
    )


def test_everything_is_in_the_namespace_of_the_settings_default() -> None:
    namespace = controller_settings().kubernetes.namespace
    cluster_wide = {"Namespace", "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
    for found in ALL:
        if found["kind"] not in cluster_wide:
            assert found["metadata"]["namespace"] == namespace, found["metadata"]["name"]
    assert one(ALL, "Namespace", namespace)


def test_the_agent_has_no_way_into_the_kubernetes_api() -> None:
    account = one(ALL, "ServiceAccount", "gpuwarden-agent")
    assert account["automountServiceAccountToken"] is False
    bound = [s["name"] for x in ALL for s in x.get("subjects", ())]
    assert pod_of(AGENTS)["serviceAccountName"] not in bound


@WORKLOADS
def test_probes_ask_what_is_answered(workload: Object) -> None:
    container = container_of(workload)
    probes = {x: container[f"{x}Probe"]["httpGet"] for x in ("startup", "liveness", "readiness")}
    answered = agent_paths() if workload is AGENTS else controller_paths()
    assert {x["path"] for x in probes.values()} <= answered
    assert probes["liveness"]["path"] == probes["startup"]["path"] == "/healthz"
    assert probes["readiness"]["path"] == "/readyz"
    ops = agent_settings().listen.ops if workload is AGENTS else controller_settings().listen.ops
    ports = {x["name"]: x["containerPort"] for x in container["ports"]}
    assert {ports[x["port"]] for x in probes.values()} == {ops.port}


def agent_paths() -> set[str]:
    unasked: Any = None
    ops = Ops(
        Instruments(Process.AGENT, __version__),
        unasked,
        unasked,
        stuck=unasked,
        unreadable=unasked,
        facts=unasked,
    )
    return set(ops.routes())


def controller_paths() -> set[str]:
    app = ops_app(lambda: Readiness((), ()), lambda **_: b"", None)
    return {x.canonical for x in app.router.resources()}


def test_agents_find_every_controller_also_before_it_is_ready() -> None:
    (address,) = agent_settings().agent.controllers
    service = one(ALL, "Service", address.host)
    assert CONTROLLERS["spec"]["serviceName"] == address.host
    labels = CONTROLLERS["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    (port,) = service["spec"]["ports"]
    ports = {x["name"]: x["containerPort"] for x in container_of(CONTROLLERS)["ports"]}
    assert port["port"] == address.port
    assert ports[port["targetPort"]] == controller_settings().listen.agents.port


def test_what_is_written_lies_on_volumes_that_can_be_written() -> None:
    agent, controller = agent_settings(), controller_settings()
    written = {
        AGENTS["kind"]: [agent.agent.state_dir],
        CONTROLLERS["kind"]: [
            controller.audit.dir,
            controller.store.path,
            controller.listen.local,
        ],
    }
    for workload in (AGENTS, CONTROLLERS):
        mounts = container_of(workload)["volumeMounts"]
        places = [Path(x["mountPath"]) for x in mounts if not x.get("readOnly")]
        for path in written[workload["kind"]]:
            assert any(path.is_relative_to(place) for place in places), path


def test_each_replica_keeps_its_own_log() -> None:
    (claim,) = CONTROLLERS["spec"]["volumeClaimTemplates"]
    mounts = {x["name"]: x["mountPath"] for x in container_of(CONTROLLERS)["volumeMounts"]}
    assert controller_settings().audit.dir.is_relative_to(mounts[claim["metadata"]["name"]])


def test_the_workload_apis_socket_is_mounted_by_its_folder() -> None:
    """The socket is another one after the SPIRE agent's restart."""
    socket = Path(agent_settings().workload_api.removeprefix("unix://"))
    for workload in (AGENTS, CONTROLLERS):
        mounts = {x["mountPath"]: x["name"] for x in container_of(workload)["volumeMounts"]}
        (volume,) = [
            x for x in pod_of(workload)["volumes"] if x["name"] == mounts[str(socket.parent)]
        ]
        assert volume["hostPath"] == {"path": str(socket.parent), "type": "Directory"}


def test_kubelets_socket_is_mounted_by_its_folder() -> None:
    socket = agent_settings().agent.kubelet_socket
    assert socket is not None
    folder = str(socket.parent)
    (mount,) = [x for x in container_of(AGENTS)["volumeMounts"] if x["mountPath"] == folder]
    assert mount["readOnly"] is True
    (volume,) = [x for x in pod_of(AGENTS)["volumes"] if x["name"] == mount["name"]]
    assert volume["hostPath"] == {"path": folder, "type": "Directory"}


@WORKLOADS
def test_there_is_time_to_end(workload: Object) -> None:
    pause = container_of(workload).get("lifecycle", {"preStop": {"sleep": {"seconds": 0}}})
    needed = pause["preStop"]["sleep"]["seconds"] + max(STOP_S, DRAIN_SECONDS)
    assert pod_of(workload)["terminationGracePeriodSeconds"] > needed


@WORKLOADS
def test_labels_select_the_workloads_own_pods(workload: Object) -> None:
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"] == labels
    policy = one(ALL, "NetworkPolicy", workload["metadata"]["name"])["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    open_ports = {x["port"] for rule in policy["ingress"] for x in rule["ports"]}
    assert open_ports == {x["name"] for x in container_of(workload)["ports"]}


@pytest.mark.parametrize("workload", [AGENTS, CONTROLLERS], ids=["agents", "controllers"])
def test_no_port_is_open_to_every_pod(workload: Any) -> None:
    """Liveness stands behind `ops`: kubelet reaches its node's pods whatever a policy says."""
    policy = one(ALL, "NetworkPolicy", workload["metadata"]["name"])["spec"]
    for rule in policy["ingress"]:
        assert rule["from"]
        for peer in rule["from"]:
            (selector,) = peer.values()
            assert selector["matchLabels"]


def test_the_agents_reach_the_controllers() -> None:
    policy = one(ALL, "NetworkPolicy", CONTROLLERS["metadata"]["name"])["spec"]
    (rule,) = [x for x in policy["ingress"] if {"port": "agents"} in x["ports"]]
    labels = AGENTS["spec"]["template"]["metadata"]["labels"]
    assert {"podSelector": {"matchLabels": labels}} in rule["from"]


def test_entries_of_spire_select_these_pods() -> None:
    folder = KUSTOMIZE.parent / "spire"
    entries = [x for x in objects(folder) if x["kind"] == "ClusterSPIFFEID"]
    for workload in (AGENTS, CONTROLLERS):
        spec = one(entries, "ClusterSPIFFEID", workload["metadata"]["name"])["spec"]
        labels = workload["spec"]["template"]["metadata"]["labels"]
        namespace = workload["metadata"]["namespace"]
        assert spec["podSelector"]["matchLabels"] == labels
        assert spec["namespaceSelector"]["matchLabels"] == {
            "kubernetes.io/metadata.name": namespace
        }
        account = pod_of(workload)["serviceAccountName"]
        assert spec["workloadSelectorTemplates"] == [f"k8s:ns:{namespace}", f"k8s:sa:{account}"]
