"""What was worked out before and still holds, so that a filter call need not do it again.

Never decides anything: an entry counts only for the very view of a node, wishes and
policy that it was made from. Not thread-safe.
"""

from collections.abc import Hashable, Mapping

from controller.fleet.view import Acceptance
from controller.scheduling.device_pool import DevicePool
from controller.scheduling.verdicts import Verdicts

_MAX_QUESTIONS = 16
_KEPT_NS = 60_000_000_000
"""How long a question is remembered that nobody repeats: its verdicts hold on to evidence of
the whole fleet, which is replaced every round and must not pile up."""


class PlacementMemory:
    """Device pools per node, and verdicts per question and node."""

    __slots__ = ("_pools", "_verdicts")

    def __init__(self) -> None:
        self._pools: dict[str, DevicePool] = {}
        self._verdicts: dict[Hashable, tuple[int, Verdicts]] = {}
        """With the time of the last question, oldest first."""

    def pool(self, node: str, acceptance: Acceptance) -> DevicePool:
        """The devices of a node's acceptance."""
        pool = self._pools.get(node)
        if pool is None or pool.acceptance is not acceptance:
            pool = self._pools[node] = DevicePool(acceptance, pool)
        return pool

    def verdicts(self, question: Hashable, now_ns: int) -> Verdicts:
        """Verdicts by node for one question; what was not asked for longest is forgotten first.

        `now_ns` is CLOCK_BOOTTIME.
        """
        _, found = self._verdicts.pop(question, (0, Verdicts()))
        for old, (asked_ns, _) in tuple(self._verdicts.items()):
            if len(self._verdicts) < _MAX_QUESTIONS and now_ns - asked_ns < _KEPT_NS:
                break
            del self._verdicts[old]
        self._verdicts[question] = (now_ns, found)
        return found

    def forget_all_but(self, nodes: Mapping[str, object]) -> None:
        """Drop what is about nodes that are gone, once it is much."""
        if len(self._pools) > 2 * len(nodes) + 64:
            self._pools = {name: pool for name, pool in self._pools.items() if name in nodes}
            self._verdicts.clear()
