"""Checks of GPU nodes: agents, evidence, clocks, drivers, and what gives pods their GPUs. Pure."""

from collections.abc import Iterable
from typing import Final

from gpuwarden.counted import counted
from gpuwarden.doctor.check import (
    Check,
    Group,
    Outcome,
    Verdict,
    failed,
    not_checked,
    passed,
    warned,
)
from gpuwarden.doctor.daemon_sets import left_out, selects
from gpuwarden.doctor.each_replica import of_each
from gpuwarden.doctor.facts import (
    AGENTS,
    DAEMON_SETS,
    NODES,
    PODS,
    Fact,
    Facts,
    Object,
    Replica,
    labels_of,
    name_of,
    pod_spec,
    some,
)
from gpuwarden.doctor.runtime import RUNTIME, VARIABLES
from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry import names
from gpuwarden.wire.v1 import fleet_pb2 as pb

PRESENT: Final = "nvidia.com/gpu.present"
TAINT: Final = "gpuwarden.dev/managed"
AGENT: Final = "gpuwarden.dev/agent"
"""With the value `off` it keeps the agent off a node."""
DISCOVERED: Final = (
    "feature.node.kubernetes.io/pci-10de.present",
    "feature.node.kubernetes.io/pci-0302_10de.present",
    "feature.node.kubernetes.io/pci-0300_10de.present",
)
"""Labels of node-feature-discovery for NVIDIA's devices: the chart's agents go by them, too."""
OPERATOR: Final = ("nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.client")
PAUSED: Final = frozenset({"paused-for-driver-upgrade", "paused-for-mig-change"})
"""What the gpu-operator sets there while it changes a node: agents leave it for so long."""
_RESOURCES: Final = ("nvidia.com/gpu", "nvidia.com/mig-")
_SHARING: Final = "nvidia.com/gpu.sharing-strategy"
_UNSHARED: Final = frozenset({"", "none"})
_ELIGIBLE: Final = "eligible"
_UNKNOWN: Final = "unknown"
_UNREAD: Final = frozenset(
    {
        ReasonCode.NVML_UNAVAILABLE,
        ReasonCode.INVENTORY_INVALID,
        ReasonCode.INVENTORY_INCOMPLETE,
        ReasonCode.INVENTORY_EMPTY,
    }
)
_CLOCKS: Final = frozenset({ReasonCode.CLOCK_SKEW, ReasonCode.CLOCK_BACKWARDS})
_CLOCK: Final = "clock"
"""Word in a node's warning about its clock."""


def gpu_nodes(facts: Facts) -> tuple[Object, ...]:
    """Nodes with GPUs, by label or by what kubelet offers; raises UnknownError."""
    return tuple(
        one
        for one in facts.all(NODES)
        if labels_of(one).get(PRESENT) == "true"
        or _offers(one)
        or (_is_discovered(one) and _is_for_agents(facts, one))
    )


def _is_kept_off(node: Object) -> bool:
    """Whether a label keeps the agent off for a while."""
    return labels_of(node).get(AGENT) == "off" or _is_paused(node)


def _is_paused(node: Object) -> bool:
    return any(labels_of(node).get(label) in PAUSED for label in OPERATOR)


def _is_discovered(node: Object) -> bool:
    return any(labels_of(node).get(label) == "true" for label in DISCOVERED)


def _is_for_agents(facts: Facts, node: Object) -> bool:
    """Whether agents go there by its labels; before there are agents they may go anywhere."""
    if facts.objects.get(DAEMON_SETS, Fact()).value is None:
        return False
    agents = facts.named(DAEMON_SETS, AGENTS)
    if agents is None:
        return True
    return selects(pod_spec(agents), node)


def fleet_of(facts: Facts, replica: Replica) -> tuple[pb.Node, ...]:
    """Nodes that have shown it GPUs, or should: of a node without any nobody wants evidence.

    What has shown some to another replica should; what a label keeps agents off need not. Raises
    UnknownError.
    """
    away = {name_of(one) for one in facts.all(NODES) if _is_kept_off(one)}
    reported = (x for one in facts.asked for x in one.fleet.value or ())
    expected = {x.name for x in reported if x.state != _UNKNOWN}
    expected |= {name_of(one) for one in gpu_nodes(facts)}
    return tuple(
        x
        for x in replica.fleet.get()
        if x.name not in away and (x.state != _UNKNOWN or x.name in expected)
    )


def whole_fleet(facts: Facts) -> tuple[pb.Node, ...]:
    """Each node as a replica reports it that holds its evidence, if one does.

    Raises UnknownError.
    """
    found: dict[str, pb.Node] = {}
    for replica in facts.asked:
        for one in fleet_of(facts, replica):
            if one.name not in found or one.state == _ELIGIBLE:
                found[one.name] = one
    return tuple(found.values())


def _offers(node: Object) -> bool:
    capacity = (node.get("status") or {}).get("capacity") or {}
    return any(key.startswith(_RESOURCES) and value != "0" for key, value in capacity.items())


def gpu_nodes_are_labelled(facts: Facts) -> Verdict:
    """Whether agents will find their nodes."""
    nodes = gpu_nodes(facts)
    is_installed = facts.named(DAEMON_SETS, AGENTS) is not None
    if not nodes:
        return warned(
            f"no node has the label {PRESENT}=true, none offers GPUs",
            "the label on every node with GPUs: GPU feature discovery sets it",
            f"kubectl label node NODE {PRESENT}=true",
        )
    all_nodes, nodes = nodes, tuple(one for one in nodes if not _is_kept_off(one))
    unlabelled = [one for one in nodes if labels_of(one).get(PRESENT) != "true"]
    bare = [
        name_of(one)
        for one in unlabelled
        if not (_is_for_agents(facts, one) if is_installed else _is_discovered(one))
    ]
    if bare:
        return failed(
            f"without the label {PRESENT}=true: {some(bare)}",
            "the label on every node with GPUs: agents run where it is",
            f"kubectl label node {min(bare)} {PRESENT}=true",
        )
    left_out = [name_of(one) for one in nodes if not _is_for_agents(facts, one)]
    if left_out:
        return failed(
            f"the agents' node selector or affinity leaves out {some(left_out)}",
            "one that every node with GPUs matches",
            f"kubectl -n {facts.namespace} get daemonset {AGENTS} -o yaml",
        )
    if (away := _kept_off(all_nodes)) is not None:
        return away
    if unlabelled and not is_installed:
        found = sorted(map(name_of, unlabelled))
        return warned(
            f"node-feature-discovery's label alone: {some(found)}",
            f"enough for the chart's agents; those of deploy/kustomize need {PRESENT}=true",
            f"kubectl label node {found[0]} {PRESENT}=true",
        )
    return passed(counted(len(nodes), "node"))


def _kept_off(nodes: Iterable[Object]) -> Verdict | None:
    """The warning about those that a label keeps agents off."""
    off = sorted(name_of(one) for one in nodes if labels_of(one).get(AGENT) == "off")
    paused = sorted(name_of(one) for one in nodes if _is_paused(one))
    if off:
        return warned(
            f"the label {AGENT}=off keeps agents off {some(off)}",
            "it on no node, once the driver there is exchanged",
            f"kubectl label node {off[0]} {AGENT}-",
        )
    if paused:
        return warned(
            f"the gpu-operator keeps agents off {some(paused)}",
            "agents there again, once it has changed the driver or the MIG mode",
            f"kubectl get node {paused[0]} -L {','.join(OPERATOR)}",
        )
    return None


def agents_run_everywhere(facts: Facts) -> Verdict:
    """Whether each GPU node has an agent that is ready."""
    found = [one for one in gpu_nodes(facts) if not _is_kept_off(one)]
    nodes = {name_of(one) for one in found}
    if not nodes:
        return not_checked("the cluster has no GPU nodes that agents may go to")
    ready = {one["spec"].get("nodeName", "") for one in facts.all(PODS) if _is_ready_agent(one)}
    missing = nodes - ready
    if missing:
        node = min(missing)
        seen = f"none that is ready on {some(missing)}"
        spire = left_out(facts, (one for one in found if name_of(one) in missing))
        if spire is not None:
            return failed(f"{seen}; {spire.seen}", spire.expected, spire.command)
        return failed(
            seen,
            "an agent that is ready on every GPU node",
            f"kubectl -n {facts.namespace} get pods"
            f" -l app.kubernetes.io/component=agent --field-selector spec.nodeName={node}",
        )
    return passed(f"on {counted(len(nodes), 'node')}")


def _is_ready_agent(pod: Object) -> bool:
    if labels_of(pod).get("app.kubernetes.io/component") != "agent":
        return False
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(x["type"] == "Ready" and x["status"] == "True" for x in conditions)


def evidence_is_fresh(facts: Facts) -> Verdict:
    """Whether each replica holds valid evidence of each node."""
    return of_each(facts, lambda replica: _evidence_of(facts, replica))


def _evidence_of(facts: Facts, replica: Replica) -> Verdict:
    fleet = fleet_of(facts, replica)
    if not fleet:
        return warned("the controller knows no GPU node", "nodes with agents", "gpuwarden nodes")
    out = [one for one in fleet if one.state != _ELIGIBLE]
    if out:
        first = min(out, key=lambda one: one.name)
        return failed(
            some(f"{one.name} is {one.state}{_code(one)}" for one in out),
            "every node eligible: its evidence is valid and its lease runs",
            f"gpuwarden explain node {first.name}",
        )
    least = min(one.fresh_for_ms for one in fleet)
    return passed(f"{counted(len(fleet), 'node')}, for {least // 1000} s at least")


def _code(node: pb.Node) -> str:
    return f" ({node.code})" if node.code else ""


def clocks_agree(facts: Facts) -> Verdict:
    """Whether the nodes' wall clocks are each replica's, and that one is steady."""
    return of_each(facts, lambda replica: _clocks_by(facts, replica))


def _clocks_by(facts: Facts, replica: Replica) -> Verdict:
    fleet = fleet_of(facts, replica)
    suspect = replica.metrics.get().value(names.CLOCK_SUSPECT)
    expected, command = "clocks that are synchronised", "chronyc tracking"
    if suspect:
        return failed("the controller's wall clock moved against boot time", expected, command)
    refused = [one.name for one in fleet if one.code in _CLOCKS]
    if refused:
        return failed(f"evidence refused for its time: {some(refused)}", expected, command)
    off = [f"{one.name}: {text}" for one in fleet for text in one.warnings if _CLOCK in text]
    if off:
        return warned(some(off), expected, command)
    return passed(f"{counted(len(fleet), 'node')} and the controller")


def gpus_are_read(facts: Facts) -> Verdict:
    """Whether NVML and the driver answer on each node."""
    return of_each(facts, lambda replica: _gpus_by(facts, replica))


def _gpus_by(facts: Facts, replica: Replica) -> Verdict:
    fleet = fleet_of(facts, replica)
    unread = [one for one in fleet if one.code in _UNREAD]
    if unread:
        first = min(unread, key=lambda one: one.name)
        return failed(
            some(f"{one.name}: {one.code}" for one in unread),
            "NVML and a driver that read every GPU",
            f"gpuwarden explain node {first.name}",
        )
    lost = [one for one in fleet if one.lost_gpu_count]
    if lost:
        first = min(lost, key=lambda one: one.name)
        return failed(
            some(f"{one.name} has lost {one.lost_gpu_count}" for one in lost),
            "no lost GPU",
            f"gpuwarden explain node {first.name}",
        )
    drivers = sorted({one.driver for one in fleet if one.driver})
    count = sum(one.gpu_count for one in fleet)
    return passed(f"{counted(count, 'GPU')}, driver {', '.join(drivers) or 'not known'}")


def modes_fit(facts: Facts) -> Verdict:
    """Whether kubelet gives GPUs away exactly on nodes of the mode `plugin`."""
    modes = {one.name: one for one in whole_fleet(facts)}
    wrong = []
    for node in facts.all(NODES):
        known = modes.get(name_of(node))
        if known is None or known.state != _ELIGIBLE:
            continue
        if known.mode == "env" and _offers(node):
            wrong.append(f"{name_of(node)} has mode env and a device plugin")
        if known.mode == "plugin" and not _offers(node):
            wrong.append(f"{name_of(node)} has mode plugin and no device plugin")
    if wrong:
        return failed(
            some(wrong),
            "a device plugin on nodes of mode plugin, and none on nodes of mode env",
            "kubectl get nodes -o 'custom-columns=NAME:.metadata.name,"
            "GPUS:.status.capacity.nvidia\\.com/gpu'",
        )
    return passed(_counted(one.mode for one in modes.values()))


def _counted(modes: Iterable[str]) -> str:
    found = list(modes)
    return ", ".join(f"{found.count(x)} of mode {x}" for x in sorted(set(found))) or "no nodes"


def gpus_are_not_shared(facts: Facts) -> Verdict:
    """Whether the device plugin counts a GPU once."""
    shared = [
        name_of(one)
        for one in gpu_nodes(facts)
        if labels_of(one).get(_SHARING, "").lower() not in _UNSHARED
    ]
    if shared:
        return failed(
            f"the device plugin shares GPUs on {some(shared)}",
            "no timeSlicing and no mps in the device plugin's configuration",
            f"kubectl get nodes -L {_SHARING}",
        )
    return passed("every GPU is counted once")


def nodes_are_protected(facts: Facts) -> Verdict:
    """Whether pods that were not admitted are kept off GPU nodes."""

    def judge(replica: Replica) -> Verdict:
        if replica.status.protection == "cluster":
            return passed(replica.status.protection)
        return warned(
            "protection: namespaces: no pod is promised more of its GPUs than `node`",
            "protection: cluster, the policy gpuwarden-protection and the taint",
            "gpuwarden protection check",
        )

    mode = of_each(facts, judge)
    if mode.outcome is not Outcome.PASSED:
        return mode
    managed = {one.name for one in whole_fleet(facts)}
    bare = [name_of(x) for x in facts.all(NODES) if name_of(x) in managed and not _is_tainted(x)]
    if bare:
        return failed(
            f"without the taint {TAINT}:NoExecute: {some(bare)}",
            "the taint on every node of the fleet; `gpuwarden protection check` says whom it"
            " evicts",
            f"kubectl taint node {min(bare)} {TAINT}=:NoExecute",
        )
    return passed(f"{counted(len(managed), 'node')} with the taint")


def _is_tainted(node: Object) -> bool:
    taints = node.get("spec", {}).get("taints") or ()
    return any(x["key"] == TAINT and x["effect"] == "NoExecute" for x in taints)


LABELLED: Final = Check(
    "gpu-nodes",
    "GPU nodes have their label",
    f"Agents run on nodes with `{PRESENT}=true`, which GPU feature discovery sets; the chart's"
    " also where node-feature-discovery sees a device of NVIDIA.",
    gpu_nodes_are_labelled,
)
SHARED: Final = Check(
    "gpu-sharing",
    "the device plugin shares no GPU",
    "With timeSlicing or mps, pods share GPUs.",
    gpus_are_not_shared,
    "binding-webhook.md#after-start",
)
NODES_GROUP: Final = Group(
    "nodes",
    "GPU nodes",
    (
        LABELLED,
        Check(
            "agents",
            "an agent is ready on every GPU node",
            f"Nodes with `{PRESENT}=true`, and nodes whose kubelet offers GPUs. Without a SPIRE"
            " agent on the node none becomes ready.",
            agents_run_everywhere,
            "troubleshooting.md#agents-do-not-reach-the-controller",
        ),
        Check(
            "evidence",
            "every node's evidence is fresh",
            "On each replica.",
            evidence_is_fresh,
            "troubleshooting.md#a-node-has-no-evidence-or-is-stale",
        ),
        Check(
            "clocks",
            "clocks agree",
            "Those of nodes with each replica's.",
            clocks_agree,
            "troubleshooting.md#clocks-differ",
        ),
        Check(
            "driver",
            "NVML and the driver read every GPU",
            "No GPU is lost, no inventory incomplete.",
            gpus_are_read,
            "troubleshooting.md#gpus-cannot-be-read",
        ),
        Check(
            "modes",
            "each node's mode fits its device plugin",
            "On `plugin` nodes kubelet gives GPUs, on `env` nodes it must not.",
            modes_fit,
            "reference/requirements.md#modes-and-guarantees",
        ),
        SHARED,
        VARIABLES,
        RUNTIME,
        Check(
            "protection",
            "GPU nodes are protected",
            f"With `protection: cluster` every node has the taint `{TAINT}:NoExecute`.",
            nodes_are_protected,
            "policies.md#protection",
        ),
    ),
)
