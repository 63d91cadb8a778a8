"""What a well-formed account of the use of GPUs is: kubelet's allocations, processes, and pods.

Pure, and only about form and about names: that kubelet speaks of a device which the node does
not have, or gives one device to two containers, happens (a card that fell off, a pod that is
just ending) and is said, not refused. Only `GPU-<uuid>` and `MIG-<uuid>`, also as replicas of
time slicing (`…::3`), name hardware; any other id of a device plugin or DRA driver names none.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from gpuwarden.evidence.inventory_rules import is_gpu_uuid, is_mig_uuid
from gpuwarden.evidence.model import (
    Allocation,
    Evidence,
    EvidenceWithPods,
    GpuProcess,
    Inventory,
)
from gpuwarden.evidence.strict_json import quote

MAX_ALLOCATIONS: Final = 1000
"""Devices of all containers of a node."""
MAX_PROCESSES: Final = 1000
"""Of all GPUs of a node together."""
MAX_PODS: Final = 1024
"""Pods that run on a node; kubelet takes 110 by default."""
_MAX_PID: Final = 2**22
"""PID_MAX_LIMIT of Linux on 64 bits."""
_LISTED: Final = 4

_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_RESOURCE: Final = re.compile(r"[!-~]{1,317}")
"""A qualified name: prefix of 253, slash, 63."""
_DEVICE: Final = re.compile(r"[!-~]{1,317}")
_POD_UID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}"
)
_REPLICA: Final = re.compile(r"(.*)::[0-9]{1,6}")


def use_findings(evidence: Evidence) -> tuple[str, ...]:
    """Everything that is malformed in allocations and processes, one line each."""
    return tuple(_findings(evidence))


def is_allocation(allocation: Allocation) -> bool:
    """Whether every name in it has the form that Kubernetes gives such names."""
    return not tuple(_allocation(allocation))


def device_uuid(device: str) -> str | None:
    """UUID of the GPU or MIG device that a device id of kubelet names, if it names one."""
    replica = _REPLICA.fullmatch(device)
    uuid = replica[1] if replica else device
    return uuid if is_gpu_uuid(uuid) or is_mig_uuid(uuid) else None


def contradictions(evidence: Evidence, enrolled: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Where kubelet's allocations and the hardware contradict each other; few lines, for people.

    `enrolled`: UUIDs that belong to the node whether or not they answer now.
    """
    allocations = evidence.allocations or ()
    known = enrolled | _uuids(evidence.inventory)
    blind = any(x.fact == "migDevices" for x in evidence.failed_reads)
    absent = [
        f"{quote(x.device)} of {quote(x.namespace)}/{quote(x.pod)}"
        for x in allocations
        if (uuid := device_uuid(x.device)) and uuid not in known
        if not (blind and is_mig_uuid(uuid))
    ]
    holders = Counter((x.resource, x.device) for x in allocations)
    twice = [quote(device) for (_, device), count in holders.items() if count > 1]
    lines = (
        _line("allocated but not here", absent),
        _line("allocated to several containers", twice),
    )
    return tuple(x for x in lines if x)


def _uuids(inventory: Inventory) -> frozenset[str]:
    gpus, lost = inventory.gpus, inventory.lost
    migs = (device.uuid for gpu in gpus for device in gpu.mig_devices)
    return frozenset((*(x.uuid for x in gpus), *(x.uuid for x in lost), *migs))


def _findings(evidence: Evidence) -> Iterator[str]:
    allocations, processes = evidence.allocations or (), evidence.processes or ()
    yield from _count("allocations", len(allocations), MAX_ALLOCATIONS)
    for position, allocation in enumerate(allocations[:MAX_ALLOCATIONS]):
        yield from (f"allocations[{position}].{line}" for line in _allocation(allocation))
    if len(set(allocations)) < len(allocations):
        yield "allocations: one appears more than once"
    yield from _count("processes", len(processes), MAX_PROCESSES)
    for position, process in enumerate(processes[:MAX_PROCESSES]):
        yield from (f"processes[{position}].{line}" for line in _process(process))
    if isinstance(evidence, EvidenceWithPods):
        yield from _pods(evidence.pods or ())


def _allocation(allocation: Allocation) -> Iterator[str]:
    yield from _match("namespace", allocation.namespace, _LABEL, "an RFC 1123 label")
    yield from _match("pod", allocation.pod, _SUBDOMAIN, "an RFC 1123 subdomain")
    yield from _match("container", allocation.container, _LABEL, "an RFC 1123 label")
    plain = "1 to 317 printable ASCII characters without blanks"
    yield from _match("resource", allocation.resource, _RESOURCE, plain)
    yield from _match("device", allocation.device, _DEVICE, plain)


def _process(process: GpuProcess) -> Iterator[str]:
    if not (is_gpu_uuid(process.gpu) or is_mig_uuid(process.gpu)):
        yield f"gpu: '{quote(process.gpu)}' is no UUID of a GPU or MIG device"
    if not 0 <= process.pid <= _MAX_PID:
        yield f"pid: {process.pid} is not between 0 and {_MAX_PID}"
    if process.pod_uid is not None:
        yield from _match("podUid", process.pod_uid, _POD_UID, "a pod's UID")


def _pods(pods: tuple[str, ...]) -> Iterator[str]:
    yield from _count("pods", len(pods), MAX_PODS)
    for position, uid in enumerate(pods[:MAX_PODS]):
        yield from _match(f"pods[{position}]", uid, _POD_UID, "a pod's UID")
    if len(set(pods)) < len(pods):
        yield "pods: one appears more than once"


def _match(at: str, value: str, pattern: re.Pattern[str], expected: str) -> Iterator[str]:
    if not pattern.fullmatch(value):
        yield f"{at}: '{quote(value)}' is not {expected}"


def _count(at: str, count: int, highest: int) -> Iterator[str]:
    if count > highest:
        yield f"{at}: {count} entries, at most {highest} are allowed"


def _line(what: str, found: list[str]) -> str:
    more = len(found) - _LISTED
    listed = ", ".join(found[:_LISTED]) + (f" and {more} more" if more > 0 else "")
    return f"{what}: {listed}" if found else ""
