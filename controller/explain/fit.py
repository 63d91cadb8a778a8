"""What becomes of pods that do not exist yet: admission's answer, and each node's.

Asks the very webhooks that would be asked, and the code of /filter. Nothing is recorded or kept.
Must not decide anything itself.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from controller.admission.made_pods import made_pods
from controller.admission.pod import AdmittedPod
from controller.admission.validation import Judged
from controller.placement.explanation import FitReport
from controller.placement.requirements import Requirements, RequirementsInvalid
from gpuwarden.reasons import Refusal


@dataclass(frozen=True, slots=True)
class PodFit:
    """What becomes of one pod."""

    name: str
    """Empty where all pods of the object are alike."""
    needs: Requirements | RequirementsInvalid
    refusals: tuple[Refusal, ...]
    """Of admission: the pod is not created."""
    warnings: tuple[str, ...]
    report: FitReport | None
    """None for a pod that is not managed, and where no node is asked about."""


Placing = Callable[[AdmittedPod], tuple[Requirements | RequirementsInvalid, FitReport | None]]
"""Verdicts of nodes about a pod."""
Rehearsal = Callable[[AdmittedPod, str], Awaitable[Judged]]
"""What both webhooks would say to a pod of a namespace."""


@dataclass(frozen=True, slots=True)
class FitQuery:
    """Asks about one object at a time; used from one event loop."""

    everywhere: Placing
    """Of every node."""
    at_its_place: Placing
    """Of the node alone that the pod's map names."""
    rehearse: Rehearsal | None
    """None where no webhook is asked about pods."""

    async def about(self, data: bytes, namespace: str) -> tuple[PodFit, ...]:
        """Of a pod, or of the pods of a workload (JSON). Raises PodDecodeError."""
        pods = made_pods(data, namespace)
        return tuple([await self._of(pod, is_one=len(pods) == 1) for pod in pods])

    async def _of(self, pod: AdmittedPod, *, is_one: bool) -> PodFit:
        judged = Judged(concerned=False)
        if self.rehearse is not None:
            judged = await self.rehearse(pod, pod.metadata.namespace or "")
        needs, report = (self.everywhere if is_one else self.at_its_place)(pod)
        is_created = not judged.refusals or judged.early is not None
        return PodFit(
            name="" if is_one else pod.shown_name,
            needs=needs,
            refusals=judged.refusals,
            warnings=judged.warnings,
            report=report if is_created else None,
        )
