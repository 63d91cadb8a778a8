"""Why a pod waits, what it is promised where it is, and every node's verdict, for people.

Rejections come from the very outcome that /filter would answer with now, about every known node:
the scheduler asks only about those that pass its own filters. Nothing is decided here.
"""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import compress, islice
from typing import Final

from controller.placement.cures import rank
from controller.placement.filter_and_score import FilterOutcome, HeldBack, filter_nodes, score
from controller.placement.node_verdict import Judge, Promise, promise_to
from controller.placement.refusal_details import detailed
from controller.placement.requirements import Guarantee, Requirements, RequirementsInvalid
from controller.placement.snapshot import Scene
from controller.placement.verdict_cache import CODES
from controller.policy import NodeMode
from gpuwarden.reasons import ReasonCode, Refusal

EXAMPLES: Final = 8
"""Nodes that are named, for each code and of those that pass."""
_ASKED: Final = 1_000
"""Passing nodes among which the best promise is looked for."""
_BEST_FIRST: Final = (Guarantee.EXACT, Guarantee.SET, Guarantee.NODE)


@dataclass(frozen=True, slots=True)
class Rejection:
    """All nodes that got one code."""

    code: ReasonCode
    detail: str
    """Of the first of them, which it names where there are more."""
    count: int
    nodes: tuple[str, ...]
    """The first few by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodExplanation:
    """The explanation of one pod; of an unmanaged one nothing but its requirements."""

    needs: Requirements | RequirementsInvalid
    refusal: Refusal | None = None
    """What keeps it from every node, whatever their state."""
    passing: int = 0
    """Nodes that /filter would let it on now; not counted for a pod that is bound."""
    examples: tuple[str, ...] = ()
    """Some of them."""
    rejections: tuple[Rejection, ...] = ()
    """First what holds the pod back (`cures.rank`), then the most frequent code; likewise."""
    promise: Promise | None = None
    """Of the node that it is bound to, or the best of those that pass."""


def explain_waiting(
    needs: Requirements | RequirementsInvalid,
    scene: Scene,
    denied: AbstractSet[str],
    held_back: HeldBack | None = None,
    *,
    only: str | None = None,
) -> PodExplanation:
    """A managed pod that is bound to no node; `denied`, `held_back` as in `filter_nodes`.

    `only`: the node that it stays with, because it got its GPUs there at its creation.
    """
    known = scene.fleet.nodes.keys() | scene.static.hashes.keys()
    names = sorted(known) if only is None else [only]
    outcome = filter_nodes(names, needs, scene, denied, held_back)
    judge = Judge(needs, scene)
    return PodExplanation(
        needs=needs,
        refusal=_of_pod(judge, scene),
        passing=len(outcome.passed),
        examples=tuple(outcome.passed[:EXAMPLES]),
        rejections=_rejections(outcome, judge, scene),
        promise=_best(outcome.passed[:_ASKED], needs, scene),
    )


def explain_bound(
    needs: Requirements | RequirementsInvalid, scene: Scene, node: str
) -> PodExplanation:
    """A managed pod that is bound."""
    return PodExplanation(needs=needs, promise=_best([node], needs, scene))


def _rejections(outcome: FilterOutcome, judge: Judge, scene: Scene) -> tuple[Rejection, ...]:
    codes, found = outcome.codes(), []
    for code, count in outcome.totals().rejected.items():
        byte = CODES.index(code)
        nodes = tuple(islice(compress(outcome.names, (x == byte for x in codes)), EXAMPLES))
        known = outcome.reasons.get(nodes[0]) or judge.refusal(nodes[0])
        detail = "" if known is None else detailed(nodes[0], known, judge, scene).detail
        found.append(Rejection(code, _about(nodes[0], detail, count), count, nodes))
    named = judge.names_gpus
    ranked = sorted(found, key=lambda x: (rank(x.code, names_gpus=named), -x.count, x.code))
    return tuple(ranked)


def _about(node: str, detail: str, count: int) -> str:
    """What other nodes with that code have differs."""
    return f"{node}: {detail}" if detail and count > 1 else detail


def _of_pod(judge: Judge, scene: Scene) -> Refusal | None:
    refusal = judge.pod_refusal
    return None if refusal is None else detailed("", refusal, judge, scene)


def _best(
    names: Iterable[str], needs: Requirements | RequirementsInvalid, scene: Scene
) -> Promise | None:
    if isinstance(needs, RequirementsInvalid):
        return None
    nodes = scene.fleet.nodes
    promises = (
        promise_to(needs, x, NodeMode.ENV if x not in nodes else nodes[x].mode, scene)
        for x in names
    )
    return min(promises, key=lambda x: _BEST_FIRST.index(x.guarantee), default=None)


# --- fit: every node for a pod that does not exist yet


@dataclass(frozen=True, slots=True)
class NodeFit:
    """One node's verdict; `promise` is None when it is refused."""

    node: str
    refusal: Refusal | None
    score: int
    promise: Promise | None


@dataclass(frozen=True, slots=True)
class FitReport:
    """All verdicts, sorted by node name, and how many nodes got which code."""

    fits: tuple[NodeFit, ...]
    totals: dict[ReasonCode, int]
    pod_refusal: Refusal | None
    """Set where the pod itself is refused."""


def explain_fit(
    needs: Requirements | RequirementsInvalid,
    scene: Scene,
    *,
    names: Iterable[str] | None = None,
    held_back: HeldBack | None = None,
) -> FitReport:
    """Judge a managed pod on `names`, or on every known node; `held_back` as in `filter_nodes`."""
    judge = Judge(needs, scene)
    known = scene.fleet.nodes.keys() | scene.static.hashes.keys()
    asked = sorted(known if names is None else names)
    fits = tuple(_fit(name, judge, scene) for name in asked)
    if held_back is not None:
        passed = frozenset(filter_nodes(asked, needs, scene, held_back=held_back).passed)
        held = NodeFit("", held_back.refusal, 0, None)
        fits = tuple(
            x if x.refusal is not None or x.node in passed else replace(held, node=x.node)
            for x in fits
        )
    counts = Counter(fit.refusal.code for fit in fits if fit.refusal is not None)
    return FitReport(fits, dict(sorted(counts.items())), _of_pod(judge, scene))


def _fit(name: str, judge: Judge, scene: Scene) -> NodeFit:
    refusal = judge.refusal(name)
    if refusal is not None:
        return NodeFit(name, detailed(name, refusal, judge, scene), 0, None)
    offer = judge.offer(name)
    mode = NodeMode.ENV if offer is None else offer.mode
    promise = promise_to(judge.needs, name, mode, scene)
    return NodeFit(name, None, score(name, judge, scene), promise)
