from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from controller.policy import AttestorRules, Level, Policy
from controller.spire.snapshot import SpireSnapshot
from controller.spire.verification import (
    ENTRIES_AGE_NS,
    SpireLimits,
    agent_standing,
    entry_refusal,
    image_refusal,
)
from controller.verifier.context import SpireQuestion, Standing
from gpuwarden.reasons import ReasonCode as R
from gpuwarden.reasons import Refusal
from tests.builders.spire import (
    IMAGE,
    LIMITS,
    NODE,
    NOW_NS,
    PARENT,
    PEER,
    TD,
    UID,
    S,
    spire_agent,
    spire_entry,
    spire_question,
    spire_snapshot,
    x509pop_agent,
)

# --- Steps 7 to 9 on one snapshot: each reason code, and which comes first

OTHER = f"spiffe://{TD}/spire/agent/k8s_psat/prod/uid-2"
POP = f"spiffe://{TD}/spire/agent/x509pop/{'e' * 40}"
OLD: dict[str, Any] = {"agents_ns": NOW_NS - 300 * S, "entries_ns": NOW_NS - 300 * S}


def judged(
    snapshot: SpireSnapshot, question: SpireQuestion | None = None, limits: SpireLimits = LIMITS
) -> Standing | Refusal:
    """As the Verifier asks: 7, 8, 9."""
    question = question or spire_question()
    if refusal := entry_refusal(snapshot, limits, question):
        return refusal
    found = agent_standing(snapshot, limits, question)
    if isinstance(found, Refusal):
        return found
    return image_refusal(snapshot, limits, question) or found


def code(snapshot: SpireSnapshot, **question: Any) -> R | None:
    found = judged(snapshot, spire_question(**question))
    return found.code if isinstance(found, Refusal) else None


def test_a_confirmed_node_is_l1_and_says_by_what() -> None:
    assert judged(spire_snapshot()) == Standing(Level.L1, "k8s_psat", PARENT)


def test_x509pop_confirms_by_the_names_in_the_certificate() -> None:
    snapshot = spire_snapshot(x509pop_agent(POP), entries={PEER: (spire_entry(POP),)})
    assert judged(snapshot) == Standing(Level.L1, "x509pop", POP)


def test_several_entries_of_one_parent_are_normal_during_a_rolling_update() -> None:
    both = (spire_entry(), spire_entry(entry_id="entry-2"))
    assert code(spire_snapshot(entries={PEER: both})) is None


class TestEntries:
    def test_none(self) -> None:
        assert code(spire_snapshot(entries={})) is R.SPIRE_ENTRY_NOT_FOUND

    def test_an_expired_one_is_none(self) -> None:
        for ends, expected in ((NOW_NS, R.SPIRE_ENTRY_NOT_FOUND), (NOW_NS + 1, None)):
            snapshot = spire_snapshot(entries={PEER: (spire_entry(expires_ns=ends),)})
            assert code(snapshot) is expected

    def test_of_two_parents(self) -> None:
        snapshot = spire_snapshot(entries={PEER: (spire_entry(), spire_entry(OTHER))})
        assert code(snapshot) is R.SPIRE_ENTRY_AMBIGUOUS

    @pytest.mark.parametrize("missing", ["k8s:ns:gpuwarden", "k8s:sa:gpuwarden-agent"])
    def test_one_weak_entry_is_enough(self, missing: str) -> None:
        weak = spire_entry(entry_id="entry-2", selectors=spire_entry().selectors - {missing})
        snapshot = spire_snapshot(entries={PEER: (spire_entry(), weak)})
        assert code(snapshot) is R.SPIRE_ENTRY_WEAK

    def test_a_longer_name_does_not_satisfy_a_shorter_one(self) -> None:
        selectors = frozenset({"k8s:nsx:gpuwarden", "k8s:sa:gpuwarden-agent"})
        snapshot = spire_snapshot(entries={PEER: (spire_entry(selectors=selectors),)})
        assert code(snapshot) is R.SPIRE_ENTRY_WEAK

    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            (("k8s:ns:gpuwarden",), None),
            (("k8s",), None),
            (("k8s:ns:elsewhere",), R.SPIRE_ENTRY_WEAK),
            (("k8s:ns:gpu",), R.SPIRE_ENTRY_WEAK),
            (("k8s:ns", "unix:uid:0"), R.SPIRE_ENTRY_WEAK),
        ],
    )
    def test_policy_says_which_selectors(self, wanted: tuple[str, ...], expected: R | None) -> None:
        policy = Policy(attestors={"k8s_psat": AttestorRules(wanted)})
        assert code(spire_snapshot(), policy=policy) is expected

    def test_rules_are_per_attestor(self) -> None:
        """What k8s_psat nodes need is not asked of others."""
        entry = spire_entry(POP, selectors=frozenset({"unix:uid:0"}))
        snapshot = spire_snapshot(x509pop_agent(POP), entries={PEER: (entry,)})
        assert code(snapshot) is None
        policy = Policy(attestors={"x509pop": AttestorRules(("unix:path:/opt/agent",))})
        assert code(snapshot, policy=policy) is R.SPIRE_ENTRY_WEAK

    @pytest.mark.parametrize("what", ["admin", "downstream"])
    def test_privileged(self, what: str) -> None:
        privileged = replace(
            spire_entry(entry_id="entry-2"),
            admin=what == "admin",
            downstream=what == "downstream",
        )
        snapshot = spire_snapshot(entries={PEER: (spire_entry(), privileged)})
        found = judged(snapshot)
        assert isinstance(found, Refusal)
        assert (found.code, found.detail.endswith(what)) == (R.SPIRE_ENTRY_PRIVILEGED, True)

    @pytest.mark.parametrize(
        "parent",
        [
            f"spiffe://{TD}/node-alias/gpu-1",
            f"spiffe://{TD}/spire/server",
            f"spiffe://{TD}/spire/agent/",
            "spiffe://other.org/spire/agent/k8s_psat/prod/uid-1",
        ],
    )
    def test_parents_that_are_no_agents(self, parent: str) -> None:
        snapshot = spire_snapshot(spire_agent(parent), entries={PEER: (spire_entry(parent),)})
        assert code(snapshot) is R.SPIRE_PARENT_INVALID


class TestAgent:
    def test_evicted(self) -> None:
        assert code(spire_snapshot(spire_agent(OTHER))) is R.SPIRE_AGENT_NOT_FOUND

    def test_banned(self) -> None:
        assert code(spire_snapshot(spire_agent(banned=True))) is R.SPIRE_AGENT_BANNED

    def test_expired_at_the_very_moment(self) -> None:
        for ends, expected in ((NOW_NS, R.SPIRE_AGENT_EXPIRED), (NOW_NS + 1, None)):
            assert code(spire_snapshot(spire_agent(expires_ns=ends))) is expected

    def test_attested_in_a_way_that_policy_does_not_allow(self) -> None:
        policy = Policy(attestors={"x509pop": AttestorRules()})
        assert code(spire_snapshot(), policy=policy) is R.SPIRE_ATTESTOR_DENIED

    def test_a_join_token_says_nothing_about_the_node_whatever_policy_says(self) -> None:
        snapshot = spire_snapshot(spire_agent(attestor="join_token"))
        assert code(snapshot) is R.SPIRE_ATTESTOR_DENIED
        policy = Policy(attestors={"join_token": AttestorRules()})
        assert code(snapshot, policy=policy) is R.SPIRE_ATTESTOR_DENIED

    @pytest.mark.parametrize(
        "selectors",
        [
            {f"k8s_psat:agent_node_name:{NODE}"},
            {f"k8s_psat:agent_node_uid:{UID}"},
            {f"k8s_psat:agent_node_name:{NODE}", "k8s_psat:agent_node_uid:uid-2"},
            {"k8s_psat:agent_node_name:gpu-2", f"k8s_psat:agent_node_uid:{UID}"},
            {
                f"k8s_psat:agent_node_name:{NODE}",
                "k8s_psat:agent_node_name:gpu-2",
                f"k8s_psat:agent_node_uid:{UID}",
            },
            {f"x509pop:san:node-name:{NODE}", f"x509pop:san:node-uid:{UID}"},
        ],
    )
    def test_selectors_that_name_another_node(self, selectors: set[str]) -> None:
        snapshot = spire_snapshot(spire_agent(selectors=frozenset(selectors)))
        assert code(snapshot) is R.SPIRE_NODE_MISMATCH

    def test_the_directory_has_another_uid(self) -> None:
        """The Node object was deleted and made again; its SPIRE agent is still the old one."""
        assert code(spire_snapshot(), uid="uid-2") is R.SPIRE_NODE_MISMATCH

    def test_a_directory_without_uids_leaves_the_name(self) -> None:
        assert code(spire_snapshot(), uid=None) is None
        pop = spire_snapshot(x509pop_agent(POP, uid=None), entries={PEER: (spire_entry(POP),)})
        assert code(pop, uid=None) is None
        assert code(pop) is R.SPIRE_NODE_MISMATCH

    def test_two_uids_are_none(self) -> None:
        agent = x509pop_agent(POP)
        twice = replace(agent, selectors=agent.selectors | {"x509pop:san:node-uid:uid-2"})
        snapshot = spire_snapshot(twice, entries={PEER: (spire_entry(POP),)})
        assert code(snapshot) is R.SPIRE_NODE_MISMATCH

    def test_the_id_of_a_k8s_psat_agent_ends_with_the_uid(self) -> None:
        """With `use_pod_uid_for_agent_id` it names the pod instead."""
        parent = f"spiffe://{TD}/spire/agent/k8s_psat/prod/pod/pod-uid"
        snapshot = spire_snapshot(spire_agent(parent), entries={PEER: (spire_entry(parent),)})
        assert code(snapshot) is R.SPIRE_NODE_MISMATCH


class TestImage:
    POLICY = Policy(attestors={"k8s_psat": AttestorRules(images=frozenset({IMAGE}))})

    def test_every_entry_must_demand_a_listed_image(self) -> None:
        other = "k8s:container-image:registry.example/agent@sha256:" + "b" * 64
        by_tag = "k8s:container-image:registry.example/agent:v1"
        of_pod = f"k8s:pod-image:registry.example/agent@{IMAGE}"
        plain = {"k8s:ns:gpuwarden", "k8s:sa:gpuwarden-agent"}
        assert code(spire_snapshot(), policy=self.POLICY) is None
        for selector in (other, by_tag, of_pod):
            entry = spire_entry(entry_id="entry-2", selectors=frozenset({*plain, selector}))
            snapshot = spire_snapshot(entries={PEER: (spire_entry(), entry)})
            assert code(snapshot) is None
            assert code(snapshot, policy=self.POLICY) is R.AGENT_IMAGE_DENIED

    def test_one_listed_image_of_several_names_is_enough(self) -> None:
        """A workload must have them all, so each of them is true."""
        selectors = {*spire_entry().selectors, "k8s:container-image:sha256:" + "b" * 64}
        snapshot = spire_snapshot(entries={PEER: (spire_entry(selectors=frozenset(selectors)),)})
        assert code(snapshot, policy=self.POLICY) is None


class TestAge:
    def test_the_last_snapshot_counts_for_the_grace_and_no_longer(self) -> None:
        assert code(spire_snapshot(**OLD), now_ns=NOW_NS - 1) is None
        assert code(spire_snapshot(**OLD)) is R.SPIRE_STATUS_STALE

    def test_strict_grace_lasts_until_the_next_poll_is_overdue(self) -> None:
        strict = SpireLimits(TD, grace_ns=0, round_ns=15 * S)
        for age, expected in ((14, None), (15, R.SPIRE_STATUS_STALE)):
            snapshot = spire_snapshot(agents_ns=NOW_NS - age * S)
            found = judged(snapshot, limits=strict)
            assert (found.code if isinstance(found, Refusal) else None) is expected

    def test_entries_may_be_older_than_agents_but_not_for_ever(self) -> None:
        strict = SpireLimits(TD, grace_ns=0, round_ns=15 * S)
        for age_ns, expected in ((ENTRIES_AGE_NS - 1, None), (ENTRIES_AGE_NS, True)):
            snapshot = spire_snapshot(entries_ns=NOW_NS - age_ns)
            assert isinstance(judged(snapshot, limits=strict), Refusal) is bool(expected)

    @pytest.mark.parametrize(
        ("snapshot", "fresh"),
        [
            (spire_snapshot(entries={}), R.SPIRE_ENTRY_NOT_FOUND),
            (spire_snapshot(spire_agent(OTHER)), R.SPIRE_AGENT_NOT_FOUND),
            (spire_snapshot(spire_agent(expires_ns=NOW_NS)), R.SPIRE_AGENT_EXPIRED),
        ],
    )
    def test_absence_proves_nothing_once_the_snapshot_is_stale(
        self, snapshot: SpireSnapshot, fresh: R
    ) -> None:
        assert code(snapshot) is fresh
        assert code(replace(snapshot, **OLD)) is R.SPIRE_STATUS_STALE

    def test_what_a_stale_snapshot_holds_against_a_node_still_counts(self) -> None:
        assert code(spire_snapshot(spire_agent(banned=True), **OLD)) is R.SPIRE_AGENT_BANNED
        policy = Policy(attestors={"k8s_psat": AttestorRules(images=frozenset({"sha256:0"}))})
        assert code(spire_snapshot(**OLD), policy=policy) is R.AGENT_IMAGE_DENIED


def test_the_codes_come_in_the_order_of_the_reason_table() -> None:
    """Everything wrong at once; taking the first thing away shows the next."""
    alias = f"spiffe://{TD}/alias"
    weak = frozenset({"unix:uid:0"})
    wrong: dict[str, Any] = {"banned": True, "expires_ns": NOW_NS}
    elsewhere = frozenset({"k8s_psat:agent_node_name:gpu-2", f"k8s_psat:agent_node_uid:{UID}"})
    k8s = Policy(attestors={"k8s_psat": AttestorRules(None, frozenset({"sha256:0"}))})
    pop = Policy(attestors={"x509pop": AttestorRules()})
    both = (spire_entry(alias, selectors=weak, admin=True), spire_entry(selectors=weak, admin=True))
    one = spire_entry(alias, selectors=weak, admin=True)
    cases: list[tuple[SpireSnapshot, Policy]] = [
        (spire_snapshot(entries={}), k8s),
        (spire_snapshot(entries={PEER: both}), k8s),
        (spire_snapshot(spire_agent(alias, **wrong), entries={PEER: (one,)}), k8s),
        (
            spire_snapshot(
                spire_agent(alias, **wrong), entries={PEER: (spire_entry(alias, admin=True),)}
            ),
            k8s,
        ),
        (spire_snapshot(spire_agent(alias, **wrong), entries={PEER: (spire_entry(alias),)}), k8s),
        (spire_snapshot(spire_agent(OTHER)), pop),
        (spire_snapshot(spire_agent(**wrong)), pop),
        (spire_snapshot(spire_agent(expires_ns=NOW_NS, selectors=elsewhere)), pop),
        (spire_snapshot(spire_agent(selectors=elsewhere)), pop),
        (spire_snapshot(spire_agent(selectors=elsewhere)), k8s),
        (spire_snapshot(**OLD), k8s),
        (spire_snapshot(**OLD), Policy()),
    ]
    codes = [code(snapshot, policy=policy) for snapshot, policy in cases]
    order = list(R)
    assert codes == [
        R.SPIRE_ENTRY_NOT_FOUND,
        R.SPIRE_ENTRY_AMBIGUOUS,
        R.SPIRE_ENTRY_WEAK,
        R.SPIRE_ENTRY_PRIVILEGED,
        R.SPIRE_PARENT_INVALID,
        R.SPIRE_AGENT_NOT_FOUND,
        R.SPIRE_AGENT_BANNED,
        R.SPIRE_AGENT_EXPIRED,
        R.SPIRE_ATTESTOR_DENIED,
        R.SPIRE_NODE_MISMATCH,
        R.AGENT_IMAGE_DENIED,
        R.SPIRE_STATUS_STALE,
    ]
    assert all(order.index(a) < order.index(b) for a, b in pairwise(x for x in codes if x))
