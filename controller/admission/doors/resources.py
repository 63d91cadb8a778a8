"""Doors through what kubelet and DRA drivers give out past the managed resources. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from controller.admission.doors.case import Case
from controller.admission.pod_view import AdmittedContainer
from controller.scheduling.finding import shown
from gpuwarden.reasons import ReasonCode, Refusal

_IMPLICIT_CLAIM: Final = "deviceclass.resource.kubernetes.io/"
"""Extended resources behind which the scheduler makes a claim by itself (KEP-5004)."""
_NVIDIA: Final = "nvidia.com/"
_GPU_RESOURCE: Final = re.compile(r"nvidia\.com/(?:gpu|mig-|pgpu|vgpu).*", re.DOTALL)


def claims(case: Case) -> Iterator[Refusal]:
    """Claims: which devices they bring cannot be judged yet (mode `dra`)."""
    if case.pod.spec.resource_claims:
        yield Refusal(ReasonCode.DOOR_CLAIM, "resourceClaims")
    for container in case.pod.all_containers():
        for name in _asked(container):
            if name.startswith(_IMPLICIT_CLAIM):
                text = f"container {shown(container.name)} requests {shown(name)}"
                yield Refusal(ReasonCode.DOOR_CLAIM, text)


def unmanaged_gpus(case: Case) -> Iterator[Refusal]:
    """GPUs under resource names that are not managed: nobody would guard them."""
    for container in case.pod.all_containers():
        for name in _asked(container):
            if not name.startswith(_NVIDIA):
                continue
            if _GPU_RESOURCE.fullmatch(name) and name not in case.rules.resources:
                text = f"container {shown(container.name)} requests {shown(name)}"
                yield Refusal(ReasonCode.DOOR_RESOURCE, f"{text} (managedResources)")


def _asked(container: AdmittedContainer) -> Iterable[str]:
    asked = container.resources
    return () if asked is None else {**(asked.requests or {}), **(asked.limits or {})}
