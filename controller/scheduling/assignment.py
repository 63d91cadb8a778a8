"""Which of a node's devices a pod gets, where nobody but us gives them (mode `env`). Pure.

Named ones as they were named. Otherwise those that leave the least behind: the smallest
group of free devices that is large enough, where an NVLink island is one group and a GPU
beside none is a group by itself. The same question has the same answer on every replica.
"""

from collections.abc import Collection, Sequence

from controller.fleet.view import GpuView
from controller.scheduling.device_choice import DeviceNeeds, free_devices, named_devices
from controller.scheduling.device_facts import Device
from controller.scheduling.device_pool import DevicePool
from controller.scheduling.islands import islands


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
