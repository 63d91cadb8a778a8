"""All doors of a new pod, in the order in which they are told. Pure."""

from typing import Final

from controller.admission.doors import (
    annotations,
    environment,
    placement,
    privileges,
    resources,
    volumes,
)
from controller.admission.doors.case import Door

DOORS: Final[tuple[Door, ...]] = (
    environment.environment,
    annotations.runtime_devices,
    volumes.host_paths,
    volumes.device_lists,
    privileges.privileged,
    privileges.host_processes,
    placement.foreign_scheduler,
    placement.without_gate,
    placement.node_name,
    placement.runtime_class,
    resources.claims,
    resources.unmanaged_gpus,
)
