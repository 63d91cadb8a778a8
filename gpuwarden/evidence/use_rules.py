"""What a well-formed account of the use of GPUs is: kubelet's allocations, processes, and pods.

Pure, and only about form and about names; `auxiliary_facts` drops what is malformed. That kubelet
speaks of a device which the node does not have, or gives one device to two containers, happens (a
card that fell off, a pod that is just ending) and is said, not refused. Only `GPU-<uuid>` and
`MIG-<uuid>`, also as replicas of time slicing (`…::3`), name hardware; any other id of a device
plugin or DRA driver names none.
"""

import re
from collections import Counter
from typing import Final

from gpuwarden.evidence.inventory_rules import is_gpu_uuid, is_mig_uuid
from gpuwarden.evidence.model import Allocation, Evidence, GpuProcess, Inventory
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


def is_pid(number: int) -> bool:
    """Whether a process can have this id."""
    return 0 < number <= _MAX_PID


def is_allocation(allocation: Allocation) -> bool:
    """Whether every name in it has the form that Kubernetes gives such names."""
    return bool(
        _LABEL.fullmatch(allocation.namespace)
        and _SUBDOMAIN.fullmatch(allocation.pod)
        and _LABEL.fullmatch(allocation.container)
        and _RESOURCE.fullmatch(allocation.resource)
        and _DEVICE.fullmatch(allocation.device)
    )


def is_process(process: GpuProcess) -> bool:
    """Whether it may be a process on a GPU."""
    return (
        (is_gpu_uuid(process.gpu) or is_mig_uuid(process.gpu))
        and is_pid(process.pid)
        and (process.pod_uid is None or is_pod_uid(process.pod_uid))
    )


def is_pod_uid(text: str) -> bool:
    """Whether `text` may be a pod's UID."""
    return _POD_UID.fullmatch(text) is not None


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


def _line(what: str, found: list[str]) -> str:
    more = len(found) - _LISTED
    listed = ", ".join(found[:_LISTED]) + (f" and {more} more" if more > 0 else "")
    return f"{what}: {listed}" if found else ""
