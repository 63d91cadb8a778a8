"""Doors through what a container may do on its node. Pure."""

from collections.abc import Iterator
from typing import Final

from controller.admission.doors.case import Case
from controller.admission.pod_view import AdmittedContainer
from controller.scheduling.finding import shown
from gpuwarden.reasons import ReasonCode, Refusal

AS_GOOD_AS: Final = frozenset(
    {"ALL", "BPF", "DAC_READ_SEARCH", "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE", "SYS_RAWIO"}
)
"""Capabilities with which a container opens any device, or any file of its node
(`open_by_handle_at`), or has the node run another kernel (`kexec_load`)."""


def privileged(case: Case) -> Iterator[Refusal]:
    """Privileged containers: they see every device, whatever their environment says."""
    for container in case.pod.all_containers():
        yield from of_container(container)


def of_container(container: AdmittedContainer) -> Iterator[Refusal]:
    """Of one container."""
    context = container.security_context
    if context is None:
        return
    if context.privileged:
        text = f"container {shown(container.name)} is privileged"
        yield Refusal(ReasonCode.DOOR_PRIVILEGED, text)
    added = () if context.capabilities is None else context.capabilities.add or ()
    for capability in added:
        if capability.upper().removeprefix("CAP_") in AS_GOOD_AS:
            text = f"container {shown(container.name)} adds capability {shown(capability)}"
            yield Refusal(ReasonCode.DOOR_PRIVILEGED, text)


def host_processes(case: Case) -> Iterator[Refusal]:
    """Other containers' processes, and through them their devices."""
    if case.pod.spec.host_pid:
        yield Refusal(ReasonCode.DOOR_HOST_PID, "hostPID is set")
