"""Checks of NVIDIA's container runtime: the agents' RuntimeClass, and what images name. Pure."""

from collections.abc import Iterator
from typing import Final

from gpuwarden.doctor.check import Check, Verdict, failed, not_checked, passed, warned
from gpuwarden.doctor.facts import (
    AGENTS,
    DAEMON_SETS,
    OPERATOR_POLICIES,
    RUNTIME_CLASSES,
    Facts,
    name_of,
    pod_spec,
    some,
)

_APPLY: Final = "kubectl apply -k OVERLAY"
_LISTS: Final = "DEVICE_LIST_STRATEGY"
_CDI_ALONE: Final = frozenset({"cdi-cri", "cdi-annotations"})
_UNPRIVILEGED: Final = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"
_PLUGIN_IMAGES: Final = ("k8s-device-plugin",)
_TOOLKIT_IMAGES: Final = ("container-toolkit",)


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
    expected = f"{_UNPRIVILEGED}=false for the container toolkit, or envvar among the strategies"
    if toolkits:
        toolkit = min(toolkits)
        return failed(
            f"{seen}, and {toolkit} does not set {_UNPRIVILEGED}=false:"
            " an image may name every GPU",
            expected,
            f"kubectl set env {toolkit} {_UNPRIVILEGED}=false"
            if toolkit.startswith("daemonset/")
            else f"kubectl edit {toolkit}",
        )
    return warned(
        f"{seen}; the toolkit's settings are on the nodes and not seen from here",
        expected,
        "nvidia-ctk config --in-place --set"
        " accept-nvidia-visible-devices-envvar-when-unprivileged=false",
    )


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
    for one in facts.all(OPERATOR_POLICIES):
        env = (one["spec"].get(section) or {}).get("env") or ()
        values = {x["name"]: x.get("value", "") for x in env}
        if variable in values:
            yield f"clusterpolicy/{name_of(one)}", values[variable]


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
    "Where a device plugin gives CDI devices alone, NVIDIA_VISIBLE_DEVICES of an image may count.",
    images_see_no_other_gpus,
    "threat-model.md",
)
RUNTIME: Final = Check(
    "runtime-class",
    "the agents' RuntimeClass exists",
    "Where the DaemonSet names none, the nodes' default runtime has to be NVIDIA's.",
    runtime_class_exists,
)
RUNTIME_BEFORE: Final = Check(
    "runtime-class-nvidia",
    "there is NVIDIA's RuntimeClass",
    "Agents need NVIDIA's container runtime, by the class `nvidia` or as the nodes' default.",
    runtime_class_before,
)
