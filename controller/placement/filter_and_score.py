"""What /filter and /prioritize answer: the nodes that pass, and a score from 0 to 10.

The cost of /filter is linear in the names. Where hashes are asked for, only nodes whose last
evidence has one of them are judged; the others cannot pass, and the reason is worked out for the
first few only, and for all when somebody asks for the totals.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import compress, filterfalse, islice
from types import MappingProxyType

from controller.fleet.view import Acceptance
from controller.placement.gpu_type import gpu_type
from controller.placement.node_verdict import Judge
from controller.placement.refusals import REFUSALS
from controller.placement.requirements import Requirements, RequirementsInvalid
from controller.placement.selector import breaks_island
from controller.placement.snapshot import Scene
from controller.placement.verdict_cache import CODES, IF_PASSES, IF_REJECTED, PASSES
from controller.policy import NodeMode
from controller.record import Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode, Refusal

_LINE_END = [f" {code or '-'}\n" for code in CODES]
_LINES_AT_ONCE = 1024
"""Hashed together: they stay in the processor's cache."""
_SPARSE = 4
"""Where one name in so many can pass at most, the others are not looked up for the answer."""
MAX_REASONS = 100
"""Rejected nodes that get a reason in one answer."""


@dataclass(frozen=True, slots=True)
class Totals:
    """A summary of a decision: how many nodes got which code."""

    passed: int
    rejected: dict[ReasonCode, int]
    digest: str
    """SHA-256 over the lines `name CODE` of all nodes in input order, `-` for passed."""


@dataclass(frozen=True, slots=True)
class FilterOutcome:
    """`passed` is a subset of the input in input order; `reasons` covers the first rejected."""

    passed: list[str]
    reasons: dict[str, Refusal]
    codes: Callable[[], bytes]
    """Works out every node's code (`verdict_cache.CODES`); for after the answer."""
    names: Sequence[str]
    """The input."""

    def totals(self) -> Totals:
        """Works out the whole of the decision; for after the answer."""
        return totals(self.names, self.codes())


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What the binding webhook would say to a pod whichever GPUs it is to get."""

    refusal: Refusal
    everywhere: bool = False
    """Whether also where kubelet gives the GPUs, or to a pod that asks for none."""


def filter_nodes(
    names: Sequence[str],
    needs: Requirements | RequirementsInvalid,
    scene: Scene,
    denied: AbstractSet[str] = frozenset(),
    held_back: HeldBack | None = None,
) -> FilterOutcome:
    """Decide for every name. Unknown names are rejected like any node without evidence.

    `denied`: nodes that the binding webhook has just denied the pod, few if any. `held_back`: what
    it would say to the pod on many nodes.
    """
    outcome = _judged(names, needs, scene)
    if held_back is not None:
        outcome = _without(outcome, _held_back(outcome, needs, scene, held_back), held_back.refusal)
    if denied:
        few = [name for name in outcome.passed if name in denied]
        outcome = _without(outcome, few, REFUSALS[ReasonCode.BINDING_DENIED_RECENTLY])
    return outcome


def _held_back(
    outcome: FilterOutcome,
    needs: Requirements | RequirementsInvalid,
    scene: Scene,
    held_back: HeldBack,
) -> list[str]:
    if held_back.everywhere:
        return outcome.passed
    if isinstance(needs, RequirementsInvalid) or not needs.count:
        return []
    nodes = scene.fleet.nodes
    return [x for x in outcome.passed if x not in nodes or nodes[x].mode is NodeMode.ENV]


def _judged(
    names: Sequence[str], needs: Requirements | RequirementsInvalid, scene: Scene
) -> FilterOutcome:
    judge = Judge(needs, scene)
    scene.memory.forget_all_but(scene.fleet.nodes)
    candidates = _candidates(judge, scene)
    if candidates is not None and len(candidates) * _SPARSE <= len(names):
        passed = judge.passing(list(filter(candidates.__contains__, names)))
        rejected: Iterable[str] = filterfalse(frozenset(passed).__contains__, names)
        return FilterOutcome(passed, _reasons(rejected, judge), lambda: judge.codes(names), names)
    codes = judge.codes(names)
    passed = list(compress(names, codes.translate(IF_PASSES)))
    rejected = compress(names, codes.translate(IF_REJECTED))
    return FilterOutcome(passed, _reasons(rejected, judge), lambda: codes, names)


def _without(outcome: FilterOutcome, dropped: Sequence[str], refusal: Refusal) -> FilterOutcome:
    """What the binding webhook would say comes before all other reasons."""
    if not dropped:
        return outcome
    reasons = dict.fromkeys(dropped, refusal) | outcome.reasons
    few = frozenset(dropped)
    return FilterOutcome(
        [name for name in outcome.passed if name not in few],
        dict(islice(reasons.items(), MAX_REASONS)),
        lambda: _with_code(outcome.codes(), outcome.names, few, refusal.code),
        outcome.names,
    )


def _with_code(
    codes: bytes, names: Sequence[str], few: AbstractSet[str], code: ReasonCode
) -> bytes:
    new = CODES.index(code)
    return bytes(new if name in few else old for name, old in zip(names, codes, strict=True))


def totals(names: Sequence[str], codes: bytes) -> Totals:
    """Count the codes of all rejected nodes and take the digest of the full list."""
    digest = hashlib.sha256()
    for begin in range(0, len(names), _LINES_AT_ONCE):
        some = names[begin : begin + _LINES_AT_ONCE]
        text = [""] * (2 * len(some))
        text[::2] = some
        text[1::2] = map(_LINE_END.__getitem__, codes[begin : begin + _LINES_AT_ONCE])
        digest.update("".join(text).encode())
    counts = ((CODES[byte], codes.count(byte)) for byte in sorted(set(codes)))
    return Totals(
        codes.count(PASSES),
        {code: count for code, count in counts if code is not None},
        digest.hexdigest(),
    )


def _reasons(rejected: Iterable[str], judge: Judge) -> dict[str, Refusal]:
    reasons: dict[str, Refusal] = {}
    for name in rejected:
        refusal = judge.refusal(name)
        if refusal is not None:
            reasons[name] = refusal
        if len(reasons) == MAX_REASONS:
            break
    return reasons


def _candidates(judge: Judge, scene: Scene) -> AbstractSet[str] | None:
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


# --- scores

MAX_SCORE = 10
_TIGHT = (4, 3, 2, 2)
_LOOSE = 1
_NOTHING_CHOSEN: Mapping[str, int] = MappingProxyType({})


def prioritize_nodes(
    names: Sequence[str],
    needs: Requirements | RequirementsInvalid,
    scene: Scene,
    chosen: Mapping[str, int] = _NOTHING_CHOSEN,
) -> dict[str, int]:
    """A score for every name, once each; 0 for nodes that would not pass or that nobody knows.

    `chosen`: weights from 1 to 100 of the GPU types that the pod prefers, whoever says so.
    """
    judge = Judge(needs, scene)
    found = {name: score(name, judge, scene) for name in names}
    weight = scene.policy.policy.hint_weight
    if not (chosen and weight):
        return found
    return {
        name: with_hint(points, weight, _preference(name, chosen, judge))
        for name, points in found.items()
    }


def with_hint(points: int, weight: int, preference: int) -> int:
    """A score with the hint's `weight` in percent; `preference`: of the node's type, 0 to 100.

    From 51 on a node of the chosen type (100) comes before every node of a type that has 0.
    """
    hint = MAX_SCORE * preference
    return ((100 - weight) * points * 100 + weight * hint) // (100 * 100)


def _preference(name: str, chosen: Mapping[str, int], judge: Judge) -> int:
    """The weight of the type that the node's evidence states; 0 where it would not pass."""
    offer = judge.offer(name) if judge.passes(name) else None
    found = None if offer is None else gpu_type(offer.acceptance)
    return 0 if found is None else chosen.get(found, 0)


def score(name: str, judge: Judge, scene: Scene) -> int:
    """The score of one node (docs/scoring.md): bin packing, then level, then freshness.

    A node on which more stays free never gets the higher score; ties are possible.
    """
    if not judge.passes(name):
        return 0
    offer = judge.offer(name)
    if offer is None:
        return 0
    count = judge.count
    tight = bin_packing(len(offer.free) - count)
    if tight and count and breaks_island(count, offer.free, offer.acceptance.gpus):
        tight -= 1
    return 2 * tight + level_penalty(offer.acceptance, judge, scene.now.boottime_ns)


def bin_packing(left_over: int) -> int:
    """0..4: how few matching devices stay free (`left_over`) when the pod is there."""
    return _TIGHT[max(left_over, 0)] if left_over < len(_TIGHT) else _LOOSE


def level_penalty(acceptance: Acceptance, judge: Judge, now_ns: int) -> int:
    """0 where a higher assurance level than asked would be spent, else 1, and 2 while fresh.

    Fresh means in the first half of the lease.
    """
    if acceptance.level.rank > judge.level.rank:
        return 0
    lease = acceptance.fresh_until_ns - acceptance.challenge_issued_ns
    return 2 if 2 * (acceptance.fresh_until_ns - now_ns) >= lease else 1


# --- the record of a decision

_ACTOR = "kube-scheduler"
_SHOWN_CHARS = 253


@dataclass(frozen=True, slots=True)
class FilterDecision:
    """One decision about a managed pod."""

    namespace: str
    pod: str
    uid: str
    candidates: int
    policy_digest: str
    fleet_version: int
    insecure: tuple[str, ...]
    """Names of insecure stand-ins that the answer may rest on."""
    totals: Callable[[], Totals]
    """Codes of all nodes and the digest of the full list; costly, call it once."""
    reported: bool = False
    """Whether all nodes passed whatever was decided: report-only mode."""
    preempts: bool = False
    """Whether it was about nodes that kube-scheduler wanted to empty: /preempt."""


def not_ready_record() -> Record:
    """The `filter.decision` record of an answer that nothing is decided yet.

    It names no pod: the audit log writes the first one, and counts those that follow.
    """
    return Record(
        kind=RecordKind.FILTER_DECISION,
        actor=_ACTOR,
        subject="pods",
        decision="not-ready",
        codes=(ReasonCode.CONTROLLER_NOT_READY.value,),
    )


def decision_record(decision: FilterDecision, totals: Totals) -> Record:
    """The `filter.decision` record: totals per code and a digest that stands for the full list."""
    return Record(
        kind=RecordKind.FILTER_DECISION,
        actor=_ACTOR,
        subject=f"pod/{_cut(decision.namespace)}/{_cut(decision.pod)}",
        decision=_word(decision, totals),
        codes=tuple(totals.rejected),
        refs={
            "uid": _cut(decision.uid),
            "candidates": decision.candidates,
            "passed": totals.passed,
            "rejected": {str(code): count for code, count in totals.rejected.items()},
            "nodesDigest": totals.digest,
            "policy": decision.policy_digest,
            "fleetVersion": decision.fleet_version,
            "insecure": list(decision.insecure),
            **({"verb": "preempt"} if decision.preempts else {}),
        },
    )


def _word(decision: FilterDecision, totals: Totals) -> str:
    if totals.passed:
        return "passed"
    return "reported" if decision.reported else "rejected"


def _cut(text: str) -> str:
    return text[:_SHOWN_CHARS]
