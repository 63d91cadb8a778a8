"""GPU nodes: labels, agents, evidence, clocks, drivers, device plugins, protection."""

from controller.verifier.message import _skew_text
from gpuwarden.doctor.facts import (
    DAEMON_SETS,
    NODES,
    OPERATOR_POLICIES,
    PODS,
    RUNTIME_CLASSES,
)
from tests.builders.doctor_facts import (
    added,
    changed,
    measured,
    showing,
    standing,
    without,
)
from tests.builders.doctor_faults import (
    FAILED,
    NOT_CHECKED,
    WARNING,
    Fault,
    by_discovery,
    by_operator,
    cluster_policy,
    discovered,
    labelled,
    namespaces_only,
    plugin,
    selecting,
    spec,
    tolerating,
    toolkit,
    unlabelled,
)

PAUSED = {"nvidia.com/gpu.deploy.device-plugin": "paused-for-driver-upgrade"}

FAULTS = [
    Fault(
        "gpu-nodes",
        lambda x: changed(x, NODES, "gpu-a2", unlabelled("nvidia.com/gpu.present")),
        FAILED,
        "^without the label nvidia.com/gpu.present=true: gpu-a2$",
    ),
    Fault("gpu-nodes", lambda x: without(x, NODES), WARNING, "none offers GPUs"),
    Fault(
        "gpu-nodes",
        lambda x: changed(x, NODES, "gpu-a2", labelled(**{"gpuwarden.dev/agent": "off"})),
        WARNING,
        "^the label gpuwarden.dev/agent=off keeps agents off gpu-a2$",
    ),
    Fault(
        "gpu-nodes",
        lambda x: changed(x, NODES, "gpu-a2", labelled(**PAUSED)),
        WARNING,
        "^the gpu-operator keeps agents off gpu-a2$",
    ),
    Fault(
        "gpu-nodes",
        lambda x: changed(x, DAEMON_SETS, "gpuwarden-agent", selecting(pool="a")),
        FAILED,
        "^the agents' node selector or affinity leaves out gpu-a1, gpu-a2$",
    ),
    Fault(
        "agents",
        lambda x: added(by_discovery(x), NODES, discovered("gpu-a3")),
        FAILED,
        "^none that is ready on gpu-a3$",
    ),
    Fault(
        "agents",
        lambda x: without(x, PODS, "gpuwarden-agent-gpu-a2"),
        FAILED,
        "^none that is ready on gpu-a2$",
    ),
    Fault(
        "agents",
        lambda x: changed(
            x,
            PODS,
            "gpuwarden-agent-gpu-a1",
            lambda y: y["status"]["conditions"][0].update(status="False"),
        ),
        FAILED,
        "on gpu-a1$",
    ),
    Fault(
        "agents",
        lambda x: without(
            changed(x, DAEMON_SETS, "spire-agent", tolerating()), PODS, "gpuwarden-agent-gpu-a2"
        ),
        FAILED,
        "^none that is ready on gpu-a2; no SPIRE agent on gpu-a2: the DaemonSet spire-agent does"
        " not tolerate gpuwarden.dev/managed:NoExecute$",
    ),
    Fault("agents", lambda x: without(x, NODES), NOT_CHECKED, "no GPU nodes"),
    Fault(
        "evidence",
        lambda x: standing(x, state="stale", code="NODE_STALE"),
        FAILED,
        r"^gpu-a1 is stale \(NODE_STALE\)$",
    ),
    Fault("evidence", lambda x: standing(x, state="unknown"), FAILED, "^gpu-a1 is unknown$"),
    Fault("evidence", showing, WARNING, "knows no GPU node"),
    Fault(
        "clocks",
        lambda x: standing(x, warnings=[_skew_text(40_000)]),
        WARNING,
        "^gpu-a1: the node's clock is 40 s ",
    ),
    Fault(
        "clocks",
        lambda x: standing(x, state="stale", code="CLOCK_SKEW"),
        FAILED,
        "^evidence refused for its time: gpu-a1$",
    ),
    Fault(
        "clocks", lambda x: measured(x, "gpuwarden_clock_suspect", 1), FAILED, "against boot time"
    ),
    Fault(
        "driver",
        lambda x: standing(x, state="stale", code="NVML_UNAVAILABLE"),
        FAILED,
        "^gpu-a1: NVML_UNAVAILABLE$",
    ),
    Fault("driver", lambda x: standing(x, lost_gpu_count=2), FAILED, "^gpu-a1 has lost 2$"),
    Fault(
        "modes",
        lambda x: standing(x, mode="env"),
        FAILED,
        "^gpu-a1 has mode env and a device plugin$",
    ),
    Fault(
        "modes",
        lambda x: changed(
            x, NODES, "gpu-a1", lambda y: y["status"]["capacity"].update({"nvidia.com/gpu": "0"})
        ),
        FAILED,
        "^gpu-a1 has mode plugin and no device plugin$",
    ),
    Fault(
        "gpu-sharing",
        lambda x: changed(
            x, NODES, "gpu-a1", labelled(**{"nvidia.com/gpu.sharing-strategy": "time-slicing"})
        ),
        FAILED,
        "shares GPUs on gpu-a1$",
    ),
    Fault(
        "device-variables",
        lambda x: added(x, DAEMON_SETS, plugin("cdi-cri"), toolkit(None)),
        FAILED,
        "^daemonset/plugin -n gpu-operator has DEVICE_LIST_STRATEGY=cdi-cri, and daemonset/toolkit",
    ),
    Fault(
        "device-variables",
        lambda x: by_operator(namespaces_only(x)),
        WARNING,
        "^daemonset/plugin -n gpu-operator has DEVICE_LIST_STRATEGY=cdi-annotations,cdi-cri, and",
    ),
    Fault("device-variables", by_operator, FAILED, "where a pod runs with NVIDIA's runtime"),
    Fault(
        "device-variables",
        lambda x: added(x, DAEMON_SETS, plugin("cdi-cri, cdi-annotations")),
        WARNING,
        "not seen from here$",
    ),
    Fault(
        "device-variables",
        lambda x: added(
            added(x, DAEMON_SETS, toolkit("false")),
            OPERATOR_POLICIES,
            cluster_policy(
                devicePlugin={"DEVICE_LIST_STRATEGY": "cdi-cri"},
                toolkit={"ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED": "true"},
            ),
        ),
        FAILED,
        "^clusterpolicy/cluster-policy has DEVICE_LIST_STRATEGY=cdi-cri",
    ),
    Fault(
        "device-variables",
        lambda x: without(x, DAEMON_SETS, "nvidia-device-plugin"),
        NOT_CHECKED,
        "no DaemonSet of NVIDIA's device plugin",
    ),
    Fault(
        "runtime-class",
        lambda x: changed(
            x,
            DAEMON_SETS,
            "gpuwarden-agent",
            lambda y: y["spec"]["template"]["spec"].update(runtimeClassName="other"),
        ),
        FAILED,
        "^agents name the RuntimeClass other, and there is none$",
    ),
    Fault(
        "runtime-class",
        lambda x: without(x, DAEMON_SETS, "gpuwarden-agent"),
        FAILED,
        "no DaemonSet gpuwarden-agent",
    ),
    Fault(
        "runtime-class-nvidia",
        lambda x: without(x, RUNTIME_CLASSES),
        WARNING,
        "^no RuntimeClass nvidia$",
    ),
    Fault(
        "protection",
        lambda x: changed(x, NODES, "gpu-a2", spec(taints=[])),
        FAILED,
        "^without the taint gpuwarden.dev/managed:NoExecute: gpu-a2$",
    ),
    Fault(
        "protection",
        lambda x: changed(
            x,
            NODES,
            "gpu-a1",
            spec(taints=[{"key": "gpuwarden.dev/managed", "effect": "NoSchedule"}]),
        ),
        FAILED,
        "gpu-a1$",
    ),
    Fault("protection", namespaces_only, WARNING, "promised more of its GPUs than `node`"),
]
