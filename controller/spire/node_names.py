"""How a SPIRE agent's selectors name its node, per node attestor. Pure.

Only attestors whose selectors hold the node's name are known here: any other proves
some machine, but not which node it is (a join token proves nothing about the machine).
Sources: the SPIRE server's node attestors `k8s_psat` and `x509pop`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from controller.spire.snapshot import SpireAgent


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
