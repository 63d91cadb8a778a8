"""Bypass checks: the ways in which a pod gets a GPU that gpuwarden has not given it.

All of them run, in this order, and each violation is reported; the first code is the answer's:

1. environment        BYPASS_ENV, BYPASS_ENV_FROM
2. runtime_devices    BYPASS_CDI, BYPASS_NRI
3. host_paths         BYPASS_HOSTPATH
4. device_lists       BYPASS_DEVICE_LIST
5. privileged         BYPASS_PRIVILEGED
6. host_processes     BYPASS_HOST_PID
7. foreign_scheduler, without_binding_webhook    BYPASS_SCHEDULER
8. node_name          BYPASS_NODE_NAME
9. runtime_class      BYPASS_RUNTIME_CLASS
10. claims            BYPASS_CLAIM
11. unmanaged_gpus    BYPASS_RESOURCE

`results` (BYPASS_ANNOTATION) comes before them, `ephemeral` (BYPASS_EPHEMERAL) after them
(`validation`). Must not read the fleet or the ledger: a pod is judged by itself.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from controller.admission.early_reservation import Granted
from controller.admission.gpu_supply import (
    DEVICE_VARIABLES,
    NVIDIA,
    Supply,
    could_open_devices,
    is_replaced,
    opens_devices,
    supply_of,
    supply_without_request,
)
from controller.admission.pod import AdmittedContainer, AdmittedPod
from controller.admission.rules import DEFAULT_SCHEDULER, AdmissionRules
from controller.placement.keys import (
    CDI_ASSIGNMENT,
    RESULT_ANNOTATIONS,
    RUNTIME_DEVICE_PREFIXES,
    SEED_RESULT_ANNOTATIONS,
)
from controller.placement.requirements import Requirements
from gpuwarden.policy.texts import shown
from gpuwarden.reasons import ReasonCode, Refusal


@dataclass(frozen=True, slots=True)
class Case:
    """What a bypass check looks at: one pod with what is known about it."""

    pod: AdmittedPod
    needs: Requirements
    rules: AdmissionRules
    enforced: bool
    """Whether its namespace is."""
    granted: Granted | None = None
    """The reservation that was made for it at its creation."""
    to_be_reserved: bool = False
    """Whether one is made next, on the node that the pod names, unless the pod is refused."""

    def supply_of(self, container: AdmittedContainer) -> Supply:
        """Where the container's GPUs come from."""
        return supply_of(container, self.needs, self.rules.resources)


BypassCheck = Callable[[Case], Iterator[Refusal]]
"""Gives a refusal for each violation."""


# --- annotations and labels

RESULT_KEYS: Final = RESULT_ANNOTATIONS | SEED_RESULT_ANNOTATIONS
_CDI: Final = tuple(prefix for prefix in RUNTIME_DEVICE_PREFIXES if "cdi" in prefix)


def results(pod: AdmittedPod, granted: Granted | None = None) -> Iterator[Refusal]:
    """Keys that only gpuwarden writes; it has, where the pod brings a reservation.

    One refusal names all that is to be removed: who copies a pod has every one of them.
    """
    annotations = frozenset() if granted is not None else frozenset(pod.annotations)
    found = sorted(RESULT_KEYS & {*annotations, *pod.labels})
    if not found:
        return
    others = [CDI_ASSIGNMENT] if CDI_ASSIGNMENT in annotations else []
    also = " and spec.nodeName" if pod.spec.node_name else ""
    text = f"{', '.join((*found, *others))}: gpuwarden alone writes this; remove it{also}"
    yield Refusal(ReasonCode.BYPASS_ANNOTATION, f"{text} (a copy of a managed pod has it)")


def runtime_devices(case: Case) -> Iterator[Refusal]:
    """Annotations by which the runtime or an NRI plugin gives a container devices."""
    for key in case.pod.annotations:
        if key == CDI_ASSIGNMENT and case.granted is not None:
            continue  # it names what is reserved
        if key.startswith(_CDI):
            yield Refusal(ReasonCode.BYPASS_CDI, f"annotation {shown(key)}")
        elif key.startswith(RUNTIME_DEVICE_PREFIXES):
            yield Refusal(ReasonCode.BYPASS_NRI, f"annotation {shown(key)}")


# --- environment


def environment(case: Case) -> Iterator[Refusal]:
    """Variables and `envFrom` by which a container is given devices.

    A variable that gpuwarden writes is judged by the injection check, not here: the user's own
    entry is replaced, and an explicit entry wins over `envFrom`. So `envFrom` is a violation only
    where the device plugin's value is the one that counts.
    """
    for container in case.pod.all_containers():
        yield from environment_of(container, case.supply_of(container))


def environment_of(container: AdmittedContainer, supply: Supply) -> Iterator[Refusal]:
    """Of one container."""
    for entry in container.env or ():
        stays = entry.name != NVIDIA or not is_replaced(entry, supply)
        if stays and entry.name in DEVICE_VARIABLES and opens_devices(entry):
            text = f"container {shown(container.name)} sets {entry.name}"
            yield Refusal(ReasonCode.BYPASS_ENV, text)
    is_last = supply is Supply.KUBELET
    if container.env_from and is_last and any(map(could_open_devices, container.env_from)):
        text = f"container {shown(container.name)} has envFrom without a prefix"
        yield Refusal(ReasonCode.BYPASS_ENV_FROM, text)


# --- privileges

AS_GOOD_AS: Final = frozenset(
    {"ALL", "BPF", "DAC_READ_SEARCH", "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE", "SYS_RAWIO"}
)
"""Capabilities with which a container opens any device, or any file of its node
(`open_by_handle_at`), or has the node run another kernel (`kexec_load`)."""


def privileged(case: Case) -> Iterator[Refusal]:
    """Privileged containers: they see every device, whatever their environment says."""
    for container in case.pod.all_containers():
        yield from privileges_of(container)


def privileges_of(container: AdmittedContainer) -> Iterator[Refusal]:
    """Of one container."""
    context = container.security_context
    if context is None:
        return
    if context.privileged:
        text = f"container {shown(container.name)} is privileged"
        yield Refusal(ReasonCode.BYPASS_PRIVILEGED, text)
    added = () if context.capabilities is None else context.capabilities.add or ()
    for capability in added:
        if capability.upper().removeprefix("CAP_") in AS_GOOD_AS:
            text = f"container {shown(container.name)} adds capability {shown(capability)}"
            yield Refusal(ReasonCode.BYPASS_PRIVILEGED, text)


def host_processes(case: Case) -> Iterator[Refusal]:
    """Other containers' processes, and through them their devices."""
    if case.pod.spec.host_pid:
        yield Refusal(ReasonCode.BYPASS_HOST_PID, "hostPID is set")


# --- device lists: paths that name devices to the container toolkit

_DEVICE_LIST_NAME: Final = "nvidia-container-devices"
DEVICE_LIST: Final = f"/run/{_DEVICE_LIST_NAME}"
"""What is mounted below it names a device to the container toolkit."""


def is_device_list(mount_path: str) -> bool:
    """Whether a mount there names a device to the toolkit."""
    if _DEVICE_LIST_NAME not in mount_path:
        return False  # no way of writing a path leaves out a folder's name
    by_link = f"/var{DEVICE_LIST}"  # /var/run is a link to /run
    return f"{_plain(mount_path)}/".startswith((f"{DEVICE_LIST}/", f"{by_link}/"))


def _plain(path: str) -> str:
    """Without `.`, `..` and doubled slashes."""
    clean = posixpath.normpath(f"/{path}")
    return f"/{clean.lstrip('/')}"


# --- volumes


def host_paths(case: Case) -> Iterator[Refusal]:
    """Volumes of the node's own files.

    Nothing but the very paths that an operator has listed: one pod can put a symbolic link into
    a folder that the next pod mounts, so what a path below it leads to is not to be seen here.
    """
    for volume in case.pod.spec.volumes or ():
        host = volume.host_path
        if host is not None and host.path not in case.rules.host_paths:
            text = f"volume {shown(volume.name)} is hostPath {shown(host.path)}"
            yield Refusal(ReasonCode.BYPASS_HOSTPATH, f"{text} (admission.hostPaths)")


def device_lists(case: Case) -> Iterator[Refusal]:
    """Mounts by which a container names devices."""
    for container in case.pod.all_containers():
        yield from mounts_of(container)


def mounts_of(container: AdmittedContainer) -> Iterator[Refusal]:
    """Of one container: whatever volume is mounted there."""
    for mount in container.volume_mounts or ():
        if is_device_list(mount.mount_path):
            text = f"container {shown(container.name)} mounts {shown(mount.mount_path)}"
            yield Refusal(ReasonCode.BYPASS_DEVICE_LIST, text)


# --- ephemeral containers of a pod that exists


def ephemeral(case: Case, known: frozenset[str]) -> Iterator[Refusal]:
    """Of the containers that are new: not in `known`, by name."""
    supply = supply_without_request(case.needs)
    for container in case.pod.spec.ephemeral_containers or ():
        if container.name in known:
            continue
        for found in (
            *environment_of(container, supply),
            *privileges_of(container),
            *mounts_of(container),
        ):
            yield Refusal(ReasonCode.BYPASS_EPHEMERAL, f"{found.detail} ({found.code})")


# --- scheduler, node and runtime


def foreign_scheduler(case: Case) -> Iterator[Refusal]:
    """A managed pod that names a scheduler which does not ask the extender.

    The default one is what the mutating webhook replaces; that it did, the injection check says.
    """
    name = case.pod.spec.scheduler_name
    known = {None, "", DEFAULT_SCHEDULER, *case.rules.schedulers}
    if case.needs.managed and name not in known and not case.rules.by_affinity:
        allowed = " or ".join(case.rules.schedulers)
        text = f"schedulerName {shown(name or '')}, expected {allowed} (scheduling.schedulerNames)"
        yield Refusal(ReasonCode.BYPASS_SCHEDULER, text)


def without_binding_webhook(case: Case) -> Iterator[Refusal]:
    """A requirement where nobody would look at its pod's binding."""
    if case.needs.managed and case.rules.only_enforced and not case.enforced:
        text = "requirements are for enforced namespaces: elsewhere no scheduler here asks us"
        yield Refusal(ReasonCode.BYPASS_SCHEDULER, text)


def node_name(case: Case) -> Iterator[Refusal]:
    """A managed pod that is on its node already: it never meets the binding webhook.

    Unless its GPUs on just that node were reserved for it before, or are now.
    """
    name, granted = case.pod.spec.node_name, case.granted
    if case.to_be_reserved:
        return
    if case.needs.managed and name and (granted is None or granted.node != name):
        yield Refusal(ReasonCode.BYPASS_NODE_NAME, f"nodeName {shown(name)}")


def runtime_class(case: Case) -> Iterator[Refusal]:
    """A runtime that may give devices by rules of its own."""
    name = case.pod.spec.runtime_class_name
    if name and name not in case.rules.runtime_classes:
        allowed = " or ".join(case.rules.runtime_classes)
        text = f"runtimeClassName {shown(name)}, expected {allowed} (admission.runtimeClasses)"
        yield Refusal(ReasonCode.BYPASS_RUNTIME_CLASS, text)


# --- resources and claims

_IMPLICIT_CLAIM: Final = "deviceclass.resource.kubernetes.io/"
"""Extended resources behind which the scheduler makes a claim by itself (KEP-5004)."""
_GPU_RESOURCE: Final = re.compile(r"nvidia\.com/(?:gpu|mig-|pgpu|vgpu).*", re.DOTALL)


def claims(case: Case) -> Iterator[Refusal]:
    """Claims: which devices they bring cannot be judged yet (mode `dra`)."""
    if case.pod.spec.resource_claims:
        yield Refusal(ReasonCode.BYPASS_CLAIM, "resourceClaims")
    for container in case.pod.all_containers():
        for name in _asked(container):
            if name.startswith(_IMPLICIT_CLAIM):
                text = f"container {shown(container.name)} requests {shown(name)}"
                yield Refusal(ReasonCode.BYPASS_CLAIM, text)


def unmanaged_gpus(case: Case) -> Iterator[Refusal]:
    """GPUs under resource names that are not managed: nobody would guard them."""
    for container in case.pod.all_containers():
        for name in _asked(container):
            if _GPU_RESOURCE.fullmatch(name) and name not in case.rules.resources:
                text = f"container {shown(container.name)} requests {shown(name)}"
                yield Refusal(ReasonCode.BYPASS_RESOURCE, f"{text} (managedResources)")


def _asked(container: AdmittedContainer) -> Iterable[str]:
    asked = container.resources
    return () if asked is None else {**(asked.requests or {}), **(asked.limits or {})}


# --- all checks of a new pod, in order

BYPASS_CHECKS: Final[tuple[BypassCheck, ...]] = (
    environment,
    runtime_devices,
    host_paths,
    device_lists,
    privileged,
    host_processes,
    foreign_scheduler,
    without_binding_webhook,
    node_name,
    runtime_class,
    claims,
    unmanaged_gpus,
)
