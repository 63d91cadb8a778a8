"""Which bound pods the taint of managed nodes evicts, as Kubernetes decides it (NoExecute).

Pure. Must not know whether a node has the taint.
"""

from dataclasses import dataclass
from typing import Final

from controller.admission.node_selection import tolerates
from controller.admission.pod import AdmittedPod
from controller.fleet.directory import Taint
from controller.placement.keys import MANAGED_EFFECT, MANAGED_TAINT

_TAINT: Final = Taint(MANAGED_TAINT, "", MANAGED_EFFECT)
"""As docs/policies.md has it set."""


@dataclass(frozen=True, slots=True)
class EvictedPod:
    """A bound pod that does not tolerate the taint, or only for a while."""

    node: str
    namespace: str
    name: str
    after_s: int
    """So long after the taint was set."""

    @property
    def key(self) -> str:
        """Its place among all."""
        return f"{self.node}/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Evictions:
    """What was found on so many nodes."""

    nodes: int
    pods: tuple[EvictedPod, ...]


def evicted_after_s(pod: AdmittedPod) -> int | None:
    """How long after the taint was set the pod goes; None where it stays.

    The first toleration that matches counts, whatever others say. Kubelet gives static pods one
    for everything.
    """
    for each in pod.spec.tolerations or ():
        if tolerates(each, _TAINT):
            seconds = each.toleration_seconds
            return None if seconds is None else max(seconds, 0)
    return 0
