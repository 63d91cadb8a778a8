"""Events on pods that wait where no scheduler asks the extender (`scheduling.mode: affinity`).

kube-scheduler sees a label there that no node has, and its own event says no more than that. The
replica that leads says of each such pod what gpuwarden has against the nodes, with numbers.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, MutableMapping
from typing import Any, Final, NoReturn

from controller.admission.pod import AdmittedPod
from controller.kube.pods.events import Notice, Regarding, Severity
from controller.placement.explanation import PodExplanation
from gpuwarden.counted import counted
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode, Refusal

REASON: Final = "PodNotPlaced"
LOOK_SECONDS: Final = 10.0
MOST_PODS: Final = 512
"""Pods that are told about in one look; the rest has its turn when some of them are gone."""
AGAIN_NS: Final = 300 * NS_PER_S
"""The same is said again after this time; other numbers at once: `EventSeries` merges them."""

AskWhy = Callable[[AdmittedPod, MutableMapping[Hashable, PodExplanation]], PodExplanation]
"""Why a pod waits; what is found is kept in the mapping, which is new for each look."""


def waiting_notice(pod: AdmittedPod, found: PodExplanation) -> Notice | None:
    """Why no node is offered to the pod; None where one is."""
    against = _against(found)
    if against is None:
        return None
    meta = pod.metadata
    about = Regarding("Pod", meta.name or "", meta.uid or "", meta.namespace or "")
    code, note = against.code.value, against.detail
    return Notice(about, REASON, "Filter", Severity.WARNING, code, note)


def _against(found: PodExplanation) -> Refusal | None:
    if found.refusal is not None or found.passing:
        return found.refusal
    if not found.rejections:
        return Refusal(ReasonCode.NODE_NO_EVIDENCE, "no node has shown any evidence")
    first, *rest = found.rejections
    total = sum(x.count for x in found.rejections)
    text = f"{first.count} of {counted(total, 'node')} ({first.detail})"
    return Refusal(
        first.code, "; ".join((text, *(f"{x.count} {x.code} ({x.detail})" for x in rest)))
    )


class WaitingPodEvents:
    """One per process; used from one event loop."""

    def __init__(
        self,
        *,
        waiting: Callable[[], Iterable[AdmittedPod]],
        explain: AskWhy,
        not_ready: Callable[[], str | None],
        leads: Callable[[], bool],
        say: Callable[[Iterable[Notice]], None],
        boottime_ns: Callable[[], int],
    ) -> None:
        """All callables answer from memory; `waiting` as in `NodeHints`."""
        self._waiting = waiting
        self._explain = explain
        self._not_ready = not_ready
        self._leads = leads
        self._say = say
        self._boottime_ns = boottime_ns
        self._said: dict[str, tuple[Notice, int] | None] = {}
        """By UID: what was said last, and when; None of a pod that has just come."""

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, NoReturn]]:
        """What has to run, once."""
        return {"kube waiting events": self.follow()}

    async def follow(self, seconds: float = LOOK_SECONDS) -> NoReturn:
        """Look forever; ends by cancellation only."""
        while True:
            await asyncio.sleep(seconds)
            self.look()

    def look(self) -> None:
        """Say what is due about pods that were there at the last look, too."""
        if not self._leads() or self._not_ready() is not None:
            self._said = {}
            return
        now_ns, before, self._said = self._boottime_ns(), self._said, {}
        known: dict[Hashable, PodExplanation] = {}
        for pod, _ in zip(self._waiting(), range(MOST_PODS), strict=False):
            uid = pod.metadata.uid or ""
            last = self._said[uid] = before.get(uid)
            if uid not in before:
                continue
            notice = waiting_notice(pod, self._explain(pod, known))
            if notice is not None and _is_due(notice, last, now_ns):
                self._said[uid] = notice, now_ns
                self._say((notice,))


def _is_due(notice: Notice, last: tuple[Notice, int] | None, now_ns: int) -> bool:
    return last is None or last[0] != notice or now_ns - last[1] >= AGAIN_NS
