"""What becomes of pods that do not exist yet: admission's answer, and each node's.

Asks the very webhooks that would be asked, and the code of /filter. Nothing is recorded or kept.
Must not decide anything itself.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from controller.admission.made_pods import made_pods
from controller.admission.pod import AdmittedPod
from controller.admission.validation import Judged
from controller.placement.explanation import FitReport
from controller.placement.gpu_map import read_place
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


_AT_ONCE: Final = 2
"""Objects that are asked about; others wait."""


@dataclass(frozen=True, slots=True)
class FitQuery:
    """Asks about two objects at a time; used from one event loop.

    Bytes are read on a thread. Pods are judged on the event loop, whose state the judges share, and
    between two pods it does what else there is to do: an object can have 64.
    """

    everywhere: Placing
    """Of every node."""
    at_its_place: Placing
    """Of the node alone that the pod's map names."""
    rehearse: Rehearsal | None
    """None where no webhook is asked about pods."""
    _few: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def about(self, data: bytes, namespace: str) -> tuple[PodFit, ...]:
        """Of a pod, or of the pods of a workload (JSON). Raises PodDecodeError."""
        async with self._few:
            pods = await asyncio.to_thread(_read, data, namespace)
            found = []
            for pod in pods:
                found.append(await self._of(pod, is_one=len(pods) == 1))
                await asyncio.sleep(0)
            return tuple(found)

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


def _read(data: bytes, namespace: str) -> tuple[AdmittedPod, ...]:
    """Their map is parsed here, and kept for when they are judged."""
    pods = made_pods(data, namespace)
    read_place(pods[0], [])
    return pods
