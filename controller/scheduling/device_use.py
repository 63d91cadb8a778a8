"""Which of a node's devices the pods that use them stand in the way of, by the ledger's rule. Pure.

What the ledger holds for others is told by the scene (`busy`) and not looked at again: here it is
about the rest, which has no record, or one of the pod's own or of its share group.
"""

from collections.abc import Collection

from controller.ledger.pod_use import Holders, is_taken
from controller.ledger.record import key_of
from controller.scheduling.device_facts import Device
from controller.scheduling.device_pool import DevicePool


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
