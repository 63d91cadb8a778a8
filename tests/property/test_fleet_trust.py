"""Whatever happens to a node in whatever order, the rules of trust hold."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.fleet.trust import (
    MAX_REFUSALS,
    ChangeKind,
    Event,
    EvidenceAccepted,
    EvidenceRefused,
    NewsReceived,
    Quarantine,
    Release,
    Tick,
    TrustChange,
    apply,
    needs_grant,
    new_record,
)
from controller.fleet.view import NodeState
from controller.policy import NodeMode
from gpuwarden.reasons import EFFECT_OF, STEP_OF, Effect, ReasonCode
from tests.builders.node_views import acceptance, gpu_view

S = 1_000_000_000
LEASE = 90
CODES = st.sampled_from(sorted(set(EFFECT_OF) & set(STEP_OF)))
GPUS = st.sampled_from([None, gpu_view(0).uuid, gpu_view(1).uuid, "GPU-of-nobody"])
GRANTING = {ChangeKind.FIRST_ACCEPTED, ChangeKind.RESTORED, ChangeKind.FACTS_CHANGED}


@dataclass
class Model:
    """What must hold, in the plainest words: seconds of the last events of each kind."""

    now: int = 1_000
    issued: list[int] = field(default_factory=list)
    """Challenges of accepted evidence that counted."""
    revoked_at: int = -1
    quarantined: bool = False
    sick: dict[str, int] = field(default_factory=dict)


class NodeTrustMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.record = new_record("gpu-1", NodeMode.ENV)
        self.model = Model()

    def send(self, event: Event) -> tuple[TrustChange, ...]:
        outcome = apply(self.record, event)
        self.record = outcome.record
        return outcome.changes

    @rule(seconds=st.integers(min_value=0, max_value=60))
    def time_passes(self, seconds: int) -> None:
        self.model.now += seconds
        before = self.eligible()
        self.send(Tick(self.model.now * S))
        assert self.eligible() == before

    @rule(age=st.integers(min_value=0, max_value=120), hash_digit=st.sampled_from("ab"))
    def evidence_is_accepted(self, age: int, hash_digit: str) -> None:
        model, issued = self.model, self.model.now - age
        proven = acceptance(
            attestation_hash=f"v1:sha256:{hash_digit * 64}",
            challenge_issued_ns=issued * S,
            fresh_until_ns=(issued + LEASE) * S,
        )
        was_eligible = self.eligible()
        granted = needs_grant(self.record, proven, model.now * S)
        changes = self.send(EvidenceAccepted(proven, model.now * S))
        assert granted == bool({x.kind for x in changes} & GRANTING)
        newest = max(model.issued, default=-1)
        blocked = model.revoked_at >= 0
        if issued > newest and not (blocked and issued <= model.revoked_at):
            model.issued.append(issued)
            model.sick = {k: v for k, v in model.sick.items() if v >= issued}
            if not model.quarantined:
                model.revoked_at = -1
        if self.eligible() and not was_eligible:
            assert granted

    @rule(code=CODES, lost=GPUS)
    def evidence_is_refused(self, code: ReasonCode, lost: str | None) -> None:
        model, step, effect = self.model, STEP_OF[code], EFFECT_OF[code]
        before = self.eligible()
        gone = {lost: "GPU_IS_LOST"} if lost else {}
        self.send(EvidenceRefused(code, step, effect, "x", model.now * S, model.now * S, gone))
        assert not self.eligible() or before
        if step >= 6 and effect is not Effect.TRANSIENT:
            assert not self.eligible()
            self.block(quarantined=effect is Effect.QUARANTINE)
        else:
            assert self.eligible() == before
        if lost:
            self.fall_ill(lost)

    @rule(gpu=GPUS)
    def bad_news_come(self, gpu: str | None) -> None:
        before, now = self.eligible(), self.model.now * S
        fresh_until = self.lease()
        self.send(NewsReceived("xid 79", gpu, now, now))
        assert not self.eligible() or before
        assert self.lease() == fresh_until
        known = gpu is not None and gpu != "GPU-of-nobody" and bool(self.model.issued)
        if known and gpu is not None:
            self.fall_ill(gpu)
        else:
            assert not self.eligible()
            self.block(quarantined=False)

    @rule()
    def an_operator_quarantines(self) -> None:
        now = self.model.now * S
        self.send(Quarantine(ReasonCode.NODE_QUARANTINED, "why", now, now))
        self.block(quarantined=True)

    @rule()
    def an_operator_releases(self) -> None:
        now = self.model.now * S
        self.send(Release("why", now, now))
        if self.model.quarantined:
            self.model.quarantined = False
            self.model.revoked_at = self.model.now
        assert not self.eligible() or self.model.revoked_at < 0

    @precondition(lambda self: self.model.quarantined)
    @rule()
    def only_a_release_ends_a_quarantine(self) -> None:
        assert self.record.view.state(self.model.now * S) is NodeState.QUARANTINED

    @invariant()
    def eligible_means_accepted_within_the_lease_and_not_blocked_since(self) -> None:
        model = self.model
        fresh = bool(model.issued) and model.now < max(model.issued) + LEASE
        assert self.eligible() == (fresh and model.revoked_at < 0 and not model.quarantined)

    @invariant()
    def the_newest_facts_stand(self) -> None:
        shown = self.record.view.acceptance
        newest = max(self.model.issued, default=None)
        assert (shown.challenge_issued_ns // S if shown else None) == newest

    @invariant()
    def sick_gpus_are_not_offered(self) -> None:
        shown = self.record.view.acceptance
        sick = {x.uuid for x in shown.gpus if x.unhealthy} if shown else set()
        assert sick == set(self.model.sick)

    @invariant()
    def memory_is_bounded(self) -> None:
        assert len(self.record.view.refusals) <= MAX_REFUSALS
        assert len(self.record.bad_gpus) <= 2

    def eligible(self) -> bool:
        return self.record.view.state(self.model.now * S) is NodeState.ELIGIBLE

    def lease(self) -> int:
        shown = self.record.view.acceptance
        return shown.fresh_until_ns if shown else 0

    def block(self, *, quarantined: bool) -> None:
        if quarantined or not self.model.quarantined:
            self.model.revoked_at = self.model.now
        self.model.quarantined = self.model.quarantined or quarantined

    def fall_ill(self, gpu: str) -> None:
        if self.model.issued and gpu != "GPU-of-nobody":
            self.model.sick[gpu] = self.model.now


TestNodeTrust = NodeTrustMachine.TestCase
TestNodeTrust.settings = settings(max_examples=60, stateful_step_count=30)
