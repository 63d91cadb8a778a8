"""Which pods may hold one GPU together: those of one declared share group. Pure.

A map declares one where several of its lines name the same devices of the same node. Pods of
one namespace and one owner with such a line share them, nobody else does. A line that stands
alone declares nothing: a pod that is made anew does not share with what is left of the old.
"""

from collections.abc import Mapping

from controller.ledger.record import ShareGroup
from controller.scheduling.gpu_map import Place, parse_gpu_map
from controller.scheduling.pod import Pod
from controller.scheduling.requirements import Requirements, RequirementsInvalid
from controller.scheduling.wish_keys import MAP


def share_group(pod: Pod, needs: Requirements | RequirementsInvalid) -> ShareGroup | None:
    """The group in which the pod may share its devices, or None."""
    if isinstance(needs, RequirementsInvalid) or needs.place is None:
        return None
    namespace, owner = pod.metadata.namespace, controlling_owner(pod)
    if not namespace or owner is None or not _is_shared(pod, needs.place):
        return None
    devices = ",".join(str(device) for device in needs.place.devices)
    return ShareGroup(namespace, owner, f"{needs.place.node}:{devices}")


def controlling_owner(pod: Pod) -> str | None:
    """UID of the object that made the pod."""
    owners = pod.metadata.owner_references or ()
    return next((each.uid for each in owners if each.controller and each.uid), None)


def _is_shared(pod: Pod, place: Place) -> bool:
    places = parse_gpu_map(pod.annotations.get(MAP, ""))
    return isinstance(places, Mapping) and list(places.values()).count(place) > 1
