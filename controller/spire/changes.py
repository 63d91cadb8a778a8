"""What differs between two snapshots of SPIRE agents, as people want to be told. Pure.

Renewals of SVIDs are routine and left out: each agent renews about twice an hour.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from controller.spire.snapshot import SpireSnapshot


class AgentChange(StrEnum):
    """What happened to a SPIRE agent."""

    ATTESTED = "attested"
    """It was not there before."""
    BANNED = "banned"
    UNBANNED = "unbanned"
    EVICTED = "evicted"
    """Deleted on the SPIRE server; it may attest again."""
    REATTESTED = "reattested"
    """The same ID with other selectors or another attestor."""


@dataclass(frozen=True, slots=True)
class ChangedAgent:
    """One SPIRE agent and what happened to it."""

    agent_id: str
    change: AgentChange
    attestor: str


def changed_agents(before: SpireSnapshot, after: SpireSnapshot) -> Iterator[ChangedAgent]:
    """Every change, in the order of the mappings."""
    for agent_id, agent in after.agents.items():
        old = before.agents.get(agent_id)
        if old is None:
            change = AgentChange.BANNED if agent.banned else AgentChange.ATTESTED
            yield ChangedAgent(agent_id, change, agent.attestor)
        elif old.banned != agent.banned:
            change = AgentChange.BANNED if agent.banned else AgentChange.UNBANNED
            yield ChangedAgent(agent_id, change, agent.attestor)
        elif (old.attestor, old.selectors) != (agent.attestor, agent.selectors):
            yield ChangedAgent(agent_id, AgentChange.REATTESTED, agent.attestor)
    for agent_id, agent in before.agents.items():
        if agent_id not in after.agents:
            yield ChangedAgent(agent_id, AgentChange.EVICTED, agent.attestor)
