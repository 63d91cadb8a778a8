"""Fit: every node's verdict for a pod, as /filter and /prioritize would give it. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from controller.fleet.view import NodeMode
from controller.scheduling.guarantee import Guarantee, guarantee_given
from controller.scheduling.judge import Judge
from controller.scheduling.prioritize import score
from controller.scheduling.requirements import Requirements, RequirementsInvalid
from controller.scheduling.scene import Scene
from gpuwarden.reasons import ReasonCode, Refusal


@dataclass(frozen=True, slots=True)
class NodeFit:
    """One node's verdict; `guarantee` is None when it is refused."""

    node: str
    refusal: Refusal | None
    score: int
    guarantee: Guarantee | None


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
    protected: bool = False,
) -> FitReport:
    """Judge a guarded pod on `names`, or on every node that is known.

    `protected` as in `guarantee_given`.
    """
    judge = Judge(needs, scene)
    known = scene.fleet.nodes.keys() | scene.static.hashes.keys()
    fits = tuple(
        _fit(name, judge, scene, protected=protected)
        for name in sorted(known if names is None else names)
    )
    counts = Counter(fit.refusal.code for fit in fits if fit.refusal is not None)
    return FitReport(fits, dict(sorted(counts.items())), judge.pod_refusal)


def _fit(name: str, judge: Judge, scene: Scene, *, protected: bool) -> NodeFit:
    refusal = judge.refusal(name)
    if refusal is not None:
        return NodeFit(name, refusal, 0, None)
    offer = judge.offer(name)
    mode = NodeMode.ENV if offer is None else offer.mode
    given = guarantee_given(mode, protected=protected)
    return NodeFit(name, None, score(name, judge, scene), given)
