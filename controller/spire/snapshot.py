"""What the SPIRE server reported at one moment, as an immutable value, and how it is decoded.

Times are the controller's CLOCK_BOOTTIME: whoever takes the snapshot converts the server's dates,
so that no step of a wall clock can move what was taken already. Must not decide about a node.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

from controller.fleet.directory import FOREVER_NS
from gpuwarden.moment import Moment
from gpuwarden.wire.spire import types_pb2 as pb

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class SpireAgent:
    """An attested SPIRE agent."""

    agent_id: str
    """Its SPIFFE ID."""
    attestor: str
    """How it attested: `k8s_psat`, `x509pop`, `join_token`, …"""
    serial: str
    """Of its SVID, decimal; another after each renewal. Empty while banned."""
    expires_ns: int
    banned: bool
    selectors: frozenset[str]
    """`type:value`: what the node attestor found out about the node."""


@dataclass(frozen=True, slots=True)
class SpireEntry:
    """A registration entry."""

    entry_id: str
    parent_id: str
    """SPIFFE ID of the SPIRE agent that hands the SVIDs out, or of an alias."""
    selectors: frozenset[str]
    """`type:value`: a workload must have all of them."""
    admin: bool = False
    downstream: bool = False
    expires_ns: int = FOREVER_NS


Entries = Mapping[str, tuple[SpireEntry, ...]]
"""SPIFFE ID -> its registration entries, none empty."""


@dataclass(frozen=True, slots=True)
class SpireSnapshot:
    """Agents and entries; each as old as the moment at which the server was asked for them."""

    agents: Mapping[str, SpireAgent]
    """By SPIFFE ID."""
    agents_ns: int
    entries: Entries
    """Of our own SPIFFE IDs only, those below the path prefix."""
    entries_ns: int

    def with_answer(
        self,
        entries: Mapping[str, tuple[SpireEntry, ...]],
        agents: Mapping[str, SpireAgent | None],
    ) -> "SpireSnapshot":
        """The snapshot corrected by newer answers about single IDs; no fresher as a whole."""
        return replace(
            self,
            entries=_merged(self.entries, {k: v or None for k, v in entries.items()}.items()),
            agents=_merged(self.agents, agents.items()),
        )


def _merged(known: Mapping[str, V], news: Iterable[tuple[str, V | None]]) -> Mapping[str, V]:
    after = dict(known)
    for key, value in news:
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return MappingProxyType(after)


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
    """Every change, in the order of the mappings, renewals of SVIDs left out.

    Each agent renews about twice an hour.
    """
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


# --- how a SPIRE agent's selectors name its node
# Only attestors whose selectors hold the node's name are known here: any other proves some machine,
# but not which node it is (a join token proves nothing about the machine). Sources: the SPIRE
# server's node attestors `k8s_psat` and `x509pop`.


@dataclass(frozen=True, slots=True)
class NodeSelectors:
    """Prefixes of the selectors that hold the node's name and UID."""

    name: str
    uid: str
    uid_in_path: bool = False
    """Whether the agent's SPIFFE ID ends with the UID as well."""


ATTESTORS: Final[Mapping[str, NodeSelectors]] = MappingProxyType(
    {
        "k8s_psat": NodeSelectors(
            "k8s_psat:agent_node_name:", "k8s_psat:agent_node_uid:", uid_in_path=True
        ),
        "x509pop": NodeSelectors("x509pop:san:node-name:", "x509pop:san:node-uid:"),
    }
)
"""Node attestors that say which node it is."""


def mismatch(agent: SpireAgent, name: str, uid: str | None) -> str | None:
    """What of the agent does not belong to the node of this name and UID; None if all does.

    A UID of None is not compared: then the directory has none.
    """
    selectors = ATTESTORS[agent.attestor]
    found = _values(agent, selectors.name)
    if found != {name}:
        return f"the SPIRE agent attested as node {_shown(found)}"
    uids = _values(agent, selectors.uid)
    if selectors.uid_in_path and uids != {agent.agent_id.rpartition("/")[2]}:
        return f"the SPIRE agent's ID does not end with its node UID {_shown(uids)}"
    if uid is not None and uids != {uid}:
        return f"the SPIRE agent attested for Node UID {_shown(uids)}, the node has {uid}"
    return None


def _values(agent: SpireAgent, prefix: str) -> set[str]:
    return {x.removeprefix(prefix) for x in agent.selectors if x.startswith(prefix)}


def _shown(values: set[str]) -> str:
    return ", ".join(sorted(values))[:300] or "without a name"


# --- decoding
# Only what is used later is kept: of an agent the selectors that name its node, of the entries
# those of our own SPIFFE IDs. IDs stay text: a malformed one equals no peer's.

MAX_SELECTORS: Final = 256
"""Of one record; SPIRE's own attestors make a dozen and one per label."""
MAX_TEXT: Final = 2048
_NAMING: Final = tuple(
    prefix for selectors in ATTESTORS.values() for prefix in (selectors.name, selectors.uid)
)


def spiffe_text(message: pb.SPIFFEID) -> str:
    """The SPIFFE ID as text."""
    return f"spiffe://{message.trust_domain}{message.path}"


def read_agent(message: pb.Agent, moment: Moment) -> SpireAgent:
    """One agent; too many or too long selectors name no node."""
    texts = _selectors(message.selectors)
    return SpireAgent(
        agent_id=spiffe_text(message.id),
        attestor=message.attestation_type[:MAX_TEXT],
        serial=message.x509svid_serial_number[:MAX_TEXT],
        expires_ns=moment.boottime_of(message.x509svid_expires_at),
        banned=message.banned,
        selectors=frozenset(x for x in texts if x.startswith(_NAMING)),
    )


def read_entries(messages: Iterable[pb.Entry], beginning: str, moment: Moment) -> Entries:
    """Entries by SPIFFE ID, of the SPIFFE IDs with that beginning."""
    found: dict[str, list[SpireEntry]] = defaultdict(list)
    for message in messages:
        spiffe_id = spiffe_text(message.spiffe_id)
        if spiffe_id.startswith(beginning):
            found[spiffe_id].append(_entry(message, moment))
    return {spiffe_id: tuple(entries) for spiffe_id, entries in found.items()}


def _entry(message: pb.Entry, moment: Moment) -> SpireEntry:
    expires = message.expires_at
    return SpireEntry(
        entry_id=message.id[:MAX_TEXT],
        parent_id=spiffe_text(message.parent_id),
        selectors=_selectors(message.selectors),
        admin=message.admin,
        downstream=message.downstream,
        expires_ns=moment.boottime_of(expires) if expires else FOREVER_NS,
    )


def _selectors(messages: Iterable[pb.Selector]) -> frozenset[str]:
    texts = [f"{x.type}:{x.value}" for x in messages]
    if len(texts) > MAX_SELECTORS:
        return frozenset()
    return frozenset(x for x in texts if len(x) <= MAX_TEXT)
