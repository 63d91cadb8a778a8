"""Fit: every node's verdict for a pod, as /filter and /prioritize would give it. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from controller.fleet.view import NodeMode
from controller.scheduling.judge import Judge
from controller.scheduling.prioritize import score
from controller.scheduling.promise import Promise, promise_to
from controller.scheduling.requirements import Requirements, RequirementsInvalid
from controller.scheduling.scene import Scene
from gpuwarden.reasons import ReasonCode, Refusal


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
) -> FitReport:
    """Judge a guarded pod on `names`, or on every node that is known."""
    judge = Judge(needs, scene)
    known = scene.fleet.nodes.keys() | scene.static.hashes.keys()
    fits = tuple(
        _fit(name, judge, needs, scene) for name in sorted(known if names is None else names)
    )
    counts = Counter(fit.refusal.code for fit in fits if fit.refusal is not None)
    return FitReport(fits, dict(sorted(counts.items())), judge.pod_refusal)


def _fit(
    name: str, judge: Judge, needs: Requirements | RequirementsInvalid, scene: Scene
) -> NodeFit:
    refusal = judge.refusal(name)
    if refusal is not None or isinstance(needs, RequirementsInvalid):
        return NodeFit(name, refusal, 0, None)
    offer = judge.offer(name)
    mode = NodeMode.ENV if offer is None else offer.mode
    promise = promise_to(needs, name, mode, scene)
    return NodeFit(name, None, score(name, judge, scene), promise)
