"""SPIRE agents, entries and snapshots: good ones, to be changed in one place."""

from typing import Any

from controller.fleet.directory import KnownNode
from controller.policy import DEFAULT_POLICY, Policy
from controller.spire.snapshot import SpireAgent, SpireEntry, SpireSnapshot
from controller.spire.verification import SpireLimits
from controller.verifier.context import SpireQuestion
from gpuwarden.identity.spiffe_id import parse_spiffe_id

S = 1_000_000_000
TD = "example.org"
NODE = "gpu-1"
UID = "uid-1"
NOW_NS = 1_000 * S
PEER = f"spiffe://{TD}/gpuwarden/agent/{NODE}"
CONTROLLER = f"spiffe://{TD}/gpuwarden/controller"
PARENT = f"spiffe://{TD}/spire/agent/k8s_psat/prod/{UID}"
IMAGE = "sha256:" + "a" * 64
LIMITS = SpireLimits(TD, grace_ns=300 * S, round_ns=15 * S)


def spire_agent(agent_id: str = PARENT, **changes: Any) -> SpireAgent:
    values: dict[str, Any] = {
        "attestor": "k8s_psat",
        "serial": "7",
        "expires_ns": NOW_NS + 3600 * S,
        "banned": False,
        "selectors": frozenset(
            {f"k8s_psat:agent_node_name:{NODE}", f"k8s_psat:agent_node_uid:{UID}"}
        ),
        **changes,
    }
    return SpireAgent(agent_id, **values)


def x509pop_agent(agent_id: str, node: str = NODE, uid: str | None = UID) -> SpireAgent:
    selectors = {f"x509pop:san:node-name:{node}"}
    if uid is not None:
        selectors.add(f"x509pop:san:node-uid:{uid}")
    return spire_agent(agent_id, attestor="x509pop", selectors=frozenset(selectors))


def spire_entry(parent_id: str = PARENT, entry_id: str = "entry-1", **changes: Any) -> SpireEntry:
    values: dict[str, Any] = {
        "selectors": frozenset(
            {
                "k8s:ns:gpuwarden",
                "k8s:sa:gpuwarden-agent",
                f"k8s:container-image:registry.example/agent@{IMAGE}",
            }
        ),
        **changes,
    }
    return SpireEntry(entry_id, parent_id, **values)


def spire_snapshot(
    *agents: SpireAgent, entries: dict[str, tuple[SpireEntry, ...]] | None = None, **changes: Any
) -> SpireSnapshot:
    """By default one agent, one entry, taken a second ago."""
    values: dict[str, Any] = {"agents_ns": NOW_NS - S, "entries_ns": NOW_NS - S, **changes}
    return SpireSnapshot(
        agents={x.agent_id: x for x in agents or (spire_agent(),)},
        entries={PEER: (spire_entry(),)} if entries is None else entries,
        **values,
    )


def spire_question(
    now_ns: int = NOW_NS,
    *,
    uid: str | None = UID,
    node: str = NODE,
    policy: Policy = DEFAULT_POLICY,
) -> SpireQuestion:
    peer = parse_spiffe_id(f"spiffe://{TD}/gpuwarden/agent/{node}")
    return SpireQuestion(peer, node, KnownNode(uid), policy, now_ns)
