"""Compares an inventory with what is pinned: lost, changed, and what to pin now.

Pins only narrow. A GPU that is missing is lost and the node stays; a GPU that is new, or
whose serial changed, is another machine until an operator says otherwise.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from controller.fleet.enrollment import EnrollmentRecord, PinnedGpu
from controller.verifier.result import VANISHED
from controller.verifier.seams import Standing
from gpuwarden.evidence.model import Gpu, Inventory, LostGpu
from gpuwarden.evidence.node_identity import serial

UNKNOWN_INDEX = -1
"""Index of a GPU that evidence does not mention."""


def lost_gpus(inventory: Inventory, pins: Mapping[str, PinnedGpu]) -> tuple[LostGpu, ...]:
    """Pinned GPUs that do not answer; before first use those that the agent reports."""
    answering = {x.uuid for x in inventory.gpus}
    reported = {x.uuid: x for x in inventory.lost}
    if not pins:
        return inventory.lost
    missing = (x for x in pins.values() if x.uuid not in answering)
    return tuple(reported.get(x.uuid) or _vanished(x) for x in missing)


def claimed(inventory: Inventory, pins: Mapping[str, PinnedGpu]) -> tuple[str, ...]:
    """The UUIDs that the node would hold by this evidence."""
    lost = (x.uuid for x in inventory.lost if not pins or x.uuid in pins)
    return tuple(sorted({*(x.uuid for x in inventory.gpus), *lost}))


def changes(inventory: Inventory, pins: Mapping[str, PinnedGpu]) -> Iterator[str]:
    """What is other than pinned, one line each; nothing before first use."""
    if not pins:
        return
    for gpu in inventory.gpus:
        pin = pins.get(gpu.uuid)
        if pin is None:
            yield f"{gpu.uuid} is not one of the {len(pins)} pinned GPUs"
        elif _contradicts(pin, gpu):
            yield f"serial of {gpu.uuid} is {serial(gpu.serial)}, {pin.serial} is pinned"


def unpinned_lost(inventory: Inventory, pins: Mapping[str, PinnedGpu]) -> Iterator[str]:
    """Warnings about GPUs reported lost that the node never had."""
    if pins:
        yield from (
            f"{x.uuid} is reported lost but not pinned here"
            for x in inventory.lost
            if x.uuid not in pins
        )


def shown(inventory: Inventory, identity_keys: Mapping[str, str]) -> tuple[PinnedGpu, ...]:
    """The GPUs that answer, as pins that nobody has made yet, sorted by UUID."""
    gpus = (_pin(x, None, identity_keys.get(x.uuid), enrolled=False) for x in inventory.gpus)
    return tuple(sorted(gpus, key=lambda x: x.uuid))


def pinned(
    inventory: Inventory,
    pins: Mapping[str, PinnedGpu],
    identity_keys: Mapping[str, str],
    enrolled: frozenset[str],
) -> tuple[PinnedGpu, ...]:
    """The pins once this evidence is accepted: unread facts filled in, none replaced."""
    gpus = (
        _pin(x, pins.get(x.uuid), identity_keys.get(x.uuid), enrolled=x.uuid in enrolled)
        for x in inventory.gpus
    )
    present = {x.uuid: x for x in gpus}
    lost = {
        x.uuid: PinnedGpu(
            x.uuid, pci_bus_id=x.pci_bus_id, enrolled=x.uuid in enrolled, complete=False
        )
        for x in inventory.lost
        if not pins
    }
    merged = {**lost, **pins, **present}
    return tuple(merged[x] for x in sorted(merged))


def next_record(
    before: EnrollmentRecord | None,
    *,
    node: str,
    node_uid: str | None,
    instance: str,
    standing: Standing,
    gpus: tuple[PinnedGpu, ...],
) -> EnrollmentRecord:
    """The record that has to stand before the evidence counts."""
    base = (before or EnrollmentRecord(node)).answered_by(instance)
    return replace(base, node_uid=node_uid, spire_agent=standing.spire_agent, gpus=gpus)


def _vanished(pin: PinnedGpu) -> LostGpu:
    return LostGpu(
        uuid=pin.uuid, index=UNKNOWN_INDEX, pci_bus_id=pin.pci_bus_id or "", error=VANISHED
    )


def _contradicts(pin: PinnedGpu, gpu: Gpu) -> bool:
    return pin.complete and pin.serial != serial(gpu.serial)


def _pin(gpu: Gpu, pin: PinnedGpu | None, identity_key: str | None, *, enrolled: bool) -> PinnedGpu:
    if pin is not None and pin.complete and (pin.identity_key or not identity_key):
        return pin
    return PinnedGpu(
        uuid=gpu.uuid,
        serial=serial(gpu.serial),
        identity_key=identity_key,
        pci_bus_id=gpu.pci_bus_id,
        enrolled=enrolled if pin is None else pin.enrolled,
    )
