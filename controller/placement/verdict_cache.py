"""Verdicts and device pools that were worked out before and still hold. Not thread-safe.

Never decides anything: an entry counts only for the very view of a node, requirements and policy
that it was made from. A fleet of thousands changes by a few nodes between two decisions: to find
them by comparing what the snapshots hold, object by object, costs a twentieth of judging all. Codes
of many nodes are bytes, because counting and comparing enums costs more than all else.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import compress, repeat
from operator import is_not
from typing import Final

from controller.fleet.view import Acceptance, NodeView
from controller.placement.devices import DevicePool
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode

Code = ReasonCode | None
"""None: the node passes."""
CODES: Final[tuple[Code, ...]] = (None, *sorted(ReasonCode))
"""What the byte of a node stands for."""
PASSES: Final = 0
ABSENT: Final = 255
"""The fleet has no such node."""
IF_PASSES: Final = bytes(byte == PASSES for byte in range(256))
"""For `bytes.translate`: 1 where a node passes."""
IF_REJECTED: Final = bytes(byte != PASSES for byte in range(256))
_BYTE: Final = {code: byte for byte, code in enumerate(CODES)}
_LOOK_NS: Final = NS_PER_S
"""Where no lease runs there is nothing to end; any time is soon enough."""


def packed(codes: Sequence[Code]) -> bytes:
    """One byte for each code."""
    return bytes(_BYTE[code] for code in codes)


class Verdicts:
    """Codes by node for one question; holds on to the views that they were made from."""

    __slots__ = ("_codes", "_ended_ns", "_names", "_nodes", "_soonest_ns", "_views")

    def __init__(self) -> None:
        self._nodes: Mapping[str, NodeView] | None = None
        self._names: list[str] = []
        self._views: list[NodeView] = []
        self._codes: dict[str, int] = {}
        self._soonest_ns = 0
        """No lease that a code relies on ends before."""
        self._ended_ns = 0
        """The latest end of a lease that a code says is over."""

    @property
    def is_filled(self) -> bool:
        """Whether there is anything to build on."""
        return self._nodes is not None

    def of(self, names: Sequence[str]) -> bytes:
        """A byte for each of `names`, as of the last `refresh`: see CODES and ABSENT."""
        return bytes(map(self._codes.get, names, repeat(ABSENT)))

    def refresh(
        self, nodes: Mapping[str, NodeView], now_ns: int, judge: Callable[[NodeView], Code]
    ) -> None:
        """Judge what has changed since the last time, and leases that have ended meanwhile.

        `now_ns` may lie before the last one's: decisions are not counted up in the order in
        which they were made.
        """
        if now_ns < self._ended_ns:
            self._nodes, self._names, self._ended_ns = None, [], 0
            self._codes.clear()
        if nodes is not self._nodes:
            self._follow(nodes, judge)
            self._nodes = nodes
        if now_ns >= self._soonest_ns:
            self._end_leases(now_ns, judge)

    def _follow(self, nodes: Mapping[str, NodeView], judge: Callable[[NodeView], Code]) -> None:
        names, views = list(nodes), list(nodes.values())
        if names == self._names:
            changed = list(compress(views, map(is_not, views, self._views)))
        else:
            self._codes.clear()
            changed = views
        self._names, self._views = names, views
        for view in changed:
            self._codes[view.name] = _BYTE[judge(view)]
        ends = (view.acceptance.fresh_until_ns for view in changed if view.acceptance)
        self._soonest_ns = min(self._soonest_ns, min(ends, default=self._soonest_ns))

    def _end_leases(self, now_ns: int, judge: Callable[[NodeView], Code]) -> None:
        soonest = None
        for view in self._views:
            if view.acceptance is None:
                continue
            ends = view.acceptance.fresh_until_ns
            if ends <= now_ns:
                self._codes[view.name] = _BYTE[judge(view)]
                self._ended_ns = max(self._ended_ns, ends)
            elif soonest is None or ends < soonest:
                soonest = ends
        self._soonest_ns = now_ns + _LOOK_NS if soonest is None else soonest


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
