"""A fault of an installation and the check that finds it, and ways to make one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import yaml

from gpuwarden.doctor.catalog import INSTALLED, NOT_YET
from gpuwarden.doctor.check import Outcome, Verdict
from gpuwarden.doctor.facts import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    MUTATING,
    OPERATOR_POLICIES,
    STATEFUL_SETS,
    DryRun,
    Fact,
    Facts,
    UnknownError,
    reading_rights,
)
from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.builders.doctor_facts import (
    CONFIGURATION,
    ROOT,
    Object,
    added,
    changed,
    measured,
    showing,
    told,
)
from tests.builders.fleet_messages import node_message

DAY = timedelta(days=1)
SEEN = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-0302_10de.present")
FAILED, WARNING, NOT_CHECKED = Outcome.FAILED, Outcome.WARNING, Outcome.NOT_CHECKED


@dataclass(frozen=True)
class Fault:
    check: str
    inject: Callable[[Facts], Facts]
    outcome: Outcome
    seen: str
    """A regular expression."""


def rights(right: Any, *, allowed: bool = False) -> Callable[[Facts], Facts]:
    return lambda facts: replace(facts, rights={**facts.rights, right: Fact(allowed)})


def spec(**fields: Any) -> Callable[[Object], object]:
    return lambda found: found["spec"].update(fields)


def labelled(**labels: str) -> Callable[[Object], object]:
    return lambda found: found["metadata"].setdefault("labels", {}).update(labels)


def unlabelled(name: str) -> Callable[[Object], object]:
    return lambda found: found["metadata"]["labels"].pop(name)


def leaving(found: Object) -> None:
    found["metadata"]["deletionTimestamp"] = "2026-03-01T11:00:00Z"


def plugin(strategy: str, image: str = "k8s-device-plugin:v1") -> Object:
    env = [{"name": "DEVICE_LIST_STRATEGY", "value": strategy}]
    container = {"name": "plugin", "image": image, "env": env}
    return {
        "metadata": {"name": "plugin", "namespace": "gpu-operator"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


UNPRIVILEGED = "ACCEPT_NVIDIA_VISIBLE_DEVICES_ENVVAR_WHEN_UNPRIVILEGED"


def toolkit(value: str | None) -> Object:
    env = [] if value is None else [{"name": UNPRIVILEGED, "value": value}]
    container = {"name": "toolkit", "image": "nvcr.io/nvidia/k8s/container-toolkit", "env": env}
    return {
        "metadata": {"name": "toolkit", "namespace": "gpu-operator"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


def cluster_policy(**env: dict[str, str]) -> Object:
    return {
        "metadata": {"name": "cluster-policy"},
        "spec": {
            section: {"env": [{"name": x, "value": y} for x, y in values.items()]}
            for section, values in env.items()
        },
    }


def by_operator(facts: Facts, **env: dict[str, str]) -> Facts:
    """Where the GPU operator runs device plugin and toolkit as it does by default since 25.10.

    Source: NVIDIA/gpu-operator, transformDevicePluginCtrForCDI and transformToolkitCtrForCDI of
    controllers/object_controls.go.
    """
    sets = plugin("cdi-annotations,cdi-cri"), toolkit(None)
    return added(added(facts, DAEMON_SETS, *sets), OPERATOR_POLICIES, cluster_policy(**env))


def agents_with(**security: Any) -> Callable[[Object], object]:
    """Agents with this in their container's securityContext."""
    return lambda found: found["spec"]["template"]["spec"]["containers"][0][
        "securityContext"
    ].update(security)


def privileged(facts: Facts) -> Facts:
    """Agents that the toolkit gives the GPUs whatever it gives others."""
    capabilities = {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    return changed(facts, DAEMON_SETS, "gpuwarden-agent", agents_with(capabilities=capabilities))


def selecting(**labels: str) -> Callable[[Object], object]:
    """A DaemonSet that goes to nodes with these labels alone."""
    return lambda found: found["spec"]["template"]["spec"].update(nodeSelector=labels)


def tolerating(*tolerations: Object) -> Callable[[Object], object]:
    """A DaemonSet whose pods tolerate this and nothing else."""
    return lambda found: found["spec"]["template"]["spec"].update(tolerations=list(tolerations))


def by_discovery(facts: Facts) -> Facts:
    """Agents that also go where node-feature-discovery sees a GPU, as the chart's do."""
    terms = [{"matchExpressions": [{"key": x, "operator": "In", "values": ["true"]}]} for x in SEEN]
    required = {"nodeSelectorTerms": terms}
    node = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

    def inject(found: Object) -> None:
        pods = found["spec"]["template"]["spec"]
        pods["nodeSelector"] = {"kubernetes.io/os": "linux"}
        pods["affinity"] = node

    return changed(facts, DAEMON_SETS, "gpuwarden-agent", inject)


def discovered(name: str) -> Object:
    """A node with a GPU, before there is a device plugin on it."""
    labels = {"kubernetes.io/os": "linux", SEEN[1]: "true"}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {}}


def released(facts: Facts, name: str = "gpuwarden") -> Facts:
    """Installed by Helm."""
    notes = {"meta.helm.sh/release-name": name}
    for collection in (STATEFUL_SETS, DAEMON_SETS, DEPLOYMENTS):
        for one in {x["metadata"]["name"] for x in facts.all(collection)}:
            if one.startswith("gpuwarden-"):
                facts = changed(
                    facts, collection, one, lambda x: x["metadata"].update(annotations=notes)
                )
    return facts


def entries(class_name: str = "", **stats: int) -> list[Object]:
    """The ClusterSPIFFEIDs of deploy/spire, and what a SPIRE controller manager has counted."""
    text = (ROOT / "deploy/spire/clusterspiffeids.yaml").read_text()
    found: list[Object] = list(yaml.safe_load_all(text))
    for one in found:
        if class_name:
            one["spec"]["className"] = class_name
        if stats:
            one["status"] = {"stats": stats}
    return found


def other_entries(class_name: str, **stats: int) -> Object:
    """One as SPIRE's Helm charts make it."""
    return {
        "apiVersion": "spire.spiffe.io/v1alpha1",
        "kind": "ClusterSPIFFEID",
        "metadata": {"name": f"{class_name}-default"},
        "spec": {"className": class_name},
        "status": {"stats": stats},
    }


def without_svids(facts: Facts) -> Facts:
    """Neither controllers nor agents have an SVID."""
    facts = measured(facts, "gpuwarden_svid_expires_seconds", 0)
    facts = told(facts, spire=pb.SpireServer(configured=True, error="no SVID"))
    return showing(facts, *(node_message(x, state="unknown") for x in ("gpu-a1", "gpu-a2")))


def webhook(number: int, change: Callable[[Any], object]) -> Callable[[Object], object]:
    return lambda found: change(found["webhooks"][number])


def rules(webhook: Any, resource: str) -> None:
    for rule in webhook["rules"]:
        rule["resources"] = [x for x in rule["resources"] if x != resource]


def leave_out(name: str) -> Callable[[Any], None]:
    """A webhook is not asked about a namespace."""

    def inject(webhook: Any) -> None:
        (only,) = (
            x for x in webhook["namespaceSelector"]["matchExpressions"] if "metadata" in x["key"]
        )
        only["values"].append(name)

    return inject


def bundle(text: str, *, of: int = 0) -> Callable[[Facts], Facts]:
    def inject(facts: Facts) -> Facts:
        return changed(facts, MUTATING, "gpuwarden-pods", webhook(of, set_bundle(text)))

    return inject


def set_bundle(text: str) -> Callable[[Any], object]:
    return lambda found: found["clientConfig"].update(caBundle=text)


def configured(old: str, new: str) -> Callable[[Facts], Facts]:
    """The scheduler, otherwise."""

    def change(found: Object) -> None:
        text = found["data"]["configuration.yaml"]
        assert old in text
        found["data"]["configuration.yaml"] = text.replace(old, new)

    return lambda facts: changed(facts, CONFIG_MAPS, CONFIGURATION, change)


def listening(**fields: Any) -> Callable[[Facts], Facts]:
    """Listeners that are otherwise."""

    def inject(facts: Facts) -> Facts:
        listeners = []
        for one in facts.asked[0].status.listeners:
            other = pb.Listener()
            other.CopyFrom(one)
            for name in fields:
                other.ClearField(name)  # type: ignore[arg-type] # a name of a field
            other.MergeFrom(pb.Listener(**fields))
            listeners.append(other)
        return told(facts, listeners=listeners)

    return inject


def calling(text: str) -> DryRun:
    start = 'Internal error occurred: failed calling webhook "enforced.pods.gpuwarden.dev": '
    return DryRun(500, {"message": f"{start}failed to call webhook: Post {text}"})


def report(facts: Facts) -> Facts:
    return told(facts, enforcement="report")


def namespaces_only(facts: Facts) -> Facts:
    return told(facts, protection="namespaces")


SPIRE_OFF = pb.SpireServer(configured=False)
A_READING = reading_rights("gpuwarden-system")[0]
PODS_IN = 'pods "x" is forbidden: User "jane" cannot create resource "pods"'


CHECKS = {one.id: one for group in (*INSTALLED, *NOT_YET) for one in group.checks}


def verdict(check: str, facts: Facts) -> Verdict:
    try:
        return CHECKS[check].judge(facts)
    except UnknownError as error:
        return Verdict(NOT_CHECKED, str(error))
