"""The devices of one node: which satisfy a pod, which are in use, and which the pod gets.

Mode `env`: only gpuwarden gives devices, so enough matching free ones are needed, or exactly the
named ones. Mode `plugin`: kubelet chooses and nothing steers it, so every device that it could
choose must satisfy the requirement; scheduler and kubelet count, so use does not matter here.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from controller.fleet.view import Acceptance, GpuView
from controller.ledger.occupancy import CardUse, Holders, is_taken, uses_in
from controller.ledger.record import key_of
from controller.placement.requirements import Guarantee, Requirements, RequirementsInvalid
from controller.placement.selector import Device, holds, islands
from controller.policy import NodeMode
from gpuwarden.policy.selector import Selector
from gpuwarden.reasons import ReasonCode

# --- the pool of a node

_MAX_KEPT = 16
_MIG_RESOURCE = "mig-"
_MIG = "MIG-"


def is_mig_resource(resource: str) -> bool:
    """Whether a device plugin gives MIG devices, by their profile, under this name."""
    return resource.rpartition("/")[2].startswith(_MIG_RESOURCE)


@dataclass(frozen=True, slots=True)
class DeviceRequirement:
    """The properties that each device must have. `key` is equal where the meaning is."""

    selectors: tuple[Selector, ...]
    model_labels: tuple[str, ...]
    key: str

    def admits(self, device: Device) -> bool:
        """Whether the device has every property."""
        return all(selector.matches(device.fact) for selector in self.selectors) and all(
            holds(label, device, {}) for label in self.model_labels
        )


def device_requirement(
    selector: Selector | None, labels: Sequence[str], named: Mapping[str, Selector]
) -> DeviceRequirement:
    """Join a pod's selector and labels; `named` are the policy's labels."""
    own = () if selector is None else (selector,)
    selectors = (*own, *(named[label] for label in labels if label in named))
    models = tuple(sorted(label for label in labels if label not in named))
    key = "|".join((*(selector.text for selector in selectors), *models))
    return DeviceRequirement(selectors, models, key)


ANY_DEVICE = DeviceRequirement((), (), "")


@dataclass(frozen=True, slots=True)
class Matching:
    """Devices that have what is required, and those of them without a process."""

    devices: tuple[Device, ...]
    idle: tuple[Device, ...]


class DevicePool:
    """All allocatable devices of one acceptance."""

    def __init__(self, acceptance: Acceptance, before: "DevicePool | None" = None) -> None:
        """`before`: the same node's last one, of which some may still hold."""
        self.acceptance = acceptance
        if before is not None and _same_use(acceptance, before.acceptance):
            vars(self).update((x, y) for x, y in vars(before).items() if x == "pod_uses")
        self._kept: dict[tuple[str, bool], Matching] = {}

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """All of them, in PCI bus order."""
        return tuple(
            device for gpu in self.acceptance.gpus for device in _devices_of(gpu, self.acceptance)
        )

    @cached_property
    def by_uuid(self) -> Mapping[str, Device]:
        """The same by UUID."""
        return {device.uuid: device for device in self.devices}

    @cached_property
    def gpus(self) -> Mapping[int, GpuView]:
        """Every physical GPU by the index that maps use, allocatable or not."""
        return {gpu.index: gpu for gpu in self.acceptance.gpus}

    @cached_property
    def unusable(self) -> tuple[GpuView, ...]:
        """Lost or unhealthy GPUs."""
        return tuple(gpu for gpu in self.acceptance.gpus if _is_unusable(gpu))

    @cached_property
    def pod_uses(self) -> tuple[tuple[CardUse, tuple[str, ...]], ...]:
        """What pods use and kubelet has given, and which of the devices that is about.

        What is said of a GPU is said of each of its parts. A part that is not shown any more is a
        part of one of the whole GPUs, and nobody can tell of which.
        """
        uses = uses_in(self.acceptance)
        if not uses:
            return ()
        about: dict[str, list[str]] = {}
        for device in self.devices:
            for card in {device.uuid, device.gpu.uuid}:
                about.setdefault(card, []).append(device.uuid)
        shown = {mig.uuid for gpu in self.acceptance.gpus for mig in gpu.mig_devices}
        whole = [device.uuid for device in self.devices if device.mig is None]
        return tuple(
            (
                use,
                tuple(
                    whole
                    if use.card.startswith(_MIG) and use.card not in shown
                    else about.get(use.card, ())
                ),
            )
            for use in uses
        )

    def matching(self, requirement: DeviceRequirement, *, whole_only: bool) -> Matching:
        """Devices with the required properties, in PCI bus order."""
        key = (requirement.key, whole_only)
        found = self._kept.get(key)
        if found is None:
            devices = tuple(
                device
                for device in self.devices
                if not (whole_only and device.mig is not None) and requirement.admits(device)
            )
            found = Matching(devices, tuple(device for device in devices if not device.in_use))
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[key] = found
        return found

    def unusable_match(self, requirement: DeviceRequirement) -> bool:
        """Whether a lost or unhealthy GPU would have the properties."""
        host = self.acceptance.host
        return any(
            requirement.admits(Device(gpu.uuid, host, gpu, None, in_use=False))
            for gpu in self.unusable
        )

    @property
    def has_unhealthy(self) -> bool:
        """Whether a GPU still answers, and kubelet could give it away, but must not be used."""
        return any(gpu.lost is None for gpu in self.unusable)

    @cached_property
    def has_split(self) -> bool:
        """Whether a GPU that could be used is split by MIG."""
        return any(gpu.mig is True and not _is_unusable(gpu) for gpu in self.acceptance.gpus)

    def is_unusable(self, uuid: str) -> bool:
        """Whether `uuid` is a lost or unhealthy GPU or a MIG device of one."""
        return any(
            gpu.uuid == uuid or any(mig.uuid == uuid for mig in gpu.mig_devices)
            for gpu in self.unusable
        )

    def choosable(self, resource: str) -> tuple[Device, ...]:
        """What kubelet could choose for a managed resource on a node with a stock device plugin.

        `…/mig-<profile>` means MIG devices of that profile. Any other name means the whole
        GPUs; where there are none, the MIG devices (the plugin's `single` strategy).
        """
        if is_mig_resource(resource):
            profile = resource.rpartition("/")[2].removeprefix(_MIG_RESOURCE)
            return tuple(
                device
                for device in self.devices
                if device.mig is not None and _resource_profile(device.mig.profile) == profile
            )
        whole = tuple(device for device in self.devices if device.mig is None)
        return whole or self.devices


def _same_use(one: Acceptance, other: Acceptance) -> bool:
    """Whether GPUs and accounts are the very objects: so they are where nothing has changed."""
    return (
        one.gpus is other.gpus
        and one.processes is other.processes
        and one.allocations is other.allocations
    )


def _is_unusable(gpu: GpuView) -> bool:
    return gpu.lost is not None or gpu.unhealthy is not None


def _devices_of(gpu: GpuView, acceptance: Acceptance) -> tuple[Device, ...]:
    if _is_unusable(gpu):
        return ()
    used = acceptance.processes_by_gpu
    gpu_used = used.get(gpu.uuid, 0) > 0
    if gpu.mig is not True:
        return (Device(gpu.uuid, acceptance.host, gpu, None, in_use=gpu_used),)
    return tuple(
        Device(mig.uuid, acceptance.host, gpu, mig, in_use=gpu_used or used.get(mig.uuid, 0) > 0)
        for mig in gpu.mig_devices
    )


def _resource_profile(profile: str | None) -> str | None:
    """`1g.10gb+me` is the resource `mig-1g.10gb.me`."""
    return None if profile is None else profile.replace("+", ".")


# --- whether the devices satisfy a pod


@dataclass(frozen=True, slots=True)
class DeviceNeeds:
    """A pod's demands on devices, prepared once per decision."""

    needs: Requirements
    requirement: DeviceRequirement
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
    matching = pool.matching(ask.requirement, whole_only=ask.needs.count > 1)
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
    if len(pool.matching(ask.requirement, whole_only=count > 1).devices) >= count:
        return ReasonCode.GPU_BUSY
    return ReasonCode.GPU_LOST if pool.unusable_match(ask.requirement) else ReasonCode.GPU_NO_MATCH


def _named(pool: DevicePool, ask: DeviceNeeds) -> ReasonCode | None:
    devices = named_devices(pool, ask.needs)
    if isinstance(devices, ReasonCode):
        return devices
    if not all(ask.requirement.admits(device) for device in devices):
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
        if (uuids is None or device.uuid in uuids) and ask.requirement.admits(device)
    ]


# --- devices that pods use


def taken_without_record(
    pool: DevicePool, holders: Holders, busy: Collection[str]
) -> frozenset[str]:
    """UUIDs of the devices that pods have although no record says so."""
    return frozenset(
        uuid
        for use, devices in pool.pod_uses
        if use.card not in busy and is_taken(use, holders)
        for uuid in devices
    )


def used_by_holders_alone(
    pool: DevicePool, holders: Holders, own: Collection[str]
) -> frozenset[str]:
    """Those of `own` whose processes are all of the pods that they are held for.

    What a pod runs already is no reason to move it when it asks once more.
    """
    found = (pool.by_uuid.get(uuid) for uuid in own)
    return frozenset(x.uuid for x in found if x is not None and _is_its_holders(x, pool, holders))


def _is_its_holders(device: Device, pool: DevicePool, holders: Holders) -> bool:
    entry = holders.entries.get(key_of(device.uuid))
    if entry is None:
        return False
    pods = {holder.pod.uid for holder in entry.record.holders} - {None}
    cards = {device.uuid, device.gpu.uuid}
    uids = [x.pod_uid for x in pool.acceptance.processes or () if x.gpu in cards]
    return bool(uids) and all(uid in pods for uid in uids)


# --- assignment in mode `env`


def assigned_devices(
    pool: DevicePool, ask: DeviceNeeds, preferred: Collection[str] = ()
) -> tuple[Device, ...]:
    """The devices, in the order that the container sees; `judge_devices` has let the pod pass.

    `preferred`: UUIDs that an open attempt of the pod holds; taken where they still serve.
    """
    if ask.needs.place is not None or ask.needs.uuids:
        named = named_devices(pool, ask.needs)
        return named if isinstance(named, tuple) else ()
    free, count = free_devices(pool, ask), ask.needs.count
    again = tuple(device for device in free if device.uuid in preferred)
    if len(again) == count == len(preferred):
        return again
    return tightest(free, count, pool.acceptance.gpus)


def tightest(free: Sequence[Device], count: int, gpus: Sequence[GpuView]) -> tuple[Device, ...]:
    """`count` of the free devices, in their order; empty where there are fewer."""
    if count > len(free):
        return ()
    groups = sorted(_groups(free, gpus), key=_size)
    fitting = next((group for group in groups if len(group) >= count), None)
    if fitting is not None:
        return tuple(fitting[:count])
    largest_first = sorted(groups, key=len, reverse=True)
    taken = [device for group in largest_first for device in group][:count]
    return tuple(device for device in free if device in taken)


def _groups(free: Sequence[Device], gpus: Sequence[GpuView]) -> list[list[Device]]:
    whole = [device for device in free if device.mig is None]
    groups = [[device for device in whole if device.uuid in each] for each in islands(gpus)]
    in_island = {device.uuid for group in groups for device in group}
    loose = [[device] for device in free if device.uuid not in in_island]
    return [group for group in (*loose, *groups) if group]


def _size(group: list[Device]) -> tuple[int, int]:
    memory = group[0].fact("memory")
    return len(group), memory if isinstance(memory, int) else 0


# --- devices that kubelet gave


def is_required(
    needs: Requirements | RequirementsInvalid,
    pool: DevicePool,
    uuid: str,
    named_labels: Mapping[str, Selector],
) -> bool:
    """Whether the requirement admits the device; `named_labels` are the policy's.

    A device that has become unusable since is another matter, and so is the node's standing.
    Who accepts any good node with enough devices (`guarantee: node`) has accepted this one.
    """
    if isinstance(needs, RequirementsInvalid):
        return False
    if needs.accepts is Guarantee.NODE or pool.is_unusable(uuid):
        return True
    device = pool.by_uuid.get(uuid)
    if device is None:
        return False
    if needs.place is not None or needs.uuids:
        meant = named_devices(pool, needs)
        if isinstance(meant, ReasonCode) or device not in meant:
            return False
    return device_requirement(needs.selector, sorted(needs.labels), named_labels).admits(device)
