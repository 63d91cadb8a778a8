"""Doors in a container's environment. Pure.

A variable that is ours is judged by the injection check, not here: where we write it, the
user's own entry is replaced, and an explicit entry wins over `envFrom`. So `envFrom` opens a
door only where the device plugin's value is the one that counts.
"""

from collections.abc import Iterator

from controller.admission.doors.case import Case
from controller.admission.pod_view import AdmittedContainer
from controller.admission.supply import NVIDIA, Supply
from controller.admission.visible_devices import (
    DEVICE_VARIABLES,
    could_open_devices,
    opens_devices,
)
from controller.scheduling.finding import shown
from gpuwarden.reasons import ReasonCode, Refusal


def environment(case: Case) -> Iterator[Refusal]:
    """Of every container that is there from the pod's creation on."""
    for container in case.pod.all_containers():
        yield from of_container(container, case.supply_of(container))


def of_container(container: AdmittedContainer, supply: Supply) -> Iterator[Refusal]:
    """Of one container."""
    for entry in container.env or ():
        if entry.name in DEVICE_VARIABLES and opens_devices(entry):
            is_replaced = supply is Supply.REFERENCE and entry.name == NVIDIA
            if not is_replaced:
                text = f"container {shown(container.name)} sets {entry.name}"
                yield Refusal(ReasonCode.DOOR_ENV, text)
    is_last = supply is Supply.KUBELET or supply is Supply.UNTOUCHED
    if container.env_from and is_last and any(map(could_open_devices, container.env_from)):
        text = f"container {shown(container.name)} has envFrom without a prefix"
        yield Refusal(ReasonCode.DOOR_ENV_FROM, text)
