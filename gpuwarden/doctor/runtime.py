"""Checks of NVIDIA's container runtime: the agents' RuntimeClass, and what images name. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import Any, Final

from gpuwarden.doctor.check import Check, Verdict, failed, not_checked, passed, warned
from gpuwarden.doctor.facts import (
    AGENTS,
    DAEMON_SETS,
    OPERATOR_POLICIES,
    RUNTIME_CLASSES,
    Facts,
    Object,
    name_of,
    pod_spec,
    some,
)

_APPLY: Final = "kubectl apply -k OVERLAY"
_LISTS: Final = "DEVICE_LIST_STRATEGY"
_CDI_ALONE: Final = frozenset({"cdi-cri", "cdi-annotations"})
_UNPRIVILEGED: Final = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"
_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
_NOTHING: Final = frozenset({"", "none", "void"})
_PLUGIN_IMAGES: Final = ("k8s-device-plugin",)
_TOOLKIT_IMAGES: Final = ("container-toolkit",)
_OTHER_WAY: Final = (
    "agent.gpuAccess=privileged for gpuwarden's agents (kustomize: the component"
    " gpu-access-privileged)"
)
"""How agents reach the GPUs where the toolkit takes no variables of unprivileged containers."""


def images_see_no_other_gpus(facts: Facts) -> Verdict:
    """Whether an image's own NVIDIA_VISIBLE_DEVICES could show every GPU (N13)."""
    plugins = dict(_settings(facts, _PLUGIN_IMAGES, _LISTS, "devicePlugin"))
    if not plugins:
        return not_checked("no DaemonSet of NVIDIA's device plugin is seen")
    alone = {
        where: text
        for where, text in plugins.items()
        if text and set(text.replace(" ", "").split(",")) <= _CDI_ALONE
    }
    if not alone:
        return passed("the device plugin sets NVIDIA_VISIBLE_DEVICES in containers")
    toolkits = dict(_settings(facts, _TOOLKIT_IMAGES, _UNPRIVILEGED, "toolkit"))
    if toolkits and all(text.lower() == "false" for text in toolkits.values()):
        return passed("the toolkit takes no variables of unprivileged containers")
    where, text = min(alone.items())
    seen = f"{where} has {_LISTS}={text}"
    if not toolkits:
        seen += "; the toolkit's settings are on the nodes and not seen from here"
        return warned(seen, *_repair(facts, ""))
    toolkit = min(one for one, text in toolkits.items() if text.lower() != "false")
    seen += (
        f", and {toolkit} does not set {_UNPRIVILEGED}=false: where a pod runs with NVIDIA's"
        " runtime, its image may name every GPU"
    )
    judged = failed if _is_protected(facts) else warned
    return judged(seen, *_repair(facts, toolkit))


def _repair(facts: Facts, toolkit: str) -> tuple[str, str]:
    """What is expected, and the next command to it: agents keep their GPUs."""
    if _has_env_nodes(facts):
        return (
            f"{_UNPRIVILEGED}=false on nodes of mode plugin; nodes of mode env need the variables",
            "gpuwarden nodes -o wide",
        )
    agents = facts.named(DAEMON_SETS, AGENTS)
    if agents is not None and _needs_the_variable(agents):
        expected = (
            f"first {_OTHER_WAY}, without which they lose the GPUs; then {_UNPRIVILEGED}=false"
            " for the container toolkit: run this check again for its command"
        )
        return expected, facts.reapply(_APPLY, "agent.gpuAccess=privileged")
    before = "" if agents is not None else f", and {_OTHER_WAY} when you install"
    return f"{_UNPRIVILEGED}=false for the container toolkit{before}", _refusal(facts, toolkit)


def _is_protected(facts: Facts) -> bool:
    """Whether somebody has asked that pods see their own GPUs alone."""
    replicas = facts.replicas.value
    return replicas is not None and any(x.status.protection == "cluster" for x in replicas.asked)


def _has_env_nodes(facts: Facts) -> bool:
    """Whether there are nodes on which the variable is how pods get their GPUs."""
    replicas = facts.replicas.value
    asked = () if replicas is None else replicas.asked
    return any(node.mode == "env" for one in asked for node in one.fleet.value or ())


def _needs_the_variable(agents: Object) -> bool:
    """Whether agents have their GPUs by it, without the capability that makes it count anyway."""
    for container in pod_spec(agents)["containers"]:
        security = container.get("securityContext") or {}
        added = (security.get("capabilities") or {}).get("add") or ()
        if security.get("privileged") or {"SYS_ADMIN", "ALL"} & set(added):
            continue
        env = container.get("env") or ()
        if any(x["name"] == _VISIBLE and x.get("value", "") not in _NOTHING for x in env):
            return True
    return False


def _refusal(facts: Facts, toolkit: str) -> str:
    """The command that has the toolkit refuse variables.

    The GPU operator resets its DaemonSets: there its ClusterPolicy is patched, and what its list
    of variables has besides is kept. Without a `toolkit` it is a program of the nodes.
    """
    if not toolkit:
        return (
            "nvidia-ctk config --in-place --set"
            " accept-nvidia-visible-devices-envvar-when-unprivileged=false"
        )
    for policy in _policies(facts, "toolkit"):
        patch = json.dumps(_patch(policy), separators=(",", ":"))
        return f"kubectl patch clusterpolicy {name_of(policy)} --type=json -p {quote(patch)}"
    return f"kubectl set env {toolkit} {_UNPRIVILEGED}=false"


def _patch(policy: Object) -> list[dict[str, Any]]:
    """A JSON patch; a merge patch would replace the whole list."""
    entry = {"name": _UNPRIVILEGED, "value": "false"}
    env = _variables(policy, "toolkit")
    numbers = [number for number, one in enumerate(env) if one["name"] == _UNPRIVILEGED]
    if numbers:
        at = f"/spec/toolkit/env/{numbers[-1]}"
        return [
            {"op": "test", "path": f"{at}/name", "value": _UNPRIVILEGED},
            {"op": "add", "path": f"{at}/value", "value": "false"},
        ]
    if env:
        return [{"op": "add", "path": "/spec/toolkit/env/-", "value": entry}]
    if policy["spec"].get("toolkit"):
        return [{"op": "add", "path": "/spec/toolkit/env", "value": [entry]}]
    return [{"op": "add", "path": "/spec/toolkit", "value": {"env": [entry]}}]


def _settings(
    facts: Facts, images: tuple[str, ...], variable: str, section: str
) -> Iterator[tuple[str, str]]:
    """Where such a program runs, as kubectl names it, and its variable; empty where it has none."""
    for one in facts.all(DAEMON_SETS):
        for container in pod_spec(one)["containers"]:
            if any(x in container.get("image", "") for x in images) and name_of(one) != AGENTS:
                values = {x["name"]: x.get("value", "") for x in container.get("env") or ()}
                where = f"daemonset/{name_of(one)} -n {one['metadata']['namespace']}"
                yield where, values.get(variable, "")
    for one in _policies(facts, section):
        values = {x["name"]: x.get("value", "") for x in _variables(one, section)}
        if variable in values:
            yield f"clusterpolicy/{name_of(one)}", values[variable]


def _policies(facts: Facts, section: str) -> Iterator[Object]:
    """Those by which the GPU operator runs such a program."""
    for one in facts.all(OPERATOR_POLICIES):
        if (one["spec"].get(section) or {}).get("enabled") is not False:
            yield one


def _variables(policy: Object, section: str) -> Sequence[Mapping[str, Any]]:
    return (policy["spec"].get(section) or {}).get("env") or ()


def runtime_class_exists(facts: Facts) -> Verdict:
    """Whether the agents' RuntimeClass is there."""
    agents = facts.named(DAEMON_SETS, AGENTS)
    if agents is None:
        return failed(f"no DaemonSet {AGENTS}", "an agent on every GPU node", facts.reapply(_APPLY))
    wanted = pod_spec(agents).get("runtimeClassName")
    there = {name_of(one) for one in facts.all(RUNTIME_CLASSES)}
    if wanted is None:
        return passed("agents use the nodes' default runtime")
    if wanted not in there:
        return failed(
            f"agents name the RuntimeClass {wanted}, and there is none",
            f"one of: {some(there) or 'none is there'}",
            "kubectl get runtimeclasses",
        )
    return passed(wanted)


def runtime_class_before(facts: Facts) -> Verdict:
    """Whether there is NVIDIA's RuntimeClass, before agents are there."""
    there = {name_of(one) for one in facts.all(RUNTIME_CLASSES)}
    if "nvidia" in there:
        return passed("nvidia")
    return warned(
        "no RuntimeClass nvidia",
        "that class, or NVIDIA's runtime as the default of GPU nodes",
        "kubectl get runtimeclasses",
    )


VARIABLES: Final = Check(
    "device-variables",
    "no image can name GPUs that its pod has not got",
    "Where a device plugin gives CDI devices alone, as the GPU operator's does since 25.10,"
    " NVIDIA_VISIBLE_DEVICES of an image counts in pods with NVIDIA's runtime. A warning, and"
    " failed with `protection: cluster`.",
    images_see_no_other_gpus,
    "threat-model.md",
)
RUNTIME: Final = Check(
    "runtime-class",
    "the agents' RuntimeClass exists",
    "Without one, NVIDIA's runtime has to be the nodes' default.",
    runtime_class_exists,
)
RUNTIME_BEFORE: Final = Check(
    "runtime-class-nvidia",
    "there is NVIDIA's RuntimeClass",
    "Or NVIDIA's container runtime is the nodes' default.",
    runtime_class_before,
)
