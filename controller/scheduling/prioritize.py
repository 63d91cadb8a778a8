"""Prioritize: integers 0..10 for nodes (placement design, section 2; docs/scoring.md). Pure.

Tightness first, then not wasting a higher evidence level, then freshness. A node
that is looser than another never gets the higher score; ties are possible.
"""

from collections.abc import Sequence

from controller.fleet.view import Acceptance
from controller.scheduling.islands import breaks_island
from controller.scheduling.judge import Judge
from controller.scheduling.levels import RANK
from controller.scheduling.requirements import Requirements, RequirementsInvalid
from controller.scheduling.scene import Scene

MAX_SCORE = 10
_TIGHT = (4, 3, 2, 2)
_LOOSE = 1


def prioritize_nodes(
    names: Sequence[str], needs: Requirements | RequirementsInvalid, scene: Scene
) -> dict[str, int]:
    """A score for every name, once each; 0 for nodes that would not pass or that nobody knows."""
    judge = Judge(needs, scene)
    return {name: score(name, judge, scene) for name in names}


def score(name: str, judge: Judge, scene: Scene) -> int:
    """The score of one node."""
    if not judge.passes(name):
        return 0
    offer = judge.offer(name)
    if offer is None:
        return 0
    count = judge.count
    tight = tightness(len(offer.free) - count)
    if tight and count and breaks_island(count, offer.free, offer.acceptance.gpus):
        tight -= 1
    return 2 * tight + thrift(offer.acceptance, judge, scene.now.boottime_ns)


def tightness(left_over: int) -> int:
    """0..4: how few matching devices stay free (`left_over`) when the pod is there."""
    return _TIGHT[max(left_over, 0)] if left_over < len(_TIGHT) else _LOOSE


def thrift(acceptance: Acceptance, judge: Judge, now_ns: int) -> int:
    """0 where a higher evidence level than asked would be spent, else 1, and 2 while fresh.

    Fresh means in the first half of the lease.
    """
    if RANK[acceptance.level] > RANK[judge.level]:
        return 0
    lease = acceptance.fresh_until_ns - acceptance.challenge_issued_ns
    return 2 if 2 * (acceptance.fresh_until_ns - now_ns) >= lease else 1
