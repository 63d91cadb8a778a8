"""Snapshots: corrected by single answers, compared with the one before."""

from dataclasses import replace

from controller.spire.judgement import AgentChange, ChangedAgent, changed_agents
from controller.spire.snapshot import SpireAgent
from tests.builders.spire import PARENT, PEER, TD, spire_agent, spire_entry, spire_snapshot

OTHER = f"spiffe://{TD}/spire/agent/k8s_psat/prod/uid-2"


def test_a_single_answer_adds_replaces_and_removes_without_making_it_fresher() -> None:
    before = spire_snapshot()
    added = before.with_answer({"x": (spire_entry(OTHER),)}, {OTHER: spire_agent(OTHER)})
    assert set(added.entries) == {PEER, "x"}
    assert set(added.agents) == {PARENT, OTHER}
    assert (added.agents_ns, added.entries_ns) == (before.agents_ns, before.entries_ns)
    gone = added.with_answer({PEER: ()}, {PARENT: None, "never there": None})
    assert set(gone.entries) == {"x"}
    assert set(gone.agents) == {OTHER}
    replaced = added.with_answer({}, {PARENT: spire_agent(banned=True)})
    assert replaced.agents[PARENT].banned
    assert set(before.entries) == {PEER}
    assert not before.agents[PARENT].banned


def test_every_kind_of_change_is_told_and_a_renewal_is_not() -> None:
    before = spire_snapshot()

    def change(*agents: SpireAgent) -> list[AgentChange]:
        after = replace(before, agents={x.agent_id: x for x in agents})
        return [x.change for x in changed_agents(before, after)]

    assert change(spire_agent(serial="8", expires_ns=1)) == []
    assert change(spire_agent(banned=True)) == [AgentChange.BANNED]
    assert change(spire_agent(), spire_agent(OTHER)) == [AgentChange.ATTESTED]
    assert change(spire_agent(), spire_agent(OTHER, banned=True)) == [AgentChange.BANNED]
    assert change() == [AgentChange.EVICTED]
    assert change(spire_agent(selectors=frozenset())) == [AgentChange.REATTESTED]
    assert change(spire_agent(attestor="x509pop")) == [AgentChange.REATTESTED]
    banned = replace(before, agents={PARENT: spire_agent(banned=True)})
    assert list(changed_agents(banned, before)) == [
        ChangedAgent(PARENT, AgentChange.UNBANNED, "k8s_psat")
    ]
