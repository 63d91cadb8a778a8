"""Where a device stands: reserved, in use without a reservation, free, and what else. Pure.

Records come first, then what the node's last accepted evidence says.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from controller.fleet.view import Acceptance, GpuView
from controller.ledger.record import Holder, HolderState, key_of
from controller.ledger.release import card_of
from controller.ledger.store import LedgerSnapshot
from controller.placement.devices import DevicePool
from controller.placement.selector import Device as FleetDevice


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
    """Lost, or with failure notices since the last evidence; a part whose GPU is."""
    IN_USE = "in-use"
    """The last evidence saw a process on it, or that kubelet has given it, and no reservation
    explains it; or somebody has a part of a GPU of its node that is not shown any more."""
    FREE = "free"


_PART: Final = key_of("MIG-")
_HELD: Final = (
    (HolderState.CONFIRMED, DeviceStatus.ASSIGNED),
    (HolderState.PROPOSED, DeviceStatus.PENDING),
    (HolderState.RELEASING, DeviceStatus.RELEASING),
)


@dataclass(frozen=True, slots=True)
class NodeUse:
    """What is said of a node's devices besides their records."""

    is_eligible: bool
    given: frozenset[str]
    """Keys of what kubelet has given."""
    is_part_hidden: bool
    """Whether a MIG device is in use that the node does not show any more.

    Then no GPU is free whole, because it is not known which GPU the device belonged to."""


def use_on(
    node: str, accepted: Acceptance, ledger: LedgerSnapshot, *, is_eligible: bool
) -> NodeUse:
    """PageRequest once per node."""
    uuids = (card_of(x.device) for x in accepted.allocations or ())
    given = frozenset(key_of(x) for x in uuids if x is not None)
    shown = {key_of(mig.uuid) for gpu in accepted.gpus for mig in gpu.mig_devices}
    had = {x for x in given if x.startswith(_PART)} | set(map(key_of, ledger.parts_on(node)))
    return NodeUse(is_eligible, given, not had <= shown)


def shown_devices(accepted: Acceptance, ledger: LedgerSnapshot) -> list[FleetDevice]:
    """What pods can be given, could be given if its GPU were well, or hold; in PCI bus order.

    A GPU that is split is shown as its parts. One that has none yet is shown only while it is held.
    """
    usable = DevicePool(accepted).devices
    there = {device.gpu.uuid for device in usable}
    others = [
        device
        for gpu in accepted.gpus
        if gpu.uuid not in there and (_is_unusable(gpu) or ledger.get(gpu.uuid) is not None)
        for device in _parts_or_whole(gpu, accepted)
    ]
    return sorted((*usable, *others), key=lambda x: x.gpu.index)


def status_of(device: FleetDevice, holders: Iterable[Holder], use: NodeUse) -> DeviceStatus:
    """The first that is true.

    Records come first: whatever is held is shown as held. The node's last accepted evidence says
    the rest, and a device is free only where nothing of it says otherwise.
    """
    states = {x.state for x in holders}
    for state, shown in _HELD:
        if state in states:
            return shown
    if not use.is_eligible:
        return DeviceStatus.UNATTESTED
    if _is_unusable(device.gpu):
        return DeviceStatus.UNHEALTHY
    return DeviceStatus.IN_USE if _is_used(device, use) else DeviceStatus.FREE


def _is_used(device: FleetDevice, use: NodeUse) -> bool:
    """Whether it is in use without a record."""
    if device.in_use or not use.given.isdisjoint(map(key_of, (device.uuid, device.gpu.uuid))):
        return True
    return device.mig is None and use.is_part_hidden


def _parts_or_whole(gpu: GpuView, accepted: Acceptance) -> Iterator[FleetDevice]:
    """Devices whose use is not asked for."""
    if not gpu.mig or not gpu.mig_devices:
        yield FleetDevice(gpu.uuid, accepted.host, gpu, None, in_use=False)
        return
    for mig in gpu.mig_devices:
        yield FleetDevice(mig.uuid, accepted.host, gpu, mig, in_use=False)


def _is_unusable(gpu: GpuView) -> bool:
    return gpu.lost is not None or gpu.unhealthy is not None
