"""Which guarded pods run where, and which wait: an index that follows the pods' copy. Pure."""

from collections.abc import Callable, Iterator

from controller.kube.objects import KnownPod
from controller.kube.reflection import Change


class PodsByNode:
    """`is_enforced` says whether a namespace makes every GPU pod in it guarded."""

    def __init__(self, is_enforced: Callable[[str], bool]) -> None:
        self._is_enforced = is_enforced
        self._pods: dict[str, dict[str, KnownPod]] = {}

    def observe(self, changes: tuple[Change[KnownPod], ...], _asked_ns: int | None) -> None:
        """The copy changed."""
        for change in changes:
            if change.old is not None:
                self._remove(change.key, change.old.value)
            if change.new is not None and _counts(change.new.value):
                self._pods.setdefault(change.new.value.node, {})[change.key] = change.new.value

    def guarded(self, node: str) -> Iterator[KnownPod]:
        """Guarded pods that are bound to `node` and have not ended; `""`: that are not bound."""
        for pod in self._pods.get(node, {}).values():
            if self.is_guarded(pod):
                yield pod

    def is_guarded(self, pod: KnownPod) -> bool:
        """Whether it asks for something of ours, or its namespace makes it do so."""
        return pod.asks or (pod.uses_gpus and self._is_enforced(pod.namespace))

    def any_waits(self) -> bool:
        """Whether a guarded pod is not bound."""
        return next(self.guarded(""), None) is not None

    def _remove(self, key: str, pod: KnownPod) -> None:
        there = self._pods.get(pod.node)
        if there is not None and there.pop(key, None) is not None and not there:
            del self._pods[pod.node]


def _counts(pod: KnownPod) -> bool:
    return not pod.has_ended and (pod.asks or pod.uses_gpus)
