"""Which job types run in a namespace: an index of the cached pods, for hints.

Of one namespace at a time: what others run is nobody's business, and no pod keeps away from them.
"""

from collections import Counter
from typing import Final

from controller.kube.api.cache import Change
from controller.kube.pods.pods import KnownPod

MOST_TYPES: Final = 64
"""The scorer hears of so many at most, the first by name."""


class JobTypes:
    """Used from one event loop."""

    def __init__(self) -> None:
        self._running: dict[str, Counter[str]] = {}

    def observe(self, changes: tuple[Change[KnownPod], ...], _asked_ns: int | None) -> None:
        """Take changes of the cache."""
        for change in changes:
            if change.old is not None:
                self._count(change.old.value, -1)
            if change.new is not None:
                self._count(change.new.value, 1)

    def of(self, namespace: str) -> tuple[str, ...]:
        """The job types of its pods with GPUs that are bound and have not ended."""
        return tuple(sorted(self._running.get(namespace, ()))[:MOST_TYPES])

    def _count(self, pod: KnownPod, by: int) -> None:
        if not pod.job_type:
            return
        found = self._running.setdefault(pod.namespace, Counter())
        found[pod.job_type] += by
        if not found[pod.job_type]:
            del found[pod.job_type]
        if not found:
            del self._running[pod.namespace]
