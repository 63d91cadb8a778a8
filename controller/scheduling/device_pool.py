"""The devices of one node that pods can be given, from its last accepted evidence. Pure.

Lost and unhealthy GPUs and MIG-enabled parents are never among them. The answers to
repeated questions are kept, because the same evidence is asked about by every
filter call until the next evidence replaces it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from controller.fleet.view import Acceptance, GpuView
from controller.ledger.pod_use import CardUse, uses_in
from controller.scheduling.device_facts import Device
from controller.scheduling.device_labels import holds
from controller.scheduling.selector import Selector

_MAX_KEPT = 16
_MIG_RESOURCE = "mig-"
_MIG = "MIG-"


def is_mig_resource(resource: str) -> bool:
    """Whether a device plugin gives MIG devices, by their profile, under this name."""
    return resource.rpartition("/")[2].startswith(_MIG_RESOURCE)


@dataclass(frozen=True, slots=True)
class DeviceWish:
    """The properties that each device must have. `key` is equal where the meaning is."""

    selectors: tuple[Selector, ...]
    model_labels: tuple[str, ...]
    key: str

    def admits(self, device: Device) -> bool:
        """Whether the device has every property."""
        return all(selector.matches(device) for selector in self.selectors) and all(
            holds(label, device, {}) for label in self.model_labels
        )


def device_wish(
    selector: Selector | None, labels: Sequence[str], named: Mapping[str, Selector]
) -> DeviceWish:
    """Join a pod's selector and labels; `named` are the policy's labels."""
    own = () if selector is None else (selector,)
    selectors = (*own, *(named[label] for label in labels if label in named))
    models = tuple(sorted(label for label in labels if label not in named))
    key = "|".join((*(selector.text for selector in selectors), *models))
    return DeviceWish(selectors, models, key)


ANY_DEVICE = DeviceWish((), (), "")


@dataclass(frozen=True, slots=True)
class Matching:
    """Devices that have what is wished for, and those of them without a process."""

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

    def matching(self, wish: DeviceWish, *, whole_only: bool) -> Matching:
        """Devices with the wished properties, in PCI bus order."""
        key = (wish.key, whole_only)
        found = self._kept.get(key)
        if found is None:
            devices = tuple(
                device
                for device in self.devices
                if not (whole_only and device.mig is not None) and wish.admits(device)
            )
            found = Matching(devices, tuple(device for device in devices if not device.in_use))
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[key] = found
        return found

    def unusable_match(self, wish: DeviceWish) -> bool:
        """Whether a lost or unhealthy GPU would have the properties."""
        host = self.acceptance.host
        return any(
            wish.admits(Device(gpu.uuid, host, gpu, None, in_use=False)) for gpu in self.unusable
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
