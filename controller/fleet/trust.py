"""How much one node is trusted over time: a pure state machine, (record, event) -> what follows.

Rules, in order of strength:

- Quarantine ends only by an operator, and then into "revoked": the next accepted
  evidence that answers a challenge issued after that brings the node back.
- A refusal with effect revoke takes a node out at once; a transient one lets its lease
  run out. A weaker refusal never softens a stronger one.
- Only accepted evidence gives trust, until the lease ends that counts from the issue
  of its challenge. Facts never give way to older ones, and nothing asked for before a
  refusal ends that refusal.
- A failure notice only takes away: a GPU until newer evidence shows it without a fault, or the
  whole node where it is not about one GPU that the node is known to have.

An event that this table does not list is a programming error and raises; no caller may
take that for trust. Reads no clock; `NodeView.state` decides freshness when asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Final, assert_never

from controller.fleet.enrollment import Candidate
from controller.fleet.view import (
    Acceptance,
    NodeState,
    NodeView,
    PastRefusal,
    with_faults,
)
from controller.policy import NodeMode
from gpuwarden.reasons import Effect, ReasonCode

MAX_REFUSALS: Final = 16
"""Refusals remembered per node, repeats counted in one."""

_FIRST_STEP_OF_THE_NODE: Final = 6
_INVENTORY_STEP: Final = 16


class ChangeKind(StrEnum):
    """What happened to a node; recorded as Events, metrics, audit records."""

    FIRST_ACCEPTED = "first-accepted"
    RENEWED = "renewed"
    """Unchanged round."""
    RESTORED = "restored"
    """Accepted after a refusal or a lease that had run out."""
    FACTS_CHANGED = "facts-changed"
    """Accepted as before, with other facts, class or process."""
    OUTDATED = "outdated"
    """Accepted evidence that counts for nothing: newer facts or a later refusal are in force."""
    REFUSED = "refused"
    """Transient: the lease runs on."""
    REVOKED = "revoked"
    QUARANTINED = "quarantined"
    RELEASED = "released"
    LEASE_ENDED = "lease-ended"
    GPU_LOST = "gpu-lost"
    GPU_BACK = "gpu-back"
    GPU_UNHEALTHY = "gpu-unhealthy"
    CLAIM_REPELLED = "claim-repelled"
    """Another node claimed a GPU of this one and was refused."""


@dataclass(frozen=True, slots=True)
class TrustChange:
    """One consequence of an event."""

    node: str
    kind: ChangeKind
    code: ReasonCode | None = None
    detail: str = ""
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class EvidenceAccepted:
    """The Verifier accepted and everything it takes to count is durable."""

    acceptance: Acceptance
    now_ns: int


@dataclass(frozen=True, slots=True)
class EvidenceRefused:
    """The Verifier refused."""

    code: ReasonCode
    step: int
    effect: Effect
    detail: str
    now_ns: int
    wall_ns: int
    lost: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """GPU UUID -> error: GPUs that the refused but authentic evidence says are gone."""
    candidate: Candidate | None = None


@dataclass(frozen=True, slots=True)
class NewsReceived:
    """An authentic failure."""

    text: str
    """What people are shown, for example `xid 79`."""
    gpu: str | None
    now_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Quarantine:
    """An operator, or another replica's verdict, takes the node out."""

    code: ReasonCode
    reason: str
    now_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Release:
    """An operator lets the node try again."""

    reason: str
    now_ns: int
    wall_ns: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    now_ns: int


Event = EvidenceAccepted | EvidenceRefused | NewsReceived | Quarantine | Release | Tick


@dataclass(frozen=True, slots=True)
class BadGpu:
    """A failure notice about a GPU and when it came (controller CLOCK_BOOTTIME)."""

    text: str
    since_ns: int


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """Everything the machine remembers about a node; `view` is what others see."""

    view: NodeView
    blocked_ns: int = 0
    """When the last refusal that blocks came."""
    bad_gpus: Mapping[str, BadGpu] = field(default_factory=lambda: MappingProxyType({}))
    lapsed: bool = False
    """The end of the present lease was announced."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The record after an event, and what follows from it."""

    record: NodeRecord
    changes: tuple[TrustChange, ...] = ()


def new_record(name: str, mode: NodeMode) -> NodeRecord:
    """A node that nothing is known about."""
    return NodeRecord(NodeView(name, None, None, (), mode))


def apply(record: NodeRecord, event: Event) -> Outcome:
    """What `event` makes of the node."""
    match event:
        case EvidenceAccepted():
            return _accepted(record, event)
        case EvidenceRefused():
            return _refused(record, event)
        case NewsReceived():
            return _news(record, event)
        case Quarantine():
            past = PastRefusal(event.wall_ns, event.code, 0, Effect.QUARANTINE, event.reason, 1)
            return _blocked(record, past, event.now_ns)
        case Release():
            return _released(record, event)
        case Tick():
            return _tick(record, event)
        case _ as never:
            assert_never(never)


def needs_grant(record: NodeRecord, acceptance: Acceptance, now_ns: int) -> bool:
    """Whether accepting gives trust that is not there now, so that the audit must be durable."""
    return _kind_of_acceptance(record, acceptance, now_ns) in {
        ChangeKind.FIRST_ACCEPTED,
        ChangeKind.RESTORED,
        ChangeKind.FACTS_CHANGED,
    }


def _accepted(record: NodeRecord, event: EvidenceAccepted) -> Outcome:
    view, acceptance = record.view, event.acceptance
    kind = _kind_of_acceptance(record, acceptance, event.now_ns)
    if kind is ChangeKind.OUTDATED:
        return Outcome(record, (TrustChange(view.name, kind),))
    bad = {
        uuid: news
        for uuid, news in record.bad_gpus.items()
        if news.since_ns >= acceptance.challenge_issued_ns
    }
    texts = {uuid: news.text for uuid, news in bad.items()}
    shown = replace(acceptance, gpus=with_faults(acceptance.gpus, texts)) if bad else acceptance
    after = NodeRecord(
        replace(view, acceptance=shown, blocked=_still_blocked(view.blocked), candidate=None),
        record.blocked_ns,
        MappingProxyType(bad),
        lapsed=event.now_ns >= acceptance.fresh_until_ns,
    )
    return Outcome(after, (TrustChange(view.name, kind), *_gpu_changes(view, shown)))


def _kind_of_acceptance(record: NodeRecord, acceptance: Acceptance, now_ns: int) -> ChangeKind:
    view, before, issued = record.view, record.view.acceptance, acceptance.challenge_issued_ns
    if before is not None and issued <= before.challenge_issued_ns:
        return ChangeKind.OUTDATED
    if view.blocked is not None and issued <= record.blocked_ns:
        return ChangeKind.OUTDATED
    if view.blocked is not None and view.blocked.effect is Effect.QUARANTINE:
        return ChangeKind.RENEWED
    if before is None:
        return ChangeKind.FIRST_ACCEPTED
    if view.state(now_ns) is not NodeState.ELIGIBLE or _heals(record, acceptance):
        return ChangeKind.RESTORED
    return ChangeKind.RENEWED if _same_facts(before, acceptance) else ChangeKind.FACTS_CHANGED


def _heals(record: NodeRecord, acceptance: Acceptance) -> bool:
    """Whether a GPU that a failure notice took away is healthy again."""
    return any(x.unhealthy is None and x.uuid in record.bad_gpus for x in acceptance.gpus)


def _still_blocked(blocked: PastRefusal | None) -> PastRefusal | None:
    quarantined = blocked is not None and blocked.effect is Effect.QUARANTINE
    return blocked if quarantined else None


def _same_facts(before: Acceptance, after: Acceptance) -> bool:
    """Whether only this round's own values differ: digest, times, use."""
    return bool(_FACTS(before) == _FACTS(after))


_OF_ONE_ROUND: Final = frozenset(
    {
        "evidence_digest",
        "challenge_issued_ns",
        "fresh_until_ns",
        "accepted_wall_ns",
        "processes_by_gpu",
        "allocations",
        "processes",
        "pods",
        "pods_unread",
    }
)
_FACTS: Final = attrgetter(
    *(x.name for x in fields(Acceptance) if x.compare and x.name not in _OF_ONE_ROUND)
)


def _refused(record: NodeRecord, event: EvidenceRefused) -> Outcome:
    effect = event.effect if event.step >= _FIRST_STEP_OF_THE_NODE else Effect.TRANSIENT
    past = PastRefusal(event.wall_ns, event.code, event.step, effect, event.detail, 1)
    outcome = _blocked(record, past, event.now_ns)
    for uuid, error in event.lost.items():
        outcome = _bad_gpu(outcome, uuid, BadGpu(error, event.now_ns))
    return outcome if event.step < _INVENTORY_STEP else _offering(outcome, event.candidate)


def _offering(outcome: Outcome, candidate: Candidate | None) -> Outcome:
    """Newer evidence was appraised: what older one showed is no longer there to be accepted."""
    view = replace(outcome.record.view, candidate=candidate)
    return replace(outcome, record=replace(outcome.record, view=view))


def _blocked(record: NodeRecord, past: PastRefusal, now_ns: int) -> Outcome:
    view = record.view
    refusals = _remembered(view.refusals, past)
    kind = _KIND_OF_EFFECT[past.effect]
    change = TrustChange(view.name, kind, past.code, past.detail)
    stronger = (
        view.blocked is not None
        and view.blocked.effect is Effect.QUARANTINE
        and past.effect is not Effect.QUARANTINE
    )
    if past.effect is Effect.TRANSIENT or stronger:
        return Outcome(replace(record, view=replace(view, refusals=refusals)), (change,))
    after = replace(record, view=replace(view, refusals=refusals, blocked=past), blocked_ns=now_ns)
    return Outcome(after, (change,))


def _remembered(refusals: tuple[PastRefusal, ...], past: PastRefusal) -> tuple[PastRefusal, ...]:
    """Newest first, bounded; a repeat of the newest is counted, with its latest words."""
    if refusals and refusals[0].code is past.code and refusals[0].effect is past.effect:
        return (replace(past, count=refusals[0].count + 1), *refusals[1:])
    return (past, *refusals)[:MAX_REFUSALS]


def _news(record: NodeRecord, event: NewsReceived) -> Outcome:
    known = record.view.acceptance.gpus if record.view.acceptance else ()
    if event.gpu is not None and any(x.uuid == event.gpu for x in known):
        return _bad_gpu(Outcome(record), event.gpu, BadGpu(event.text, event.now_ns))
    past = PastRefusal(event.wall_ns, ReasonCode.NVML_UNAVAILABLE, 0, Effect.REVOKE, event.text, 1)
    return _blocked(record, past, event.now_ns)


def _bad_gpu(outcome: Outcome, uuid: str, news: BadGpu) -> Outcome:
    record, view = outcome.record, outcome.record.view
    bad = MappingProxyType({**record.bad_gpus, uuid: news})
    acceptance = view.acceptance
    if acceptance is None or all(x.uuid != uuid for x in acceptance.gpus):
        return outcome
    texts = {x: each.text for x, each in bad.items()}
    shown = replace(acceptance, gpus=with_faults(acceptance.gpus, texts))
    change = TrustChange(view.name, ChangeKind.GPU_UNHEALTHY, detail=news.text, gpu=uuid)
    after = replace(record, view=replace(view, acceptance=shown), bad_gpus=bad)
    return Outcome(after, (*outcome.changes, change))


def _gpu_changes(view: NodeView, after: Acceptance) -> tuple[TrustChange, ...]:
    before = {x.uuid: x for x in (view.acceptance.gpus if view.acceptance else ())}
    changes = []
    for gpu in after.gpus:
        was_lost = gpu.uuid in before and before[gpu.uuid].lost is not None
        was_unhealthy = gpu.uuid in before and before[gpu.uuid].unhealthy is not None
        if gpu.unhealthy is not None and not was_unhealthy:
            changes.append(
                TrustChange(view.name, ChangeKind.GPU_UNHEALTHY, detail=gpu.unhealthy, gpu=gpu.uuid)
            )
        elif gpu.unhealthy is None and gpu.lost is None and was_unhealthy and not was_lost:
            changes.append(TrustChange(view.name, ChangeKind.GPU_BACK, gpu=gpu.uuid))
        if gpu.lost is not None and not was_lost:
            changes.append(
                TrustChange(
                    view.name, ChangeKind.GPU_LOST, ReasonCode.GPU_LOST, gpu.lost.error, gpu.uuid
                )
            )
        elif gpu.lost is None and was_lost:
            changes.append(TrustChange(view.name, ChangeKind.GPU_BACK, gpu=gpu.uuid))
    return tuple(changes)


def _released(record: NodeRecord, event: Release) -> Outcome:
    """Only a quarantine can be released, and only as far as "waits for new evidence"."""
    blocked = record.view.blocked
    if blocked is None or blocked.effect is not Effect.QUARANTINE:
        return Outcome(record)
    waiting = replace(
        blocked,
        wall_ns=event.wall_ns,
        effect=Effect.REVOKE,
        detail=f"released, waits for new evidence: {event.reason}",
    )
    view = replace(record.view, blocked=waiting, candidate=None)
    after = replace(record, view=view, blocked_ns=event.now_ns)
    change = TrustChange(record.view.name, ChangeKind.RELEASED, blocked.code, event.reason)
    return Outcome(after, (change,))


def _tick(record: NodeRecord, event: Tick) -> Outcome:
    if record.lapsed or record.view.state(event.now_ns) is not NodeState.STALE:
        return Outcome(record)
    change = TrustChange(record.view.name, ChangeKind.LEASE_ENDED, ReasonCode.NODE_STALE)
    return Outcome(replace(record, lapsed=True), (change,))


_KIND_OF_EFFECT: Final = {
    Effect.TRANSIENT: ChangeKind.REFUSED,
    Effect.REVOKE: ChangeKind.REVOKED,
    Effect.QUARANTINE: ChangeKind.QUARANTINED,
}
