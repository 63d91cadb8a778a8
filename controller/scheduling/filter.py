"""Filter: which of the scheduler's nodes a guarded pod may go to. Pure.

Cost is linear in the names: where hashes are asked for, only nodes whose last
evidence has one of them are judged; the others' answer is known to be no, and why
is worked out for the first few only, and for all when somebody asks for the totals.
"""

import hashlib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from controller.scheduling.judge import Judge
from controller.scheduling.requirements import Requirements, RequirementsInvalid
from controller.scheduling.scene import Scene
from controller.scheduling.verdicts import CODES, PASSES
from gpuwarden.reasons import ReasonCode, Refusal

_LINE_END = [f" {code or '-'}\n" for code in CODES]
MAX_REASONS = 100
"""Rejected nodes that get a reason in one answer (placement design, section 2)."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The whole of a decision in little: how many nodes got which code."""

    passed: int
    rejected: dict[ReasonCode, int]
    digest: str
    """SHA-256 over the lines `name CODE` of all nodes in input order, `-` for passed."""


@dataclass(frozen=True, slots=True)
class FilterOutcome:
    """`passed` is a subset of the input in input order; `reasons` covers the first rejected."""

    passed: list[str]
    reasons: dict[str, Refusal]
    totals: Callable[[], Totals]
    """Works out every node's code; for after the answer."""


def filter_nodes(
    names: Sequence[str], needs: Requirements | RequirementsInvalid, scene: Scene
) -> FilterOutcome:
    """Decide for every name. Unknown names are rejected like any node without evidence."""
    judge = Judge(needs, scene)
    scene.memory.forget_all_but(scene.fleet.nodes)
    passed = _passed(names, judge, scene)
    taken = set(passed)
    reasons: dict[str, Refusal] = {}
    if len(passed) < len(names):
        for name in names:
            if name not in taken and (refusal := judge.refusal(name)) is not None:
                reasons[name] = refusal
                if len(reasons) == MAX_REASONS:
                    break
    return FilterOutcome(passed, reasons, lambda: totals(names, judge))


def totals(names: Sequence[str], judge: Judge) -> Totals:
    """Count the codes of all rejected nodes and take the digest of the full list."""
    codes = judge.codes(names)
    ends = map(_LINE_END.__getitem__, codes)
    lines = "".join([name + end for name, end in zip(names, ends, strict=True)])
    counts = ((code, codes.count(byte)) for byte, code in enumerate(CODES))
    return Totals(
        codes.count(PASSES),
        {code: count for code, count in counts if count and code is not None},
        hashlib.sha256(lines.encode()).hexdigest(),
    )


def _passed(names: Sequence[str], judge: Judge, scene: Scene) -> list[str]:
    candidates = _candidates(judge, scene)
    return judge.passing(
        names if candidates is None else list(filter(candidates.__contains__, names))
    )


def _candidates(judge: Judge, scene: Scene) -> Container[str] | None:
    """A set outside which no node can pass; None where there is no such set."""
    if judge.place_node is not None:
        return frozenset({judge.place_node})
    hashes = judge.accepted
    if hashes is None:
        hashes = scene.policy.policy.allowed_hashes
        if hashes is None:
            return None
    by_hash = scene.fleet.nodes_by_hash
    sets = [nodes for text in hashes if (nodes := by_hash.get(text))]
    if scene.static:
        sets.append(scene.static.nodes_with(hashes))
    return sets[0] if len(sets) == 1 else frozenset().union(*sets)
