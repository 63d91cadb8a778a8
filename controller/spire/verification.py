"""Steps 7, 8 and 9 on one snapshot: who hands out the peer's SVIDs, and whether that is its node.

An SVID does not say which SPIRE agent handed it out; the registration entries of its SPIFFE ID do:
their parent. So all of them must name one parent, and each must be strict enough, because any of
them suffices to get the SVID. These are dictionary look-ups, made for each message of each node.

Absence counts only in a snapshot that still counts: in an older one it proves nothing.
"""

from dataclasses import dataclass
from typing import Final

from controller.policy import AttestorRules, Level, Policy
from controller.spire.snapshot import ATTESTORS, SpireAgent, SpireEntry, SpireSnapshot, mismatch
from controller.verifier.context import SpireQuestion, Standing
from gpuwarden.evidence.strict_json import quote
from gpuwarden.moment import NS_PER_S
from gpuwarden.policy.texts import image_digest
from gpuwarden.reasons import ReasonCode, Refusal

DEFAULT_SELECTORS: Final = {"k8s_psat": ("k8s:ns", "k8s:sa")}
"""What the entries of our agent must have where policy does not say, by node attestor."""
NO_RULES: Final = AttestorRules()
ENTRIES_AGE_NS: Final = 300 * NS_PER_S
"""Entries are asked for less often than agents where there are many."""
IMAGE_SELECTOR: Final = "k8s:container-image:"
"""What the `k8s` workload attestor says about the container itself (not about its pod)."""
_AGENTS: Final = "/spire/agent/"
_SHOWN: Final = 300
_LISTED: Final = 4


@dataclass(frozen=True, slots=True)
class SpireLimits:
    """What decides whether a snapshot counts, and which SPIRE agents are in the trust domain."""

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


# --- images: compared by digest, never by tag


def digests_of(entry: SpireEntry) -> frozenset[str]:
    """The image digests that a workload must have to get an SVID through this entry."""
    found = (
        image_digest(x.removeprefix(IMAGE_SELECTOR))
        for x in entry.selectors
        if x.startswith(IMAGE_SELECTOR)
    )
    return frozenset(x for x in found if x is not None)
