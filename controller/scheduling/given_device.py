"""Whether a GPU that kubelet has given to a pod is one that the pod has asked for. Pure."""

from collections.abc import Mapping

from controller.scheduling.device_choice import named_devices
from controller.scheduling.device_pool import DevicePool, device_wish
from controller.scheduling.guarantee import Guarantee
from controller.scheduling.requirements import Requirements, RequirementsInvalid
from controller.scheduling.selector import Selector
from gpuwarden.reasons import ReasonCode


def is_wished_for(
    needs: Requirements | RequirementsInvalid,
    pool: DevicePool,
    uuid: str,
    named_labels: Mapping[str, Selector],
) -> bool:
    """Whether the wish admits the device; `named_labels` are the policy's.

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
    return device_wish(needs.selector, sorted(needs.labels), named_labels).admits(device)
