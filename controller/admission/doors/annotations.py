"""Doors in a pod's annotations and labels. Pure."""

from collections.abc import Iterator
from typing import Final

from controller.admission.doors.case import Case
from controller.admission.early import Granted
from controller.admission.pod_view import AdmittedPod
from controller.scheduling.finding import shown
from controller.scheduling.reserved_keys import RUNTIME_DEVICE_PREFIXES
from controller.scheduling.wish_keys import (
    CDI_ASSIGNMENT,
    RESULT_ANNOTATIONS,
    SEED_RESULT_ANNOTATIONS,
)
from gpuwarden.reasons import ReasonCode, Refusal

RESULT_KEYS: Final = RESULT_ANNOTATIONS | SEED_RESULT_ANNOTATIONS
_CDI: Final = tuple(prefix for prefix in RUNTIME_DEVICE_PREFIXES if "cdi" in prefix)


def results(pod: AdmittedPod, granted: Granted | None = None) -> Iterator[Refusal]:
    """Keys that only we write, where we have not: with a reservation of ours we have."""
    annotations = frozenset() if granted is not None else frozenset(pod.annotations)
    for key in sorted(RESULT_KEYS & {*annotations, *pod.labels}):
        yield Refusal(ReasonCode.DOOR_ANNOTATION, f"{key} is not for a pod to bring")


def runtime_devices(case: Case) -> Iterator[Refusal]:
    """Annotations by which the runtime or an NRI plugin gives a container devices."""
    for key in case.pod.annotations:
        if key == CDI_ASSIGNMENT and case.granted is not None:
            continue  # it names what is reserved
        if key.startswith(_CDI):
            yield Refusal(ReasonCode.DOOR_CDI, f"annotation {shown(key)}")
        elif key.startswith(RUNTIME_DEVICE_PREFIXES):
            yield Refusal(ReasonCode.DOOR_NRI, f"annotation {shown(key)}")
