"""Judgement.

Holds: images, judgement, changes, condition, own standing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from controller.policy import AttestorRules, Level, Policy
from controller.spire.snapshot import ATTESTORS, SpireAgent, SpireEntry, SpireSnapshot, mismatch
from controller.verifier.context import SpireQuestion, Standing
from gpuwarden.evidence.strict_json import quote
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode, Refusal

# --- images
# Container images in selectors and in policy: compared by digest, never by tag. Pure.

IMAGE_SELECTOR: Final = "k8s:container-image:"
"""What the `k8s` workload attestor says about the container itself (not about its pod)."""
_IMAGE: Final = re.compile(r"(?:[!-?A-~]{1,255}@)?(sha256:[0-9a-f]{64})")


def image_digest(reference: str) -> str | None:
    """`sha256:<hex>` of a reference by digest; None where it names an image by tag."""
    match = _IMAGE.fullmatch(reference)
    return match[1] if match else None


def digests_of(entry: SpireEntry) -> frozenset[str]:
    """The image digests that a workload must have to get an SVID through this entry."""
    found = (
        image_digest(x.removeprefix(IMAGE_SELECTOR))
        for x in entry.selectors
        if x.startswith(IMAGE_SELECTOR)
    )
    return frozenset(x for x in found if x is not None)


# --- judgement
# Steps 7, 8 and 9 on one snapshot: who hands out the peer's SVIDs, and is that its node.
#
# An SVID does not say which SPIRE agent handed it out; the registration entries of its
# SPIFFE ID do: their parent. So all of them must name one parent, and each must be strict
# enough, because any of them suffices to get the SVID. Pure dictionary look-ups, for each
# message of each node.
#
# Absence counts only in a snapshot that still counts: in an older one it proves nothing.

DEFAULT_SELECTORS: Final = {"k8s_psat": ("k8s:ns", "k8s:sa")}
"""What the entries of our agent must have where policy does not say, by node attestor."""
NO_RULES: Final = AttestorRules()
ENTRIES_AGE_NS: Final = 300 * NS_PER_S
"""Entries are asked for less often than agents where there are many."""
_AGENTS: Final = "/spire/agent/"
_SHOWN: Final = 300
_LISTED: Final = 4


@dataclass(frozen=True, slots=True)
class SpireLimits:
    """What a snapshot is judged by."""

    trust_domain: str
    grace_ns: int
    """How long the last snapshot counts, from the moment at which it was asked for."""
    round_ns: int
    """It counts this long at least: until the next one is overdue."""

    @property
    def age_ns(self) -> int:
        """The age at which a snapshot no longer counts."""
        return max(self.grace_ns, self.round_ns)

    @property
    def parents(self) -> str:
        """What the SPIFFE ID of every SPIRE agent begins with."""
        return f"spiffe://{self.trust_domain}{_AGENTS}"


NEVER: Final = Refusal(ReasonCode.SPIRE_UNAVAILABLE, "the SPIRE server has not answered yet")


def stale(snapshot: SpireSnapshot, limits: SpireLimits, now_ns: int) -> Refusal | None:
    """SPIRE_STATUS_STALE where the snapshot no longer counts."""
    agents_ns, entries_ns = now_ns - snapshot.agents_ns, now_ns - snapshot.entries_ns
    if agents_ns < limits.age_ns and entries_ns < max(limits.age_ns, ENTRIES_AGE_NS):
        return None
    return Refusal(
        ReasonCode.SPIRE_STATUS_STALE,
        f"the SPIRE server's last answer is {max(agents_ns, entries_ns) // NS_PER_S} s old",
    )


def entry_refusal(
    snapshot: SpireSnapshot, limits: SpireLimits, question: SpireQuestion
) -> Refusal | None:
    """Step 7: the registration entries of the peer."""
    entries = _entries(snapshot, question)
    if not entries:
        return stale(snapshot, limits, question.now_ns) or Refusal(
            ReasonCode.SPIRE_ENTRY_NOT_FOUND, f"no registration entry of {question.peer}"
        )
    parent = entries[0].parent_id
    if parents := {x.parent_id for x in entries} - {parent}:
        shown = ", ".join(sorted({parent, *parents})[:_LISTED])
        return Refusal(ReasonCode.SPIRE_ENTRY_AMBIGUOUS, f"entries under {quote(shown, _SHOWN)}")
    return (
        _weak(entries, _rules(question.policy, snapshot.agents.get(parent)))
        or _privileged(entries)
        or _orphaned(parent, limits)
    )


def agent_standing(
    snapshot: SpireSnapshot, limits: SpireLimits, question: SpireQuestion
) -> Standing | Refusal:
    """Step 8: the SPIRE agent that is their parent; only after step 7 has passed."""
    parent = _entries(snapshot, question)[0].parent_id
    agent = agent_in_force(snapshot, limits, question.now_ns, parent)
    if isinstance(agent, Refusal):
        return agent
    return _unbound(agent, question) or Standing(Level.L1, agent.attestor, agent.agent_id)


def agent_in_force(
    snapshot: SpireSnapshot, limits: SpireLimits, now_ns: int, agent_id: str
) -> SpireAgent | Refusal:
    """The SPIRE agent, unless it is evicted, banned or expired: the first part of step 8."""
    agent = snapshot.agents.get(agent_id)
    if agent is None:
        return stale(snapshot, limits, now_ns) or Refusal(
            ReasonCode.SPIRE_AGENT_NOT_FOUND, f"the SPIRE server has no agent {quote(agent_id)}"
        )
    if agent.banned:
        return Refusal(ReasonCode.SPIRE_AGENT_BANNED, f"{agent_id} is banned")
    if now_ns >= agent.expires_ns:
        return stale(snapshot, limits, now_ns) or Refusal(
            ReasonCode.SPIRE_AGENT_EXPIRED, f"the SVID of {agent_id} has expired"
        )
    return agent


def image_refusal(
    snapshot: SpireSnapshot, limits: SpireLimits, question: SpireQuestion
) -> Refusal | None:
    """Step 9: the image of our agent, and the age of the snapshot."""
    entries = _entries(snapshot, question)
    images = _rules(question.policy, snapshot.agents.get(entries[0].parent_id)).images
    if images is not None:
        for entry in entries:
            found = digests_of(entry)
            if not found & images:
                shown = ", ".join(sorted(found)[:_LISTED]) or "none"
                return Refusal(
                    ReasonCode.AGENT_IMAGE_DENIED,
                    f"entry {quote(entry.entry_id)} demands image {shown}",
                )
    return stale(snapshot, limits, question.now_ns)


def _entries(snapshot: SpireSnapshot, question: SpireQuestion) -> tuple[SpireEntry, ...]:
    now_ns = question.now_ns
    found = snapshot.entries.get(str(question.peer), ())
    return tuple(x for x in found if now_ns < x.expires_ns)


def _rules(policy: Policy, agent: SpireAgent | None) -> AttestorRules:
    """Policy's rules for the agent's attestor, its defaults filled in."""
    if agent is None:
        return NO_RULES
    rules = (policy.attestors or {}).get(agent.attestor, NO_RULES)
    if rules.selectors is not None or agent.attestor not in DEFAULT_SELECTORS:
        return rules
    return AttestorRules(DEFAULT_SELECTORS[agent.attestor], rules.images)


def _weak(entries: tuple[SpireEntry, ...], rules: AttestorRules) -> Refusal | None:
    for wanted in rules.selectors or ():
        for entry in entries:
            if not _has(entry, wanted):
                return Refusal(
                    ReasonCode.SPIRE_ENTRY_WEAK,
                    f"entry {quote(entry.entry_id)} does not demand {wanted}",
                )
    return None


def _has(entry: SpireEntry, wanted: str) -> bool:
    if wanted in entry.selectors:
        return True
    beginning = f"{wanted}:"
    return any(x.startswith(beginning) for x in entry.selectors)


def _privileged(entries: tuple[SpireEntry, ...]) -> Refusal | None:
    for entry in entries:
        if entry.admin or entry.downstream:
            what = "admin" if entry.admin else "downstream"
            return Refusal(
                ReasonCode.SPIRE_ENTRY_PRIVILEGED, f"entry {quote(entry.entry_id)} is {what}"
            )
    return None


def _orphaned(parent: str, limits: SpireLimits) -> Refusal | None:
    if len(parent) > len(limits.parents) and parent.startswith(limits.parents):
        return None
    return Refusal(ReasonCode.SPIRE_PARENT_INVALID, f"parent {quote(parent)} is no SPIRE agent")


def _unbound(agent: SpireAgent, question: SpireQuestion) -> Refusal | None:
    """Whether the way it attested is allowed, and names this node."""
    allowed = question.policy.attestors
    if allowed is not None and agent.attestor not in allowed:
        return Refusal(
            ReasonCode.SPIRE_ATTESTOR_DENIED,
            f"attested by {quote(agent.attestor)}, policy wants {', '.join(sorted(allowed))}",
        )
    if agent.attestor not in ATTESTORS:
        return Refusal(
            ReasonCode.SPIRE_ATTESTOR_DENIED,
            f"attested by {quote(agent.attestor)}, which does not say which node it is",
        )
    if text := mismatch(agent, question.node_name, question.node.uid):
        return Refusal(ReasonCode.SPIRE_NODE_MISMATCH, quote(text, _SHOWN))
    return None


# --- changes
# What differs between two snapshots of SPIRE agents, as people want to be told. Pure.
#
# Renewals of SVIDs are routine and left out: each agent renews about twice an hour.


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


# --- condition
# How the SPIRE server answers, as readiness shows it. Pure.

CAPPED: Final = (
    "spire.server is off: nobody confirms nodes beyond their SVID, every level ends at L0"
)


@dataclass(frozen=True, slots=True)
class SpireCondition:
    """Lines for people; with an error the controller is not ready."""

    error: str | None = None
    warnings: tuple[str, ...] = ()


class SpireConditions(Protocol):
    """Says at any time how it stands."""

    def condition(self, now_ns: int, /) -> SpireCondition:
        """At `now_ns` (CLOCK_BOOTTIME); must not wait."""


class NoSpireServer:
    """None is configured: not an error, but said."""

    def condition(self, now_ns: int, /) -> SpireCondition:  # noqa: ARG002 - the Protocol's
        """Always the same."""
        return SpireCondition(warnings=(CAPPED,))


NO_SPIRE_SERVER: Final = NoSpireServer()


# --- own standing
# What the SPIRE server says about this controller itself: its own SPIRE agent, its own rights.
#
# All replicas share one identity, and an SVID does not say which of several SPIRE agents
# handed it out. So this controller is unready only when none of them is in force; one that
# is not is a warning. Pure.

ADMIN_WARNING: Final = (
    "the SPIRE server lets this controller do more than read (admin: true or admin_ids): whoever"
    " takes the controller over can issue any SVID; use the policy of deploy/spire instead"
)


@dataclass(frozen=True, slots=True)
class OwnStanding:
    """Lines for people."""

    error: str | None = None
    """Why nobody should rely on this controller."""
    warnings: tuple[str, ...] = ()


def own_standing(
    snapshot: SpireSnapshot, limits: SpireLimits, now_ns: int, own_id: str
) -> OwnStanding:
    """How the controller of SPIFFE ID `own_id` stands."""
    entries = snapshot.entries.get(own_id, ())
    if not entries:
        return OwnStanding(warnings=(f"the SPIRE server has no registration entry of {own_id}",))
    parents = sorted({x.parent_id for x in entries})
    found = [agent_in_force(snapshot, limits, now_ns, x) for x in parents]
    bad = tuple(f"own SPIRE agent: {x.detail}" for x in found if isinstance(x, Refusal))
    admin = (ADMIN_WARNING,) if any(x.admin for x in entries) else ()
    if len(bad) == len(parents):
        return OwnStanding("; ".join(bad), admin)
    return OwnStanding(None, (*bad, *admin))
