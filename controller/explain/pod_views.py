"""Pods as a list, and one pod from what it requires to what runs on its GPUs. Pure.

The details are those of the allocation trace, in the words in which a person is shown it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from controller.explain.stages import StageName, StageState
from controller.ledger.record import PodRef, PodSeen, PodSight
from controller.ledger.store import LedgerSnapshot
from controller.placement.explanation import NodeFit
from gpuwarden.audit.record import RecordKind
from gpuwarden.reason_texts import EXPLANATIONS
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import placement_pb2 as pb

PENDING: Final = "pending"
BOUND: Final = "bound"
ENDED: Final = "ended"
GONE: Final = "gone"


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod that the API server has: one that is managed, or holds GPUs."""

    namespace: str
    name: str
    uid: str
    node: str
    """Empty until it is bound."""
    has_ended: bool = False
    """Succeeded or Failed."""

    @property
    def state(self) -> str:
        """As a row has it."""
        if self.has_ended:
            return ENDED
        return BOUND if self.node else PENDING


def with_holders(
    managed: Iterable[SeenPod], ledger: LedgerSnapshot, sight: Callable[[PodRef], PodSight]
) -> Iterator[SeenPod]:
    """The managed pods, and of the others those that hold GPUs and are in the cache of pods.

    The others have ended, or their namespace is not enforced any more.
    """
    there = set()
    for pod in managed:
        there.add(pod.uid)
        yield pod
    for uid in ledger.by_pod:
        if uid not in there:
            ref = ledger.parts_of(uid)[0][1].pod
            seen = sight(ref)
            if isinstance(seen, PodSeen):
                yield SeenPod(ref.namespace, ref.name or "", uid, seen.node, seen.has_ended)


class PodRow(msgspec.Struct, frozen=True, rename="kebab"):
    """A managed pod, or one that still holds GPUs."""

    namespace: str
    name: str
    uid: str
    state: str
    """pending, bound, ended (it holds GPUs that are being released), or gone: it holds GPUs, and
    the API server has no such pod."""
    node: str
    gpus: dict[str, str]
    """UUID to the state of its reservation."""


def pod_rows(seen: Iterable[SeenPod] | None, ledger: LedgerSnapshot) -> list[PodRow]:
    """By namespace and name; `seen` is None where nothing knows pods."""
    rows: dict[str, PodRow] = {}
    for pod in seen or ():
        held = ledger.parts_of(pod.uid)
        if pod.has_ended and not held:
            continue
        node = pod.node or (held[0][0].record.node if held else "")
        gpus = {x.record.gpu: holder.state.value for x, holder in held}
        rows[pod.uid] = PodRow(pod.namespace, pod.name, pod.uid, pod.state, node, gpus)
    for uid in ledger.by_pod:
        if uid in rows:
            continue
        held = ledger.parts_of(uid)
        entry, holder = held[0]
        gpus = {x.record.gpu: part.state.value for x, part in held}
        state, pod_ref = BOUND if seen is None else GONE, holder.pod
        rows[uid] = PodRow(
            pod_ref.namespace, pod_ref.name or "-", uid, state, entry.record.node, gpus
        )
    return sorted(rows.values(), key=lambda x: (x.namespace, x.name, x.uid))


# --- one pod


class StageView(msgspec.Struct, frozen=True, rename="kebab"):
    """A stage on the way to a GPU."""

    name: str
    state: str
    """reached, waiting, unneeded, over, missing, mismatch or unknown."""
    at: str
    source: str
    digest: str
    """Of the evidence or of the list of nodes that says it; empty where there is none."""
    gpus: list[str]
    findings: list[str]


class RejectionView(msgspec.Struct, frozen=True, rename="kebab"):
    """All nodes that are rejected for one reason, and what would have to change."""

    code: str
    cause: str
    remedy: str
    detail: str
    count: int
    nodes: list[str]
    """The first few by name."""


class PodRecord(msgspec.Struct, frozen=True, rename="kebab"):
    """A record of the audit log about it."""

    record: int
    at: str
    kind: str
    decision: str
    codes: list[str]
    node: str


class PodDetail(msgspec.Struct, frozen=True, rename="kebab"):
    """One pod."""

    namespace: str
    name: str
    uid: str
    phase: str
    """Empty where the API server has no such pod."""
    managed: bool
    wrong: bool
    """Whether something does not agree, or is not there."""
    report_only: bool
    code: str
    """What keeps it from every node; else empty."""
    detail: str
    guarantee: str
    """exact, set or node: what it is given, or the best that a node would promise."""
    stages: list[StageView]
    passing: int
    passing_nodes: list[str]
    rejections: list[RejectionView]
    """What holds it back first."""
    records: list[PodRecord]
    records_since: str


class NodeVerdict(msgspec.Struct, frozen=True, rename="kebab"):
    """What one node is to a pod that waits."""

    node: str
    passes: bool
    code: str
    detail: str
    remedy: str
    """What would have to change; empty where it passes."""
    guarantee: str


def pod_detail(found: pb.ExplainPodResponse) -> PodDetail:
    """The trace, with what admission and filter have said between requirement and reservation."""
    stages = {x.name: _stage(x) for x in found.stages}
    is_bound = stages[StageName.BOUND].state not in {StageState.WAITING, StageState.OVER}
    ordered = [
        stages[StageName.REQUIRED],
        _decided(_ADMITTED, found, has_passed=bool(found.phase)),
        _decided(_FILTERED, found, has_passed=is_bound),
        *(stages[x] for x in list(StageName)[1:]),
    ]
    return PodDetail(
        namespace=found.namespace,
        name=found.name,
        uid=found.uid,
        phase=found.phase,
        managed=found.managed,
        wrong=found.wrong,
        report_only=found.report_only,
        code=found.code,
        detail=found.detail,
        guarantee=found.guarantee_given or found.guarantee,
        stages=ordered,
        passing=found.passing,
        passing_nodes=list(found.passing_nodes),
        rejections=[_rejection(x) for x in found.rejections],
        records=[
            PodRecord(x.seq, x.at, x.kind, x.decision, list(x.codes), x.node) for x in found.records
        ][::-1],
        records_since=found.records_since,
    )


def _stage(one: pb.Stage) -> StageView:
    return StageView(
        one.name,
        one.state,
        one.at,
        one.source,
        one.evidence_digest,
        list(one.gpus),
        list(one.findings),
    )


@dataclass(frozen=True, slots=True)
class _Decision:
    """What a stage shows that is known by the audit log alone."""

    name: str
    kind: RecordKind
    good: frozenset[str]
    would_be: str
    """What is said of a decision that report-only mode did not carry out."""
    passed: str
    """Why a refusal was not the last word."""


_OVER: Final = frozenset({"", "Succeeded", "Failed"})
"""Phases of a pod that waits for nothing; the first is of one that is gone."""
_ADMITTED: Final = _Decision(
    "admitted",
    RecordKind.ADMISSION_DECISION,
    frozenset({"admitted"}),
    "would be denied",
    "the pod exists: another request was meant, or another replica admitted it since",
)
_FILTERED: Final = _Decision(
    "filtered",
    RecordKind.FILTER_DECISION,
    frozenset({"passed"}),
    "would be rejected by every node",
    "the pod is bound: another replica has let it pass since",
)


def _decided(one: _Decision, found: pb.ExplainPodResponse, *, has_passed: bool) -> StageView:
    """By the last decision of this replica that its log still has."""
    last = next((x for x in reversed(found.records) if x.kind == one.kind), None)
    if last is None and found.phase and not found.managed:
        text = "gpuwarden decides nothing about a pod that asks it for nothing"
        return StageView(one.name, StageState.UNNEEDED, "", "", "", [], [text])
    if last is None:
        text = "this replica's log has no decision about it; another replica's may"
        return StageView(one.name, StageState.UNKNOWN, "", "audit log", "", [], [text])
    is_reported = last.decision == "reported"
    word = f"report-only: {one.would_be}" if is_reported else last.decision
    lines = [f"{word}: record {last.seq}", *last.codes]
    is_good = not last.codes or last.decision in one.good or is_reported
    if is_good:
        state = StageState.REACHED
    elif has_passed:
        state = StageState.REACHED
        lines.append(one.passed)
    else:
        state = StageState.OVER if found.phase in _OVER else StageState.WAITING
    return StageView(one.name, state, last.at, "audit log", "", [], lines)


def _rejection(one: pb.Rejection) -> RejectionView:
    known = _explained(one.code)
    return RejectionView(
        one.code, known.get("cause", ""), known.get("remedy", ""), one.detail, one.count,
        list(one.nodes),
    )  # fmt: skip


def _explained(code: str) -> Mapping[str, str]:
    try:
        text = EXPLANATIONS[ReasonCode(code)]
    except (KeyError, ValueError):
        return {}
    return {"cause": text.cause, "remedy": text.remedy}


def verdicts(fits: Iterable[NodeFit], *, has_details: bool) -> Iterator[NodeVerdict]:
    """Every node's, in the order of their names; a detail can name a serial."""
    for fit in fits:
        if fit.refusal is not None:
            code = fit.refusal.code.value
            remedy = _explained(code).get("remedy", "")
            detail = fit.refusal.detail if has_details else ""
            yield NodeVerdict(fit.node, False, code, detail, remedy, "")  # noqa: FBT003 -- as in its fields
        else:
            promise = "" if fit.promise is None else fit.promise.guarantee.value
            yield NodeVerdict(fit.node, True, "", "", "", promise)  # noqa: FBT003 -- same
