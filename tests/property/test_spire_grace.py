"""Level L1 over time: whatever the SPIRE server does, trust follows its last word and its age."""

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.spire.snapshot import SpireSnapshot
from controller.spire.verification import SpireLimits, agent_standing, entry_refusal, image_refusal
from controller.verifier.context import Standing
from gpuwarden.reasons import EFFECT_OF, Effect, ReasonCode, Refusal
from tests.builders.spire import PEER, TD, S, spire_agent, spire_entry, spire_question

ROUND_S = 15
EVENTS = st.lists(
    st.tuples(
        st.integers(min_value=0, max_value=400),
        st.sampled_from(["ban", "unban", "evict", "attest", "unregister", "register", "poll"]),
    ),
    max_size=30,
)
"""Seconds that pass, and what happens then; a poll is one that was answered."""
REVOKING = {
    ReasonCode.SPIRE_AGENT_BANNED,
    ReasonCode.SPIRE_AGENT_NOT_FOUND,
    ReasonCode.SPIRE_ENTRY_NOT_FOUND,
}


class Truth:
    """What the server knows at each moment."""

    def __init__(self) -> None:
        self.present = self.registered = True
        self.banned = False

    def happen(self, event: str) -> None:
        match event:
            case "ban" | "unban":
                self.banned = event == "ban"
            case "evict" | "attest":
                self.present = event == "attest"
            case "register" | "unregister":
                self.registered = event == "register"

    def snapshot(self, now_ns: int) -> SpireSnapshot:
        agent = spire_agent(banned=self.banned, expires_ns=1 << 62)
        return SpireSnapshot(
            {agent.agent_id: agent} if self.present else {},
            now_ns,
            {PEER: (spire_entry(),)} if self.registered else {},
            now_ns,
        )


def judged(snapshot: SpireSnapshot, limits: SpireLimits, now_ns: int) -> Standing | Refusal:
    question = spire_question(now_ns)
    if refusal := entry_refusal(snapshot, limits, question):
        return refusal
    found = agent_standing(snapshot, limits, question)
    if isinstance(found, Refusal):
        return found
    return image_refusal(snapshot, limits, question) or found


@settings(max_examples=300)
@given(events=EVENTS, grace_s=st.integers(min_value=0, max_value=600))
def test_trust_follows_the_last_answer_and_ends_with_its_age(
    events: list[tuple[int, str]], grace_s: int
) -> None:
    limits = SpireLimits(TD, grace_s * S, ROUND_S * S)
    truth, now_ns = Truth(), 1_000 * S
    snapshot, told = truth.snapshot(now_ns), said(truth)
    for seconds, event in events:
        now_ns += seconds * S
        truth.happen(event)
        if event == "poll":
            snapshot, told = truth.snapshot(now_ns), said(truth)
        found = judged(snapshot, limits, now_ns)
        age_s = (now_ns - snapshot.agents_ns) / S
        counts = age_s < max(grace_s, ROUND_S)
        good = told == (True, True, False)
        assert isinstance(found, Standing) is (good and counts)
        if isinstance(found, Refusal):
            revokes = EFFECT_OF[found.code] is Effect.REVOKE
            assert revokes is (found.code in REVOKING)
            if good:
                assert found.code is ReasonCode.SPIRE_STATUS_STALE
            if revokes and not counts:
                assert found.code is ReasonCode.SPIRE_AGENT_BANNED


def said(truth: Truth) -> tuple[bool, bool, bool]:
    return truth.present, truth.registered, truth.banned


@given(older_s=st.integers(min_value=0, max_value=2_000), more_s=st.integers(0, 2_000))
def test_a_snapshot_only_loses_by_getting_older(older_s: int, more_s: int) -> None:
    limits = SpireLimits(TD, 300 * S, ROUND_S * S)
    snapshot = Truth().snapshot(0)
    young = judged(snapshot, limits, older_s * S)
    old = judged(snapshot, limits, (older_s + more_s) * S)
    assert isinstance(young, Standing) or isinstance(old, Refusal)
