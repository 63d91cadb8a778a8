"""What was worked out before and still holds, so that a filter call need not do it again.

Never decides anything: an entry counts only for the very evidence, mode, wishes and
policy that it was made from. Not thread-safe.
"""

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from controller.fleet.view import Acceptance, NodeMode
from controller.scheduling.device_pool import DevicePool
from gpuwarden.reasons import ReasonCode

_MAX_QUESTIONS = 16


class Verdict(NamedTuple):
    """The code against a node (None: passes) by its evidence and mode, leaving time aside."""

    acceptance: Acceptance
    mode: NodeMode
    code: ReasonCode | None


class PlacementMemory:
    """Device pools per node, and verdicts per question and node."""

    __slots__ = ("_pools", "_verdicts")

    def __init__(self) -> None:
        self._pools: dict[str, DevicePool] = {}
        self._verdicts: dict[Hashable, dict[str, Verdict]] = {}

    def pool(self, node: str, acceptance: Acceptance) -> DevicePool:
        """The devices of a node's acceptance."""
        pool = self._pools.get(node)
        if pool is None or pool.acceptance is not acceptance:
            pool = self._pools[node] = DevicePool(acceptance)
        return pool

    def verdicts(self, question: Hashable) -> dict[str, Verdict]:
        """Verdicts by node for one question; the oldest question is forgotten first."""
        found = self._verdicts.pop(question, None)
        if found is None:
            found = {}
            if len(self._verdicts) >= _MAX_QUESTIONS:
                del self._verdicts[next(iter(self._verdicts))]
        self._verdicts[question] = found
        return found

    def forget_all_but(self, nodes: Mapping[str, object]) -> None:
        """Drop what is about nodes that are gone, once it is much."""
        if len(self._pools) > 2 * len(nodes) + 64:
            self._pools = {name: pool for name, pool in self._pools.items() if name in nodes}
            self._verdicts.clear()
