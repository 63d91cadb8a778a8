"""Pages of devices, nodes and reservations from one moment's snapshots. Pure.

Nodes are in the order of their names, devices in PCI bus order, reservations in that of their
ids; a page says after which key the next one begins. Snapshots do not change, so a page can be
made on a thread.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from controller.fleet.view import FleetSnapshot, NodeState, NodeView
from controller.http_api.device_status import NodeUse, shown_devices, status_of, use_on
from controller.http_api.documents import (
    Assignment,
    Device,
    Devices,
    Node,
    Nodes,
    Reservation,
    Reservations,
)
from controller.ledger.record import Holder
from controller.ledger.store import Entry, LedgerSnapshot
from controller.rpc.fleet_messages import node_message
from controller.scheduling.device_facts import Device as DeviceFacts
from controller.scheduling.device_labels import labels_of
from controller.scheduling.selector import Selector

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Moment:
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
class Asked:
    """Which page: at most so many keys, those after `after`."""

    limit: int
    after: str = ""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page."""

    items: T
    next_after: str | None
    """Where the next page begins; None where there is none."""


def device_page(moment: Moment, asked: Asked) -> Page[Devices]:
    """Devices of so many nodes, lost and unhealthy ones included."""
    names, further = _keys(moment.fleet.nodes, asked)
    items: Devices = {}
    for name in names:
        items |= _devices_of(moment, moment.fleet.nodes[name])
    return Page(items, further)


def node_page(moment: Moment, asked: Asked) -> Page[Nodes]:
    """So many nodes."""
    names, further = _keys(moment.fleet.nodes, asked)
    return Page({x: _node(moment.fleet.nodes[x], moment.now_ns) for x in names}, further)


def reservation_page(moment: Moment, asked: Asked) -> Page[Reservations]:
    """So many reservations."""
    ids, further = _keys(moment.ledger.by_reservation, asked)
    return Page({x: _reservation(x, moment.ledger.holding(x)) for x in ids}, further)


def _keys(keys: Iterable[str], asked: Asked) -> tuple[list[str], str | None]:
    found = heapq.nsmallest(asked.limit + 1, (x for x in keys if x > asked.after))
    shown = found[: asked.limit]
    return shown, shown[-1] if len(found) > asked.limit else None


def _devices_of(moment: Moment, node: NodeView) -> Devices:
    if node.acceptance is None:
        return {}
    is_eligible = node.state(moment.now_ns) is NodeState.ELIGIBLE
    use = use_on(node.name, node.acceptance, moment.ledger, is_eligible=is_eligible)
    devices = shown_devices(node.acceptance, moment.ledger)
    return {x.uuid: _device(moment, node.name, x, use) for x in devices}


def _device(moment: Moment, node: str, device: DeviceFacts, use: NodeUse) -> Device:
    entry = moment.ledger.get(device.uuid)
    if entry is None and device.mig is not None:
        entry = moment.ledger.get(device.gpu.uuid)  # held whole, before it was split
    holders = () if entry is None else entry.record.holders
    held = [_assignment(x) for x in holders]
    return Device(
        node=node,
        index=device.gpu.index,
        model=device.gpu.product or "",
        labels=list(labels_of(device, moment.labels)),
        status=status_of(device, holders, use),
        assignment=held[0] if held else None,
        others=held[1:],
    )


def _assignment(holder: Holder) -> Assignment:
    pod = holder.pod
    return Assignment(
        pod.namespace, pod.name or "", pod.uid or "", holder.reservation, holder.state.value
    )


def _node(node: NodeView, now_ns: int) -> Node:
    message = node_message(node, now_ns)
    return Node(
        state=message.state,
        reason=message.code,
        detail=message.detail,
        mode=message.mode,
        level=message.level,
        attestation_hash=message.attestation_hash,
        evidence_digest=message.evidence_digest,
        gpus=message.gpu_count,
        fresh_for_ms=message.fresh_for_ms,
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
