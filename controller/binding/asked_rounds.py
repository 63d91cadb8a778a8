"""Decides which nodes are challenged at once, because a release waits for their reports.

A GPU is free when two reports that were asked for after its pod's end show nothing of the pod
(`controller.ledger.release`). Ordinary rounds would leave it idle for two intervals. So the node
is asked early, again as soon as it has shown nothing once, and ever more rarely while something
of the pod runs. Pure. Must not decide whether a report shows the end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpuwarden.moment import NS_PER_S

LEAST_NS: Final = NS_PER_S // 2
"""Between two asked rounds of a node, and between an ordinary one and the next asked one."""
UNANSWERED_NS: Final = 3 * NS_PER_S
"""As long nobody asks again a node that has not answered."""
PER_SECOND: Final = 100
"""Asked rounds of all nodes together. Ordinary rounds of 2,500 nodes are as many."""
_SLOWER: Final = 16
"""A node is asked again after this part of the time that something has outlived its pod. At the
attestation interval the ordinary rounds alone go on."""
_COST_NS: Final = NS_PER_S // PER_SECOND


@dataclass(frozen=True, slots=True)
class AwaitedReport:
    """A node whose next reports decide about releases. Moments are CLOCK_BOOTTIME."""

    since_ns: int
    """When the last of the pods was known to have ended."""
    heard_ns: int
    """When the challenge was made that the node's last report answers; 0 without a report."""
    is_half_shown: bool
    """Whether one more report like the last one frees a GPU."""


class AskedRounds:
    """One per process."""

    def __init__(self) -> None:
        self._asked_ns: dict[str, int] = {}
        """By node."""
        self._paid_ns = 0
        """Until when the rate of all nodes is used up."""
        self.next_ns: int | None = None
        """When the next node is to be asked, if none is heard before."""

    def due(self, awaited: Mapping[str, AwaitedReport], now_ns: int) -> tuple[str, ...]:
        """The nodes to challenge now, those first that have waited longest."""
        self._asked_ns = {
            node: asked_ns
            for node, asked_ns in self._asked_ns.items()
            if node in awaited or now_ns - asked_ns < LEAST_NS
        }
        turns = sorted((self._turn_ns(node, x), node) for node, x in awaited.items())
        asked = [node for turn_ns, node in turns if turn_ns <= now_ns][: self._room(now_ns)]
        self._paid_ns += len(asked) * _COST_NS
        self._asked_ns |= dict.fromkeys(asked, now_ns)
        later = turns[len(asked) :]
        self.next_ns = later[0][0] if later else None
        return tuple(asked)

    def _room(self, now_ns: int) -> int:
        """How many may be asked now; unused room of more than a second is lost."""
        self._paid_ns = max(self._paid_ns, now_ns - NS_PER_S)
        return (now_ns - self._paid_ns) // _COST_NS

    def _turn_ns(self, node: str, awaited: AwaitedReport) -> int:
        asked_ns = self._asked_ns.get(node, 0)
        last_ns = max(asked_ns, awaited.heard_ns)
        pause_ns = LEAST_NS
        if not awaited.is_half_shown:
            pause_ns = max(pause_ns, (last_ns - awaited.since_ns) // _SLOWER)
        if asked_ns > awaited.heard_ns:
            pause_ns = max(pause_ns, UNANSWERED_NS)
        return last_ns + pause_ns
