"""Steps 6 to 9: whether the node is known and not denied, and what SPIRE says about it."""

from dataclasses import dataclass
from typing import Final

from controller.fleet.directory import KnownNode
from controller.fleet.enrollment import AUTOMATIC
from controller.fleet.view import Level
from controller.verifier.context import Snapshots
from controller.verifier.seams import SpireFacts, SpireQuestion, Standing
from gpuwarden.evidence.strict_json import quote
from gpuwarden.identity.spiffe_id import SpiffeId
from gpuwarden.reasons import ReasonCode, Refusal

_REASON: Final = 200


@dataclass(frozen=True, slots=True)
class NodeStanding:
    """A node that the directory knows and nobody denied, and how well it is confirmed."""

    node: KnownNode
    standing: Standing


UNCONFIRMED: Final = NodeStanding(KnownNode(), Standing(Level.NONE))
"""For bad news, which nobody has to confirm."""


def node_standing(
    spire: SpireFacts, peer: SpiffeId, name: str, known: Snapshots, now_ns: int
) -> NodeStanding | Refusal:
    """Steps 6, 7, 8 and 9 in their order."""
    node = known_node(known, name, now_ns)
    if isinstance(node, Refusal):
        return node
    question = SpireQuestion(peer, name, node, known.policy, now_ns)
    if refusal := spire.entry(question):
        return refusal
    standing = spire.agent(question)
    if isinstance(standing, Refusal):
        return standing
    return spire.image(question) or NodeStanding(node, standing)


def known_node(known: Snapshots, name: str, now_ns: int) -> KnownNode | Refusal:
    """Step 6: stores fresh, node in the directory, no denial."""
    if now_ns >= known.enrollment.fresh_until_ns:
        return Refusal(ReasonCode.ENROLLMENT_STALE, "pins and denials are too old to rely on")
    if now_ns >= known.directory.fresh_until_ns:
        return Refusal(ReasonCode.DIRECTORY_STALE, "the list of nodes is too old to rely on")
    node = known.directory.nodes.get(name)
    if node is None:
        return Refusal(ReasonCode.NODE_UNKNOWN, f"the cluster has no node {name}")
    return denial(known, name) or node


def denial(known: Snapshots, name: str) -> Refusal | None:
    """The last part of step 6."""
    record = known.enrollment.records.get(name)
    if record is None or record.denial is None:
        return None
    denied = record.denial
    who = "the controller" if denied.actor == AUTOMATIC else quote(denied.actor)
    return Refusal(
        ReasonCode.NODE_DENIED,
        f"denied by {who}: {denied.code} {quote(denied.reason, _REASON)}",
    )
