"""Step 16: whether the inventory is whole, allowed here, and the one this node is known by.

All findings are reported; the first code in the order of the reason codes is the one
reason of the refusal.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from controller.fleet.claims import ContestedClaim, rival
from controller.fleet.directory import KnownNode
from controller.fleet.enrollment import (
    EnrollmentRecord,
    EnrollmentSnapshot,
    PinnedGpu,
)
from controller.fleet.view import Level
from controller.policy import NodePool, Policy
from controller.verifier.pins import changes, claimed
from controller.verifier.seams import Standing
from gpuwarden.evidence.class_document import CLASS_FACTS, unread_facts
from gpuwarden.evidence.inventory_rules import inventory_findings
from gpuwarden.evidence.model import Evidence, Gpu
from gpuwarden.evidence.node_identity import IDENTITY_FACTS, serial
from gpuwarden.evidence.strict_json import quote
from gpuwarden.evidence.use_rules import use_findings
from gpuwarden.reasons import ReasonCode, Refusal

NEEDED_FACTS: Final = CLASS_FACTS | IDENTITY_FACTS
"""A failed read of any other fact is a warning."""

_ORDER: Final = {code: position for position, code in enumerate(ReasonCode)}
_LISTED: Final = 4


@dataclass(frozen=True, slots=True)
class InventoryQuestion:
    """One inventory and everything it is compared with, looked up once."""

    evidence: Evidence
    node_name: str
    node: KnownNode
    standing: Standing
    enrollment: EnrollmentSnapshot
    policy: Policy
    enrollment_required: bool
    record: EnrollmentRecord | None
    """What is remembered about the node."""
    pins: Mapping[str, PinnedGpu]
    """Pins by UUID; empty before first use."""
    pool: NodePool | None
    """The node's pool in policy."""


def inventory_refusals(
    question: InventoryQuestion, contested: tuple[ContestedClaim, ...]
) -> tuple[Refusal, ...]:
    """Everything that step 16 finds in a well-formed inventory, the winning code first."""
    found = [
        *_incomplete(question.evidence),
        *_empty(question.evidence),
        *_denied(question),
        *(_twice(x) for x in contested),
        *_uid_changed(question),
        *_not_enrolled(question),
        *(Refusal(ReasonCode.INVENTORY_CHANGED, x) for x in changes_of(question)),
    ]
    return tuple(sorted(found, key=lambda x: _ORDER[x.code]))


def malformed_refusals(evidence: Evidence, *, has_known_inventory: bool) -> tuple[Refusal, ...]:
    """What makes the evidence no account of a node: nothing else can be said about it then.

    An inventory that was found well-formed before is not looked at again.
    """
    lines = [*use_findings(evidence)]
    if not has_known_inventory:
        lines = [*inventory_findings(evidence.inventory), *_nameless(evidence), *lines]
    return tuple(Refusal(ReasonCode.INVENTORY_INVALID, x) for x in lines)


def contested_claims(question: InventoryQuestion) -> tuple[ContestedClaim, ...]:
    """The GPUs that the node names but may not have, with their owners."""
    uuids = claimed(question.evidence.inventory, question.pins)
    listed, by_serial = _listed_uuids(question), _enrolled_by_serial(question)
    found = ((x, _owner(question, x, listed=x in listed, board=by_serial.get(x))) for x in uuids)
    return tuple(
        ContestedClaim(uuid, question.node_name, owner)
        for uuid, owner in found
        if owner is not None
    )


def enrolled_uuids(question: InventoryQuestion) -> frozenset[str]:
    """GPUs of the inventory that an operator listed for this node, by UUID or serial."""
    return _listed_uuids(question) | _enrolled_by_serial(question).keys()


def warnings_about_reads(evidence: Evidence) -> tuple[str, ...]:
    """Failed reads that cost nothing but the fact itself."""
    facts = frozenset(x.fact for x in evidence.failed_reads) - NEEDED_FACTS
    lines = unread_facts(evidence.failed_reads, facts)
    return tuple(f"not read: {quote(x)}" for x in lines)


def changes_of(question: InventoryQuestion) -> tuple[str, ...]:
    """What is other than pinned."""
    return tuple(changes(question.evidence.inventory, question.pins))


def _nameless(evidence: Evidence) -> Iterator[str]:
    """A PCI identity may be missing only where its read failed."""
    failed = {(x.fact, x.gpu) for x in evidence.failed_reads}
    for gpu in evidence.inventory.gpus:
        for fact, value in (("pci", gpu.pci), ("subsystem", gpu.subsystem)):
            if value is None and not failed & {(fact, gpu.uuid), (fact, gpu.pci_bus_id)}:
                yield f"{gpu.uuid} has no {fact} and no failed read of it"


def _incomplete(evidence: Evidence) -> Iterator[Refusal]:
    if unread := unread_facts(evidence.failed_reads, NEEDED_FACTS):
        yield Refusal(ReasonCode.INVENTORY_INCOMPLETE, f"not read: {_list(unread)}")


def _empty(evidence: Evidence) -> Iterator[Refusal]:
    """No GPU that answers: there is no class, whether or not lost ones are known."""
    if not evidence.inventory.gpus:
        yield Refusal(
            ReasonCode.INVENTORY_EMPTY,
            f"no GPU answers, {len(evidence.inventory.lost)} are reported lost",
        )


def _denied(question: InventoryQuestion) -> Iterator[Refusal]:
    """Denials follow the hardware, except where this node had it pinned already."""
    pins, denied = question.pins, question.policy.denied_keys
    for gpu in question.evidence.inventory.gpus:
        if denied and denied & _keys(gpu, question.standing):
            yield Refusal(ReasonCode.GPU_DENIED, f"policy denies {gpu.uuid}")
        elif gpu.uuid not in pins and (node := question.enrollment.denied_by(gpu.uuid)):
            yield Refusal(ReasonCode.GPU_DENIED, f"{gpu.uuid} belongs to the denied node {node}")


def _keys(gpu: Gpu, standing: Standing) -> frozenset[str | None]:
    """Whatever a denial may name the GPU by."""
    return frozenset({gpu.uuid, serial(gpu.serial), standing.identity_keys.get(gpu.uuid)})


def _twice(claim: ContestedClaim) -> Refusal:
    return Refusal(ReasonCode.GPU_CLAIMED_TWICE, f"{claim.uuid} belongs to {claim.owner}")


def _uid_changed(question: InventoryQuestion) -> Iterator[Refusal]:
    record = question.record
    if record is None or record.node_uid in {None, question.node.uid} or _reattested(question):
        return
    yield Refusal(
        ReasonCode.NODE_UID_CHANGED,
        f"Node UID is {question.node.uid}, {record.node_uid} is pinned",
    )


def _reattested(question: InventoryQuestion) -> bool:
    """From L1 on a new SPIRE agent with exactly the pinned hardware is the same machine."""
    standing, record = question.standing, question.record
    return (
        standing.level.rank >= Level.L1.rank
        and record is not None
        and standing.spire_agent not in {None, record.spire_agent}
        and set(claimed(question.evidence.inventory, question.pins)) == set(question.pins)
    )


def _not_enrolled(question: InventoryQuestion) -> Iterator[Refusal]:
    """Where an operator must list GPUs beforehand: those that are new, or pinned at first use."""
    pool = question.pool
    lists = pool is not None and bool(pool.uuids or pool.serials)
    if not (question.enrollment_required or lists):
        return
    enrolled, pins = enrolled_uuids(question), question.pins
    for gpu in question.evidence.inventory.gpus:
        if gpu.uuid not in enrolled and (not pins or gpu.uuid in pins):
            yield Refusal(ReasonCode.INVENTORY_NOT_ENROLLED, f"nobody enrolled {gpu.uuid} here")


def _listed_uuids(question: InventoryQuestion) -> frozenset[str]:
    pool = question.pool
    pins = frozenset(x.uuid for x in question.pins.values() if x.enrolled)
    return pins | pool.uuids if pool else pins


def _enrolled_by_serial(question: InventoryQuestion) -> Mapping[str, str]:
    """UUID -> serial: a node says itself which UUID its listed serial goes with."""
    pool = question.pool
    if pool is None or not pool.serials:
        return {}
    shown = ((x.uuid, serial(x.serial)) for x in question.evidence.inventory.gpus)
    return {uuid: text for uuid, text in shown if text in pool.serials}


def _owner(
    question: InventoryQuestion, uuid: str, *, listed: bool, board: str | None
) -> str | None:
    """Whose the GPU is instead; a listed serial takes it only from a pin of that serial."""
    node, known = question.node_name, question.enrollment
    if others := [x for x in known.claims.get(uuid, ()) if x.node != node]:
        pins = (known.records[x.node].pin(uuid) for x in others)
        same_board = board is not None and all(x is not None and x.serial == board for x in pins)
        if claim := rival(node, others, enrolled=listed or same_board):
            return claim.node
    for pool in () if listed else question.policy.pools:
        if pool is not question.pool and uuid in pool.uuids:
            return f"pool {quote(pool.pattern)}"
    return None


def _list(names: tuple[str, ...]) -> str:
    shown = ", ".join(quote(x) for x in names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"
