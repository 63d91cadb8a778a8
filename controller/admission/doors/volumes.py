"""Doors through volumes: the node's files, and device lists by mount. Pure."""

from collections.abc import Iterator

from controller.admission.doors.case import Case
from controller.admission.doors.paths import is_device_list
from controller.admission.pod_view import AdmittedContainer
from controller.scheduling.finding import shown
from gpuwarden.reasons import ReasonCode, Refusal


def host_paths(case: Case) -> Iterator[Refusal]:
    """Volumes of the node's own files.

    Nothing but the very paths that an operator has listed: one pod can put a symbolic link into
    a folder that the next pod mounts, so what a path below it leads to is not to be seen here.
    """
    for volume in case.pod.spec.volumes or ():
        host = volume.host_path
        if host is not None and host.path not in case.rules.host_paths:
            text = f"volume {shown(volume.name)} is hostPath {shown(host.path)}"
            yield Refusal(ReasonCode.DOOR_HOSTPATH, f"{text} (admission.hostPaths)")


def device_lists(case: Case) -> Iterator[Refusal]:
    """Mounts by which a container names devices."""
    for container in case.pod.all_containers():
        yield from of_container(container)


def of_container(container: AdmittedContainer) -> Iterator[Refusal]:
    """Of one container: whatever volume is mounted there."""
    for mount in container.volume_mounts or ():
        if is_device_list(mount.mount_path):
            text = f"container {shown(container.name)} mounts {shown(mount.mount_path)}"
            yield Refusal(ReasonCode.DOOR_DEVICE_LIST, text)
