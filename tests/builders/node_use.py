"""A node's account of its GPUs, and the pods that it is compared with."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from controller.binding.request import BoundPod
from controller.fleet.view import NodeView
from controller.ledger.record import PodRef
from controller.ledger.release import GivenDevice, UseReport
from controller.placement.requirements import Requirements
from controller.policy import NodeMode
from gpuwarden.evidence.model import Allocation, GpuProcess
from tests.builders.fleet_views import NOW_NS, acceptance, gpu, hash_of, node

NODE = "gpu-1"
CARDS = ("GPU-a", "GPU-b", "GPU-c")
MANAGED = Requirements(managed=True, count=1, requests=(("nvidia.com/gpu", 1),))


def ref(name: str = "train-0", uid: str = "") -> PodRef:
    return PodRef("team-a", name, uid or f"uid-{name}")


def bound(name: str = "train-0", *, node: str = NODE, **more: Any) -> BoundPod:
    made = BoundPod(ref(name, more.pop("uid", "")), node, MANAGED)
    return replace(made, **more)


@dataclass
class SomeBoundPods:
    """Implements BoundPods."""

    pods: list[BoundPod] = field(default_factory=list)
    static: dict[str, BoundPod] = field(default_factory=dict)
    """By the UID that their node knows them by."""

    def named(self, namespace: str, name: str) -> BoundPod | None:
        return next(
            (x for x in self.pods if (x.pod.namespace, x.pod.name) == (namespace, name)), None
        )

    def with_uid(self, uid: str) -> BoundPod | None:
        found = next((x for x in self.pods if x.pod.uid == uid), None)
        return found or self.static.get(uid)

    def managed(self, node: str) -> Iterator[BoundPod]:
        return (x for x in self.pods if x.node == node and x.needs is not None)


def device(name: str = "train-0", gpu: str = "GPU-a") -> GivenDevice:
    return GivenDevice("team-a", name, gpu)


def use_report(
    *given: GivenDevice, users: dict[str, set[str | None]] | None = None, asked_ns: int = NOW_NS
) -> UseReport:
    found = {gpu: frozenset(uids) for gpu, uids in (users or {}).items()}
    return UseReport("boot", asked_ns, found, frozenset(given))


def node_with(
    *given: GivenDevice,
    users: dict[str, set[str | None]] | None = None,
    asked_ns: int = NOW_NS,
    mode: NodeMode = NodeMode.PLUGIN,
    name: str = NODE,
) -> NodeView:
    """A node as its accepted evidence shows it."""
    made = acceptance(hash_of("a"), [gpu(n, x) for n, x in enumerate(CARDS)], issued_ns=asked_ns)
    allocations = tuple(
        Allocation(x.namespace, x.pod, "main", "nvidia.com/gpu", x.device) for x in given
    )
    pairs = ((gpu, uid) for gpu, uids in (users or {}).items() for uid in sorted(uids, key=str))
    processes = tuple(GpuProcess(gpu, n, uid) for n, (gpu, uid) in enumerate(pairs, 1))
    return node(name, replace(made, allocations=allocations, processes=processes), mode=mode)
