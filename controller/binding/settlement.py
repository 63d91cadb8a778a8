"""Which GPUs are to be settled on which pods, by what a `plugin` node's reports show. Pure.

A report tells pods by their names. So it counts for a pod only if it was asked for after this
replica knew that the pod has the name: two reports, the first of which may still be about
another pod. Every replica settles by itself; the store lets the first of equal writes through.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from controller.binding.bound_pod import BoundPods
from controller.fleet.view import Acceptance
from controller.ledger.release import UseReport, card_of
from controller.ledger.settlement import GivenGpu


@dataclass(frozen=True, slots=True)
class Showing:
    """A node and the GPUs that are its own."""

    node: str
    gpus: frozenset[str]
    """Of its accepted inventory, MIG devices and lost ones included: of others it may say what it
    likes."""

    @staticmethod
    def of(node: str, acceptance: Acceptance) -> "Showing":
        """What a node has proven to have."""
        return Showing(
            node,
            frozenset(
                uuid
                for gpu in acceptance.gpus
                for uuid in (gpu.uuid, *(x.uuid for x in gpu.mig_devices))
            ),
        )


class Settlement:
    """One per process: remembers since when a GPU was shown as a pod's."""

    def __init__(self) -> None:
        self._since_ns: dict[str, dict[GivenGpu, int]] = {}
        """By node."""

    def due(
        self, shown: Showing, report: UseReport, pods: BoundPods, now_ns: int
    ) -> tuple[GivenGpu, ...]:
        """What a node's new report shows for certain, by GPU."""
        if report.given is None:
            return ()
        node = shown.node
        before = self._since_ns.get(node, {})
        now = {x: before.get(x, now_ns) for x in _shown(shown, report, pods)}
        if now:
            self._since_ns[node] = now
        else:
            self._since_ns.pop(node, None)
        sure = (x for x, since_ns in now.items() if since_ns < report.asked_ns)
        return tuple(sorted(sure, key=lambda x: (x.gpu, x.pod.uid or "")))

    def forget(self, node: str) -> None:
        """The node is none on which kubelet chooses, or is gone."""
        self._since_ns.pop(node, None)


def _shown(shown: Showing, report: UseReport, pods: BoundPods) -> Iterator[GivenGpu]:
    for device in report.given or ():
        gpu = card_of(device.device)
        if gpu is None or gpu not in shown.gpus:
            continue
        found = pods.named(device.namespace, device.pod)
        if found is not None and found.node == shown.node and found.needs is not None:
            yield GivenGpu(found.pod, shown.node, gpu)
