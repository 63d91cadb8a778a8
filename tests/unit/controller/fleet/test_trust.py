from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from controller.fleet.enrollment import Candidate, EnrolledGpu
from controller.fleet.trust import (
    MAX_REFUSALS,
    ChangeKind,
    Event,
    EvidenceAccepted,
    EvidenceRefused,
    NewsReceived,
    NodeRecord,
    Quarantine,
    Release,
    Tick,
    TrustChange,
    apply,
    needs_grant,
    new_record,
)
from controller.fleet.view import Acceptance, NodeState
from controller.policy import NodeMode
from gpuwarden.reasons import EFFECT_OF, STEP_OF, Effect, ReasonCode
from tests.builders.inventory import lost_gpu
from tests.builders.node_views import HASH_B, acceptance, gpu_view

S = 1_000_000_000
LEASE = 90 * S
K = ChangeKind
UUID_0, UUID_1 = gpu_view(0).uuid, gpu_view(1).uuid


def proven(at: int, **changes: Any) -> Acceptance:
    """Evidence that answered a challenge issued `at` seconds."""
    times = {"challenge_issued_ns": at * S, "fresh_until_ns": at * S + LEASE}
    return acceptance(**(times | {"evidence_digest": f"{at:064d}"} | changes))


def accept(at: int, now: int | None = None, **changes: Any) -> EvidenceAccepted:
    return EvidenceAccepted(proven(at, **changes), (at + 1 if now is None else now) * S)


def refuse(code: ReasonCode, now: int, **changes: Any) -> EvidenceRefused:
    event = EvidenceRefused(code, STEP_OF[code], EFFECT_OF[code], "why", now * S, now * S)
    return replace(event, **changes)


def after(*events: Event) -> tuple[NodeRecord, list[ChangeKind]]:
    """The record and all kinds of change, in order."""
    record, kinds = new_record("gpu-1", NodeMode.ENV), []
    for event in events:
        outcome = apply(record, event)
        record = outcome.record
        kinds += [x.kind for x in outcome.changes]
    return record, kinds


def state(record: NodeRecord, now: int) -> NodeState:
    return record.view.state(now * S)


def test_a_new_node_is_unknown() -> None:
    assert state(after()[0], 0) is NodeState.UNKNOWN


def test_the_lease_counts_from_the_issue_of_the_challenge() -> None:
    record, kinds = after(accept(100, now=114))
    assert kinds == [K.FIRST_ACCEPTED]
    assert state(record, 189) is NodeState.ELIGIBLE
    assert state(record, 190) is NodeState.STALE


def test_an_unchanged_round_renews() -> None:
    record, kinds = after(accept(100), accept(125))
    assert kinds == [K.FIRST_ACCEPTED, K.RENEWED]
    assert state(record, 214) is NodeState.ELIGIBLE


@pytest.mark.parametrize(
    "changes",
    [
        {"attestation_hash": HASH_B},
        {"instance_id": "2" * 32},
        {"warnings": ("x",)},
        {"gpus": (gpu_view(0), gpu_view(1, ecc=False))},
    ],
)
def test_other_facts_are_a_change(changes: dict[str, Any]) -> None:
    assert after(accept(100), accept(125, **changes))[1] == [K.FIRST_ACCEPTED, K.FACTS_CHANGED]


@pytest.mark.parametrize("at", [100, 99])
def test_older_facts_never_replace_newer_ones(at: int) -> None:
    record, kinds = after(accept(100), accept(at, now=130, attestation_hash=HASH_B))
    assert kinds[-1] is K.OUTDATED
    assert record.view.acceptance == proven(100)


def test_the_end_of_a_lease_is_reported_once_and_the_next_round_restores() -> None:
    record, kinds = after(
        accept(100), Tick(189 * S), Tick(190 * S), Tick(191 * S), accept(200), Tick(290 * S)
    )
    assert kinds == [K.FIRST_ACCEPTED, K.LEASE_ENDED, K.RESTORED, K.LEASE_ENDED]
    assert state(record, 290) is NodeState.STALE


def test_evidence_that_comes_after_its_own_lease_does_not_make_eligible() -> None:
    record, kinds = after(accept(100, now=190), Tick(190 * S))
    assert kinds == [K.FIRST_ACCEPTED]
    assert state(record, 190) is NodeState.STALE


def test_a_transient_refusal_lets_the_lease_run() -> None:
    record, kinds = after(accept(100), refuse(ReasonCode.INVENTORY_INCOMPLETE, 126))
    assert kinds[-1] is K.REFUSED
    assert state(record, 189) is NodeState.ELIGIBLE
    assert state(record, 190) is NodeState.STALE
    assert record.view.refusals[0].code is ReasonCode.INVENTORY_INCOMPLETE


def test_a_node_that_was_only_refused_is_refused() -> None:
    assert state(after(refuse(ReasonCode.CLOCK_SKEW, 1))[0], 2) is NodeState.REFUSED
    assert state(after(refuse(ReasonCode.GPU_DENIED, 1))[0], 2) is NodeState.REFUSED


def test_revocation_is_immediate_and_ended_by_newer_evidence() -> None:
    record, kinds = after(accept(100), refuse(ReasonCode.GPU_CLAIMED_TWICE, 126))
    assert kinds[-1] is K.REVOKED
    assert state(record, 126) is NodeState.REVOKED
    record = apply(record, accept(130)).record
    assert state(record, 131) is NodeState.ELIGIBLE
    assert record.view.blocked is None


def test_evidence_asked_for_before_a_revocation_does_not_end_it() -> None:
    record, kinds = after(accept(100), refuse(ReasonCode.SIG_INVALID, 126), accept(126, now=127))
    assert kinds[-1] is K.OUTDATED
    assert state(record, 127) is NodeState.REVOKED


def test_quarantine_outlives_good_evidence_and_ends_by_release_and_then_evidence() -> None:
    record, kinds = after(accept(100), refuse(ReasonCode.INVENTORY_CHANGED, 126), accept(130))
    assert kinds == [K.FIRST_ACCEPTED, K.QUARANTINED, K.RENEWED]
    assert state(record, 131) is NodeState.QUARANTINED
    outcome = apply(record, Release("card replaced", 140 * S, 140 * S))
    assert outcome.changes == (
        TrustChange("gpu-1", K.RELEASED, ReasonCode.INVENTORY_CHANGED, "card replaced"),
    )
    assert state(outcome.record, 141) is NodeState.REVOKED
    assert "card replaced" in str(outcome.record.view.blocked)
    outdated = apply(outcome.record, accept(139, now=141))
    assert state(outdated.record, 142) is NodeState.REVOKED
    restored = apply(outcome.record, accept(145))
    assert [x.kind for x in restored.changes] == [K.RESTORED]
    assert state(restored.record, 146) is NodeState.ELIGIBLE


def test_a_weaker_refusal_does_not_soften_a_quarantine() -> None:
    record, kinds = after(
        refuse(ReasonCode.DUPLICATE_AGENT, 1), refuse(ReasonCode.NODE_DENIED, 2), accept(5)
    )
    assert kinds == [K.QUARANTINED, K.REVOKED, K.RENEWED]
    assert state(record, 6) is NodeState.QUARANTINED
    assert record.view.blocked is not None
    assert record.view.blocked.code is ReasonCode.DUPLICATE_AGENT


def test_a_later_quarantine_replaces_the_reason() -> None:
    record, _ = after(
        refuse(ReasonCode.DUPLICATE_AGENT, 1), refuse(ReasonCode.INVENTORY_CHANGED, 2)
    )
    assert record.view.blocked is not None
    assert record.view.blocked.code is ReasonCode.INVENTORY_CHANGED


def test_an_operator_quarantines() -> None:
    event = Quarantine(ReasonCode.NODE_QUARANTINED, "maintenance", 120 * S, 120 * S)
    record, kinds = after(accept(100), event)
    assert kinds[-1] is K.QUARANTINED
    assert state(record, 120) is NodeState.QUARANTINED


@pytest.mark.parametrize("events", [(), (accept(100),), (refuse(ReasonCode.GPU_DENIED, 1),)])
def test_only_a_quarantine_can_be_released(events: tuple[Event, ...]) -> None:
    record, _ = after(*events)
    outcome = apply(record, Release("please", 140 * S, 140 * S))
    assert outcome.record is record
    assert outcome.changes == ()


def test_before_step_6_no_refusal_hurts_a_node() -> None:
    event = refuse(ReasonCode.CHAIN_INVALID, 126, effect=Effect.QUARANTINE)
    record, kinds = after(accept(100), event)
    assert kinds[-1] is K.REFUSED
    assert state(record, 127) is NodeState.ELIGIBLE


def test_repeats_are_counted_and_memory_is_bounded() -> None:
    record, _ = after(*(refuse(ReasonCode.CLOCK_SKEW, now) for now in range(5)))
    assert [(x.code, x.count, x.wall_ns) for x in record.view.refusals] == [
        (ReasonCode.CLOCK_SKEW, 5, 4 * S)
    ]
    codes = [ReasonCode.CLOCK_SKEW, ReasonCode.INVENTORY_EMPTY]
    record, _ = after(*(refuse(codes[now % 2], now) for now in range(40)))
    assert len(record.view.refusals) == MAX_REFUSALS
    assert record.view.refusals[0].wall_ns == 39 * S


class TestBadNews:
    def news(self, gpu: str | None, now: int) -> NewsReceived:
        return NewsReceived("xid 79", gpu, now * S, now * S)

    def unhealthy(self, record: NodeRecord) -> list[str | None]:
        assert record.view.acceptance is not None
        return [x.unhealthy for x in record.view.acceptance.gpus]

    def test_a_gpu_is_taken_away_and_the_lease_is_not_extended(self) -> None:
        record, kinds = after(accept(100), self.news(UUID_1, 120))
        assert kinds[-1] is K.GPU_UNHEALTHY
        assert self.unhealthy(record) == [None, "xid 79"]
        assert state(record, 189) is NodeState.ELIGIBLE
        assert state(record, 190) is NodeState.STALE

    def test_newer_evidence_shows_the_gpu_again(self) -> None:
        record, kinds = after(accept(100), self.news(UUID_1, 120), accept(121))
        assert kinds[-2:] == [K.RESTORED, K.GPU_BACK]
        assert self.unhealthy(record) == [None, None]

    def test_newer_evidence_with_a_fault_that_has_not_ended_keeps_it_away(self) -> None:
        """It changes nothing then, round after round, and tells when the end has come."""
        sick = (gpu_view(0), gpu_view(1, unhealthy="xid 48, until the GPU is reset"))
        events = (accept(100), self.news(UUID_1, 120), accept(121, gpus=sick))
        record, kinds = after(*events, accept(130, gpus=sick))
        assert self.unhealthy(record) == [None, "xid 48, until the GPU is reset"]
        assert kinds[-2:] == [K.FACTS_CHANGED, K.RENEWED]
        record, kinds = after(*events, accept(130))
        assert self.unhealthy(record) == [None, None]
        assert kinds[-2:] == [K.FACTS_CHANGED, K.GPU_BACK]

    def test_a_fault_that_another_replica_was_told_of_is_announced(self) -> None:
        sick = (gpu_view(0), gpu_view(1, unhealthy="xid 48, until the GPU is reset"))
        _, kinds = after(accept(100), accept(121, gpus=sick))
        assert kinds[-2:] == [K.FACTS_CHANGED, K.GPU_UNHEALTHY]

    @pytest.mark.parametrize("asked", [125, 126])
    def test_evidence_asked_for_before_the_news_does_not(self, asked: int) -> None:
        record, _ = after(accept(100), self.news(UUID_1, 126), accept(asked, now=127))
        assert self.unhealthy(record) == [None, "xid 79"]

    @pytest.mark.parametrize("gpu", [None, "GPU-of-nobody"])
    def test_news_that_is_not_about_a_known_gpu_takes_the_node(self, gpu: str | None) -> None:
        record, kinds = after(accept(100), self.news(gpu, 120))
        assert kinds[-1] is K.REVOKED
        assert state(record, 121) is NodeState.REVOKED
        assert state(apply(record, accept(121)).record, 122) is NodeState.ELIGIBLE

    def test_news_of_a_node_that_was_never_accepted_make_it_no_better(self) -> None:
        record, _ = after(self.news(UUID_1, 120))
        assert state(record, 121) is NodeState.REFUSED

    def test_a_refusal_takes_away_the_gpus_it_says_are_gone(self) -> None:
        lost = MappingProxyType({UUID_0: "GPU_IS_LOST", "GPU-of-nobody": "VANISHED"})
        event = refuse(ReasonCode.INVENTORY_EMPTY, 126, lost=lost)
        record, kinds = after(accept(100), event)
        assert kinds[-2:] == [K.REFUSED, K.GPU_UNHEALTHY]
        assert self.unhealthy(record) == ["GPU_IS_LOST", None]
        record, kinds = after(event)
        assert kinds == [K.REFUSED]
        assert record.bad_gpus == {}


def test_lost_and_returned_gpus_are_reported() -> None:
    gone = gpu_view(1, lost=lost_gpu(1))
    record, kinds = after(accept(100), accept(125, gpus=(gpu_view(0), gone)))
    assert kinds == [K.FIRST_ACCEPTED, K.FACTS_CHANGED, K.GPU_LOST]
    assert [x.kind for x in apply(record, accept(150, gpus=(gpu_view(0), gone))).changes] == [
        K.RENEWED
    ]
    back = apply(record, accept(150)).changes
    assert [(x.kind, x.gpu) for x in back] == [(K.FACTS_CHANGED, None), (K.GPU_BACK, UUID_1)]


def test_only_new_trust_needs_a_durable_record() -> None:
    record, _ = after()
    assert needs_grant(record, proven(100), 101 * S)
    record, _ = after(accept(100))
    assert not needs_grant(record, proven(125), 126 * S)
    assert needs_grant(record, proven(125, attestation_hash=HASH_B), 126 * S)
    assert needs_grant(record, proven(200), 201 * S)
    assert not needs_grant(record, proven(99), 126 * S)
    quarantined, _ = after(accept(100), refuse(ReasonCode.INVENTORY_CHANGED, 110))
    assert not needs_grant(quarantined, proven(125), 126 * S)
    revoked, _ = after(accept(100), refuse(ReasonCode.GPU_DENIED, 110))
    assert needs_grant(revoked, proven(125), 126 * S)


class TestCandidates:
    """What the last judged evidence showed waits for an operator, and nothing older does."""

    OFFERED = Candidate("INVENTORY_NOT_ENROLLED", None, None, (EnrolledGpu("GPU-new"),), "e" * 64)

    def refused(
        self, record: NodeRecord, code: ReasonCode, offered: Candidate | None
    ) -> NodeRecord:
        event = EvidenceRefused(
            code, STEP_OF[code], EFFECT_OF[code], "x", 60 * S, 1, candidate=offered
        )
        return apply(record, event).record

    def offering(self) -> NodeRecord:
        record = new_record("gpu-1", NodeMode.ENV)
        return self.refused(record, ReasonCode.INVENTORY_NOT_ENROLLED, self.OFFERED)

    def test_it_is_remembered(self) -> None:
        assert self.offering().view.candidate == self.OFFERED

    def test_a_refusal_before_the_hardware_was_judged_leaves_it(self) -> None:
        after = self.refused(self.offering(), ReasonCode.CLOCK_SKEW, None)
        assert after.view.candidate == self.OFFERED

    def test_a_refusal_of_the_hardware_for_another_cause_ends_it(self) -> None:
        after = self.refused(self.offering(), ReasonCode.INVENTORY_INCOMPLETE, None)
        assert after.view.candidate is None

    def test_an_acceptance_ends_it(self) -> None:
        accepted = EvidenceAccepted(acceptance(challenge_issued_ns=70 * S), 71 * S)
        assert apply(self.offering(), accepted).record.view.candidate is None

    def test_a_release_ends_it(self) -> None:
        code = ReasonCode.INVENTORY_CHANGED
        record = self.refused(self.offering(), code, self.OFFERED)
        assert apply(record, Release("why", 61 * S, 2)).record.view.candidate is None
