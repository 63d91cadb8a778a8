"""What goes over the HTTP API, as types; the OpenAPI document is made from them. Pure.

Keys are written with hyphens (`reservation-id`). Collections are objects whose keys are in
order, so that equal states give equal answers.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

_END = r"$(?!\n)"
"""In Python `$` is also before a last line feed."""
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAMESPACE = f"^{_LABEL}{_END}"
_NAME = rf"^{_LABEL}(?:\.{_LABEL})*{_END}"
_UID = f"^[A-Za-z0-9-]+{_END}"
_RESERVATION = f"^[!-~]+{_END}"
_GPU = f"^(?:GPU|MIG)-[A-Za-z0-9](?:[A-Za-z0-9.-]{{0,246}}[A-Za-z0-9])?{_END}"


class DeviceStatus(StrEnum):
    """Where a device stands; the first that is true."""

    ASSIGNED = "assigned"
    """Reserved for a pod that is bound."""
    PENDING = "pending"
    """Reserved for a pod that is not known to be bound."""
    RELEASING = "releasing"
    """Its pod has ended, its processes may not have."""
    UNATTESTED = "unattested"
    """The node's evidence is refused or too old."""
    UNHEALTHY = "unhealthy"
    """Lost, or with bad news since the last evidence; a part whose GPU is."""
    IN_USE = "in-use"
    """The last evidence saw a process on it, or that kubelet has given it, and no reservation
    explains it; or somebody has a part of a GPU of its node that is not shown any more."""
    FREE = "free"


class Assignment(msgspec.Struct, frozen=True, rename="kebab"):
    """One pod that holds a device."""

    namespace: str
    name: str
    """Empty while the API server has given none."""
    uid: str
    """Empty while the pod is unborn."""
    reservation_id: str
    state: str
    """Proposed, Confirmed or Releasing."""


class Device(msgspec.Struct, frozen=True, rename="kebab"):
    """A GPU of accepted evidence, or a MIG device in the place of its GPU."""

    node: str
    index: int
    """Of the physical GPU, in PCI bus order."""
    model: str
    """Empty where the driver does not say."""
    labels: list[str]
    """That pods can ask for, sorted."""
    status: DeviceStatus
    assignment: Assignment | None
    """Who holds it; of a share group the first."""
    others: list[Assignment]
    """Further holders: of a share group."""


class Node(msgspec.Struct, frozen=True, rename="kebab"):
    """A node as it is trusted now."""

    state: str
    """unknown, refused, eligible, stale, revoked or quarantined."""
    reason: str
    """Reason code; empty where the node is eligible."""
    detail: str
    mode: str
    """env, plugin, per-gpu or dra."""
    level: str
    """Of the last accepted evidence, as all below; empty where there is none."""
    attestation_hash: str
    evidence_digest: str
    gpus: int
    fresh_for_ms: int
    """0 where the node is not eligible."""


class Reservation(msgspec.Struct, frozen=True, rename="kebab"):
    """What one reservation holds."""

    namespace: str
    name: str
    uid: str
    node: str
    gpus: dict[str, str]
    """UUID to state."""


class FinalizeRequest(msgspec.Struct, frozen=True, rename="kebab"):
    """A pod's word that it is bound, for one of its GPUs."""

    namespace: Annotated[str, msgspec.Meta(pattern=_NAMESPACE)]
    name: Annotated[str, msgspec.Meta(pattern=_NAME, max_length=253)]
    uid: Annotated[str, msgspec.Meta(pattern=_UID, max_length=128)]
    reservation_id: Annotated[str, msgspec.Meta(pattern=_RESERVATION, max_length=253)]
    gpu_uuid: Annotated[str, msgspec.Meta(pattern=_GPU)]


class Done(msgspec.Struct, frozen=True):
    """The confirmation stands, by this call or an earlier one."""

    status: str = "ok"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why there is no answer."""

    error: str
    code: str = ""
    """Reason code; none of requests that are no requests of this API, nor where nobody decided."""


Devices = dict[str, Device]
"""By UUID, in the order of nodes and of their GPUs."""
Nodes = dict[str, Node]
"""By name, in order."""
Reservations = dict[str, Reservation]
"""By reservation id, in order."""
