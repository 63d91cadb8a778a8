"""Whether one node's devices satisfy a pod, by the node's mode (placement design, section 6). Pure.

`env`: nobody but us gives devices, so enough matching free ones must be there, or
exactly the named ones. `plugin`: kubelet chooses and nothing steers it, so every
device that it could choose must satisfy the wish; scheduler and kubelet do the
counting, so use does not matter here.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from controller.fleet.view import NodeMode
from controller.scheduling.device_facts import Device
from controller.scheduling.device_pool import DevicePool, DeviceWish, Matching
from controller.scheduling.guarantee import Guarantee
from controller.scheduling.requirements import Requirements
from gpuwarden.reasons import ReasonCode


@dataclass(frozen=True, slots=True)
class DeviceNeeds:
    """A pod's demands on devices, prepared once per decision."""

    needs: Requirements
    wish: DeviceWish
    busy: frozenset[str]
    processes_count: bool
    """Whether a device with a running process counts as in use."""
    shared: frozenset[str] = frozenset()
    """Devices whose processes do not count."""
    taken: frozenset[str] = frozenset()
    """Devices of this very node that cannot be given now, besides what is busy."""


def mode_fits(needs: Requirements, mode: NodeMode) -> bool:
    """Whether the pod's own way of getting a device is the node's.

    A pod that needs no device fits every available mode. `per-gpu` and `dra` nodes
    are not available yet, and pods with claims fit only the latter.
    """
    if mode is NodeMode.ENV:
        return not needs.count or not (needs.requests or needs.claims)
    if mode is NodeMode.PLUGIN:
        return not needs.count or bool(needs.requests)
    return False


def judge_devices(pool: DevicePool, mode: NodeMode, ask: DeviceNeeds) -> ReasonCode | None:
    """The code against this node's devices, or None. The mode must fit."""
    if not ask.needs.count:
        return None
    if mode is NodeMode.PLUGIN:
        return _kubelet_chooses(pool, ask)
    if ask.needs.place is not None or ask.needs.uuids:
        return _named(pool, ask)
    return _any_free(pool, ask)


def free_devices(pool: DevicePool, ask: DeviceNeeds) -> Sequence[Device]:
    """Matching devices that nobody has.

    A pod that needs several gets whole GPUs: CUDA lets a process see one MIG device only.
    """
    matching = pool.matching(ask.wish, whole_only=ask.needs.count > 1)
    devices = _idle(matching, ask) if ask.processes_count else matching.devices
    if not ask.busy and not ask.taken:
        return devices
    return tuple(device for device in devices if not _is_anothers(device, ask))


def is_held(device: Device, busy: Collection[str]) -> bool:
    """Whether somebody has the device, or the whole GPU from before it was split."""
    return device.uuid in busy or device.gpu.uuid in busy


def _idle(matching: Matching, ask: DeviceNeeds) -> Sequence[Device]:
    if not ask.shared:
        return matching.idle
    return tuple(x for x in matching.devices if not x.in_use or x.uuid in ask.shared)


def _is_anothers(device: Device, ask: DeviceNeeds) -> bool:
    return is_held(device, ask.busy) or device.uuid in ask.taken


def _any_free(pool: DevicePool, ask: DeviceNeeds) -> ReasonCode | None:
    count = ask.needs.count
    if len(free_devices(pool, ask)) >= count:
        return None
    if len(pool.matching(ask.wish, whole_only=count > 1).devices) >= count:
        return ReasonCode.GPU_BUSY
    return ReasonCode.GPU_LOST if pool.unusable_match(ask.wish) else ReasonCode.GPU_NO_MATCH


def _named(pool: DevicePool, ask: DeviceNeeds) -> ReasonCode | None:
    devices = named_devices(pool, ask.needs)
    if isinstance(devices, ReasonCode):
        return devices
    if not all(ask.wish.admits(device) for device in devices):
        return ReasonCode.GPU_NO_MATCH
    if any(_is_used(device, ask) for device in devices):
        return ReasonCode.GPU_BUSY
    return None


def _is_used(device: Device, ask: DeviceNeeds) -> bool:
    if _is_anothers(device, ask):
        return True
    return ask.processes_count and device.in_use and device.uuid not in ask.shared


def named_devices(pool: DevicePool, needs: Requirements) -> tuple[Device, ...] | ReasonCode:
    """What a map or a UUID list names on this node, in its order; both must mean the same."""
    names = needs.uuids if needs.place is None else needs.place.devices
    uuids = [_uuid_of(pool, name) for name in names]
    for uuid in uuids:
        if uuid is not None and pool.is_unusable(uuid):
            return ReasonCode.GPU_LOST
    devices = tuple(device for uuid in uuids if (device := pool.by_uuid.get(uuid or "")))
    found = {device.uuid for device in devices}
    if len(found) != len(names) or (needs.uuids and found != set(needs.uuids)):
        return ReasonCode.GPU_NO_MATCH
    return devices


def _uuid_of(pool: DevicePool, name: int | str) -> str | None:
    if isinstance(name, str):
        return name
    gpu = pool.gpus.get(name)
    return None if gpu is None else gpu.uuid


def _kubelet_chooses(pool: DevicePool, ask: DeviceNeeds) -> ReasonCode | None:
    needs = ask.needs
    named = needs.place is not None or bool(needs.uuids)
    if named and needs.accepts is None:
        return ReasonCode.EXACT_UNAVAILABLE
    if any(len(pool.choosable(resource)) < count for resource, count in needs.requests):
        return ReasonCode.GPU_LOST if pool.unusable else ReasonCode.GPU_NO_MATCH
    wanted = named_devices(pool, needs) if named else None
    return wanted if isinstance(wanted, ReasonCode) else _any_choice(pool, ask, wanted)


def _any_choice(
    pool: DevicePool, ask: DeviceNeeds, wanted: tuple[Device, ...] | None
) -> ReasonCode | None:
    """Whether each device that kubelet could choose is good; enough are where less is accepted."""
    needs = ask.needs
    choosable = [device for resource, _ in needs.requests for device in pool.choosable(resource)]
    good = _good(choosable, ask, wanted)
    if needs.accepts is Guarantee.NODE:
        return None if len(good) >= needs.count else ReasonCode.GPU_NO_MATCH
    if pool.has_unhealthy:
        return ReasonCode.GPU_LOST
    if len(good) == len(choosable):
        return None
    return ReasonCode.EXACT_UNAVAILABLE if good else ReasonCode.GPU_NO_MATCH


def _good(
    choosable: Iterable[Device], ask: DeviceNeeds, wanted: tuple[Device, ...] | None
) -> list[Device]:
    uuids = None if wanted is None else {device.uuid for device in wanted}
    return [
        device
        for device in choosable
        if (uuids is None or device.uuid in uuids) and ask.wish.admits(device)
    ]
