"""The bound pods of the cluster, as the comparison with their nodes asks for them. Pure.

By name the copy answers at once. By UID it is asked only about pods that have a GPU which nobody
gave them, with UIDs that an agent says: so the index of UIDs is made at most every few seconds.
"""

from collections.abc import Callable, Iterator
from typing import Final

from controller.binding.bound_pod import BoundPod
from controller.kube.objects import KnownPod
from controller.kube.pods_by_node import PodsByNode
from controller.kube.reflection import Entry, Reflection
from controller.ledger.record import PodRef

REMADE_NS: Final = 5 * 1_000_000_000


class ClusterBoundPods:
    """Implements BoundPods; used from one event loop."""

    def __init__(
        self,
        reflection: Reflection[KnownPod],
        by_node: PodsByNode,
        boottime_ns: Callable[[], int],
    ) -> None:
        self._reflection = reflection
        self._by_node = by_node
        self._boottime_ns = boottime_ns
        self._keys: dict[str, str] = {}
        """By UID."""
        self._made_ns: int | None = None

    def named(self, namespace: str, name: str) -> BoundPod | None:
        """The pod of that name."""
        entry = self._reflection.objects.get(f"{namespace}/{name}")
        return None if entry is None else self._bound(entry.value)

    def with_uid(self, uid: str) -> BoundPod | None:
        """The pod of that UID; a new one is found after a moment only."""
        found = self._known(uid)
        now_ns = self._boottime_ns()
        if found is None and (self._made_ns is None or now_ns - self._made_ns >= REMADE_NS):
            entries = self._reflection.objects.items()
            self._keys = {entry.uid: key for key, entry in entries if entry.value.node}
            self._made_ns = now_ns
            found = self._known(uid)
        return None if found is None else self._bound(found.value)

    def guarded(self, node: str) -> Iterator[BoundPod]:
        """Those of a node that ask for something of ours."""
        for pod in self._by_node.guarded(node):
            found = self._bound(pod)
            if found is not None:
                yield found

    def _known(self, uid: str) -> Entry[KnownPod] | None:
        entry = self._reflection.objects.get(self._keys.get(uid, ""))
        return entry if entry is not None and entry.uid == uid else None

    def _bound(self, pod: KnownPod) -> BoundPod | None:
        if not pod.node or pod.has_ended:
            return None
        needs = pod.needs if self._by_node.is_guarded(pod) else None
        return BoundPod(PodRef(pod.namespace, pod.name, pod.uid), pod.node, needs)
