"""NVLink islands: GPUs that reach each other over NVLink, directly or by a switch. Pure."""

from collections.abc import Iterable, Sequence

from controller.fleet.view import GpuView
from controller.scheduling.device_facts import Device


def islands(gpus: Iterable[GpuView]) -> list[frozenset[str]]:
    """UUIDs of the GPUs of each island of two or more.

    GPUs belong together when an active link of one ends at the other or at a device
    (an NVSwitch) at which a link of the other ends.
    """
    found: list[tuple[set[str], set[str]]] = []
    for gpu in gpus:
        ends = {gpu.pci_bus_id.lower()}
        ends.update(link.peer.lower() for link in gpu.nvlinks if link.active and link.peer)
        members = {gpu.uuid}
        apart = []
        for other_members, other_ends in found:
            if ends & other_ends:
                members |= other_members
                ends |= other_ends
            else:
                apart.append((other_members, other_ends))
        found = [*apart, (members, ends)]
    return [frozenset(members) for members, _ in found if len(members) > 1]


def breaks_island(count: int, free: Sequence[Device], gpus: Sequence[GpuView]) -> bool:
    """Whether `count` of the free devices can only be had by breaking a wholly free island."""
    uuids = {device.uuid for device in free}
    whole = [island for island in islands(gpus) if island <= uuids]
    loose = len(free) - sum(map(len, whole))
    sums = {0}
    for island in whole:
        sums |= {size + len(island) for size in sums if size + len(island) <= count}
    return not any(count - size <= loose for size in sums)
