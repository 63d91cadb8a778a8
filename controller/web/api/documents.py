"""What goes over the HTTP API, as types, and pages of it made from snapshots. Pure.

Keys are written with hyphens (`reservation-id`). Collections are objects whose keys are in
order, so that equal states give equal answers. Nodes are in the order of their names, devices in
PCI bus order, reservations in that of their ids. Snapshots do not change, so a page can be made
on a thread.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import msgspec

from controller.explain.device_status import (
    DeviceStatus,
    NodeUse,
    shown_devices,
    status_of,
    use_on,
)
from controller.fleet.view import FleetSnapshot, NodeState, NodeView
from controller.ledger.record import Holder
from controller.ledger.store import Entry, LedgerSnapshot
from controller.messages import node_message
from controller.placement.selector import Device as FleetDevice
from controller.placement.selector import labels_of
from gpuwarden.policy.selector import Selector

_END = r"$(?!\n)"
"""In Python `$` is also before a last line feed."""
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAMESPACE = f"^{_LABEL}{_END}"
_NAME = rf"^{_LABEL}(?:\.{_LABEL})*{_END}"
_UID = f"^[A-Za-z0-9-]+{_END}"
_RESERVATION = f"^[!-~]+{_END}"
_GPU = f"^(?:GPU|MIG)-[A-Za-z0-9](?:[A-Za-z0-9.-]{{0,246}}[A-Za-z0-9])?{_END}"


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
    serial: str | msgspec.UnsetType | None = msgspec.UNSET
    """Of the GPU; null where the driver reports none, absent for callers without a role."""


class Node(msgspec.Struct, frozen=True, rename="kebab"):
    """A node as it is trusted now."""

    state: str
    """unknown, refused, eligible, stale, revoked or quarantined."""
    reason: str
    """Reason code; empty where the node is eligible."""
    detail: str
    """Empty for callers without a role: it can name serials."""
    mode: str
    """env, plugin, per-gpu or dra."""
    level: str
    """Of the last accepted evidence, as all below; empty where there is none."""
    attestation_hash: str
    evidence_digest: str
    gpus: int
    fresh_for_ms: int
    """0 where the node is not eligible."""
    serials: dict[str, str | None] | msgspec.UnsetType = msgspec.UNSET
    """Of each GPU by its UUID; absent for callers without a role."""


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


# --- pages

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Inventory:
    """What pages are made from."""

    fleet: FleetSnapshot
    ledger: LedgerSnapshot
    labels: Mapping[str, Selector]
    """Of the policy."""
    now_ns: int
    """CLOCK_BOOTTIME."""

    @property
    def is_ledger_known(self) -> bool:
        """Whether the ledger was read, and not too long ago to be shown."""
        return self.now_ns < self.ledger.fresh_until_ns


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which page: at most so many keys, those after `after`, and for whom."""

    limit: int
    after: str = ""
    has_serials: bool = False
    """Whether the caller may see the serials of GPUs."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page."""

    items: T
    next_after: str | None
    """Where the next page begins; None where there is none."""


def device_page(inventory: Inventory, asked: PageRequest) -> Page[Devices]:
    """Devices of so many nodes, lost and unhealthy ones included."""
    names, further = _keys(inventory.fleet.nodes, asked)
    items: Devices = {}
    for name in names:
        items |= _devices_of(inventory, inventory.fleet.nodes[name], asked)
    return Page(items, further)


def node_page(inventory: Inventory, asked: PageRequest) -> Page[Nodes]:
    """So many nodes."""
    names, further = _keys(inventory.fleet.nodes, asked)
    nodes, now_ns = inventory.fleet.nodes, inventory.now_ns
    return Page({x: _node(nodes[x], now_ns, asked) for x in names}, further)


def reservation_page(inventory: Inventory, asked: PageRequest) -> Page[Reservations]:
    """So many reservations."""
    ids, further = _keys(inventory.ledger.by_reservation, asked)
    return Page({x: _reservation(x, inventory.ledger.holding(x)) for x in ids}, further)


def _keys(keys: Iterable[str], asked: PageRequest) -> tuple[list[str], str | None]:
    found = heapq.nsmallest(asked.limit + 1, (x for x in keys if x > asked.after))
    shown = found[: asked.limit]
    return shown, shown[-1] if len(found) > asked.limit else None


def _devices_of(inventory: Inventory, node: NodeView, asked: PageRequest) -> Devices:
    if node.acceptance is None:
        return {}
    is_eligible = node.state(inventory.now_ns) is NodeState.ELIGIBLE
    use = use_on(node.name, node.acceptance, inventory.ledger, is_eligible=is_eligible)
    devices = shown_devices(node.acceptance, inventory.ledger)
    found = {x.uuid: _device(inventory, node.name, x, use) for x in devices}
    if not asked.has_serials:
        return found
    serials = {x.uuid: x.gpu.serial for x in devices}
    return {x: msgspec.structs.replace(it, serial=serials[x]) for x, it in found.items()}


def _device(inventory: Inventory, node: str, device: FleetDevice, use: NodeUse) -> Device:
    entry = inventory.ledger.get(device.uuid)
    if entry is None and device.mig is not None:
        entry = inventory.ledger.get(device.gpu.uuid)  # held whole, before it was split
    holders = () if entry is None else entry.record.holders
    held = [_assignment(x) for x in holders]
    return Device(
        node=node,
        index=device.gpu.index,
        model=device.gpu.product or "",
        labels=list(labels_of(device, inventory.labels)),
        status=status_of(device, holders, use),
        assignment=held[0] if held else None,
        others=held[1:],
    )


def _assignment(holder: Holder) -> Assignment:
    pod = holder.pod
    return Assignment(
        pod.namespace, pod.name or "", pod.uid or "", holder.reservation, holder.state.value
    )


def _node(node: NodeView, now_ns: int, asked: PageRequest) -> Node:
    gpus = () if node.acceptance is None else node.acceptance.gpus
    message = node_message(node, now_ns)
    return Node(
        state=message.state,
        reason=message.code,
        detail=message.detail if asked.has_serials else "",
        mode=message.mode,
        level=message.level,
        attestation_hash=message.attestation_hash,
        evidence_digest=message.evidence_digest,
        gpus=message.gpu_count,
        fresh_for_ms=message.fresh_for_ms,
        serials={x.uuid: x.serial for x in gpus} if asked.has_serials else msgspec.UNSET,
    )


def _reservation(name: str, entries: Iterable[Entry]) -> Reservation:
    parts = [(x.record, holder) for x in entries if (holder := x.record.holder(name)) is not None]
    first, holder = parts[0]
    return Reservation(
        namespace=holder.pod.namespace,
        name=holder.pod.name or "",
        uid=holder.pod.uid or "",
        node=first.node,
        gpus={record.gpu: part.state.value for record, part in parts},
    )
