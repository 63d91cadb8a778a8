"""Namespaces in which every GPU pod is guarded, from the copy of the Namespaces. Pure.

A namespace that the copy does not know counts as enforced: a pod's namespace exists before
the pod, so the copy is behind, and to guess that it is not enforced would let the pod pass.
One that is known stays what it was while the copy is too old; readiness says that it is.
"""

from controller.kube.objects import KnownNamespace
from controller.kube.reflection import Reflection


class EnforcedNamespaces:
    """Answers from memory."""

    def __init__(self, reflection: Reflection[KnownNamespace], stale_after_ns: int) -> None:
        self._reflection = reflection
        self._stale_after_ns = stale_after_ns

    def is_enforced(self, namespace: str) -> bool:
        """Whether GPU pods in it are guarded without a wish; False where none is named."""
        if not namespace:
            return False
        known = self._reflection.objects.get(namespace)
        return known is None or known.value.enforced

    def fresh_until_ns(self) -> int:
        """CLOCK_BOOTTIME from which the copy is too old; 0 before it was read."""
        return self._reflection.fresh_until_ns(self._stale_after_ns)
