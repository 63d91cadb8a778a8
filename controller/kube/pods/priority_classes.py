"""The PriorityClasses of the cluster, from a cache: hints name none that is not there.

Must not decide which class a pod gets.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from controller.admission.hints.patch import PriorityClass
from controller.kube.api.cache import Cache
from controller.kube.api.resources import PRIORITY_CLASSES, Kind, Metadata


class _PriorityClass(msgspec.Struct, rename="camel", gc=False):
    metadata: Metadata
    value: int = 0
    global_default: bool = False
    preemption_policy: str = "PreemptLowerPriority"


_DECODER: Final = msgspec.json.Decoder(_PriorityClass)


def _read(body: bytes) -> tuple[Metadata, PriorityClass]:
    found = _DECODER.decode(body)
    return found.metadata, PriorityClass(found.value, found.preemption_policy, found.global_default)


PRIORITY_CLASS_KIND: Final = Kind(PRIORITY_CLASSES, _read)


class ClusterPriorityClasses:
    """None while the cache is too old: a class that was deleted would have the pod refused."""

    def __init__(
        self,
        cache: Cache[PriorityClass],
        stale_after_ns: int,
        boottime_ns: Callable[[], int],
    ) -> None:
        self._cache = cache
        self._stale_after_ns = stale_after_ns
        self._boottime_ns = boottime_ns

    def all(self) -> Mapping[str, PriorityClass]:
        """By name."""
        if self._boottime_ns() >= self._cache.fresh_until_ns(self._stale_after_ns):
            return {}
        return {name: entry.value for name, entry in self._cache.objects.items()}
