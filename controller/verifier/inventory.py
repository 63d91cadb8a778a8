"""Step 16: whether an inventory is whole, allowed here, and the one that this node is known by.

Enrolled GPUs only narrow. A GPU that is missing is lost and the node stays; a GPU that is new, or
whose serial changed, and another system UUID are another machine until an operator decides
otherwise. MIG devices come and go without an operator, but one that a node has is no other node's.
What could not be read, and what that costs, is in `reads`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from controller.fleet.attestation_result import VANISHED
from controller.fleet.directory import KnownNode
from controller.fleet.enrollment import (
    ContestedClaim,
    EnrolledGpu,
    EnrollmentRecord,
    EnrollmentSnapshot,
    rival,
)
from controller.fleet.faults import Fault
from controller.policy import Level, NodePool, Policy
from controller.verifier.context import Standing
from controller.verifier.reads import Readable
from gpuwarden.evidence.auxiliary_facts import Dropped
from gpuwarden.evidence.inventory_rules import inventory_findings
from gpuwarden.evidence.model import Evidence, Gpu, Inventory, LostGpu
from gpuwarden.evidence.node_identity import serial
from gpuwarden.evidence.strict_json import quote
from gpuwarden.reasons import ReasonCode, Refusal

UNKNOWN_INDEX = -1
"""Index of a GPU that evidence does not mention."""


def lost_gpus(
    inventory: Inventory,
    enrolled_gpus: Mapping[str, EnrolledGpu],
    nameless: Mapping[str, str] = MappingProxyType({}),
) -> tuple[LostGpu, ...]:
    """Enrolled GPUs that do not answer; before first use those that the agent reports.

    `nameless`: why those among them do not that answer without their name.
    """
    answering = {x.uuid for x in inventory.gpus}
    reported = {x.uuid: x for x in inventory.lost}
    if not enrolled_gpus:
        return inventory.lost
    missing = (x for x in enrolled_gpus.values() if x.uuid not in answering)
    return tuple(
        reported.get(x.uuid) or _vanished(x, nameless.get(x.uuid, VANISHED)) for x in missing
    )


def claimed_uuids(
    inventory: Inventory, enrolled_gpus: Mapping[str, EnrolledGpu]
) -> tuple[str, ...]:
    """The UUIDs that the node would hold by this evidence."""
    lost = (x.uuid for x in inventory.lost if not enrolled_gpus or x.uuid in enrolled_gpus)
    return tuple(sorted({*(x.uuid for x in inventory.gpus), *lost}))


def shown_system_uuid(inventory: Inventory) -> str | None:
    """The machine's SMBIOS UUID as it is enrolled: two spellings of it are one."""
    shown = inventory.host.system_uuid
    return shown.lower() if shown is not None else None


def claimed_mig_uuids(gpus: Iterable[Gpu]) -> tuple[str, ...]:
    """The UUIDs of the MIG devices that the node would hold with these GPUs."""
    return tuple(sorted(x.uuid for gpu in gpus for x in gpu.mig_devices))


def _claimed(question: "InventoryQuestion") -> tuple[str, ...]:
    """The same, with GPUs that are not whole."""
    claimed = claimed_uuids(question.evidence.inventory, question.enrolled_gpus)
    return tuple(sorted({*claimed, *(x.uuid for x in question.answering)}))


def _changes(question: "InventoryQuestion") -> Iterator[str]:
    """What is other than enrolled, one line each; nothing before first use.

    A GPU that is not enrolled is a change whatever else of it was read.
    """
    enrolled_gpus = question.enrolled_gpus
    if not enrolled_gpus:
        return
    whole = {x.uuid for x in question.evidence.inventory.gpus}
    for gpu in question.answering:
        enrolled_gpu = enrolled_gpus.get(gpu.uuid)
        if enrolled_gpu is None:
            yield f"{gpu.uuid} is not one of the {len(enrolled_gpus)} enrolled GPUs"
        elif gpu.uuid in whole and _contradicts(enrolled_gpu, gpu):
            yield f"serial of {gpu.uuid} is {serial(gpu.serial)}, {enrolled_gpu.serial} is enrolled"


def unenrolled_lost(
    inventory: Inventory, enrolled_gpus: Mapping[str, EnrolledGpu]
) -> Iterator[str]:
    """Warnings about GPUs reported lost that the node never had."""
    if enrolled_gpus:
        yield from (
            f"{x.uuid} is reported lost but not enrolled here"
            for x in inventory.lost
            if x.uuid not in enrolled_gpus
        )


def offered_gpus(question: "InventoryQuestion") -> tuple[EnrolledGpu, ...]:
    """The GPUs that answer, as they would be enrolled, sorted by UUID."""
    keys = question.standing.identity_keys
    whole = {x.uuid for x in question.evidence.inventory.gpus}
    gpus = (
        _with_mig_devices(
            _enrolled_gpu(x, None, keys.get(x.uuid), enrolled=False)
            if x.uuid in whole
            else _known_by_name(x, enrolled=False),
            x,
            None,
        )
        for x in question.answering
    )
    return tuple(sorted(gpus, key=lambda x: x.uuid))


def accepted_gpus(
    inventory: Inventory,
    enrolled_gpus: Mapping[str, EnrolledGpu],
    identity_keys: Mapping[str, str],
    enrolled: frozenset[str],
    unread_migs: frozenset[str | None] = frozenset(),
) -> tuple[EnrolledGpu, ...]:
    """The enrolled GPUs once this evidence is accepted: unread facts filled in, none replaced.

    MIG devices are those shown now. Of the GPUs in `unread_migs` not all were read: what was known
    of them stays.
    """
    gpus = (
        _with_mig_devices(
            _enrolled_gpu(
                x, enrolled_gpus.get(x.uuid), identity_keys.get(x.uuid), enrolled=x.uuid in enrolled
            ),
            x,
            enrolled_gpus.get(x.uuid) if x.uuid in unread_migs else None,
        )
        for x in inventory.gpus
    )
    present = {x.uuid: x for x in gpus}
    lost = {
        x.uuid: _known_by_name(x, enrolled=x.uuid in enrolled)
        for x in inventory.lost
        if not enrolled_gpus
    }
    merged = {**lost, **enrolled_gpus, **present}
    return tuple(merged[x] for x in sorted(merged))


def next_record(
    before: EnrollmentRecord | None,
    *,
    node: str,
    node_uid: str | None,
    instance: str,
    standing: Standing,
    gpus: tuple[EnrolledGpu, ...],
    system_uuid: str | None,
    faults: tuple[Fault, ...] = (),
) -> EnrollmentRecord:
    """The record that must be in the store before the evidence counts."""
    base = (before or EnrollmentRecord(node)).answered_by(instance)
    return replace(
        base,
        node_uid=node_uid,
        spire_agent=standing.spire_agent,
        gpus=gpus,
        system_uuid=base.system_uuid or system_uuid,
        faults=faults,
    )


def _vanished(enrolled_gpu: EnrolledGpu, error: str) -> LostGpu:
    return LostGpu(
        uuid=enrolled_gpu.uuid,
        index=UNKNOWN_INDEX,
        pci_bus_id=enrolled_gpu.pci_bus_id or "",
        error=error,
    )


def _known_by_name(gpu: Gpu | LostGpu, *, enrolled: bool) -> EnrolledGpu:
    """Enrolled without what was not read; the first whole reading completes it."""
    return EnrolledGpu(gpu.uuid, pci_bus_id=gpu.pci_bus_id, enrolled=enrolled, complete=False)


def _contradicts(enrolled_gpu: EnrolledGpu, gpu: Gpu) -> bool:
    """Whether the serial is another one.

    One that only now is reported is not: a newer driver knows more. One that is no longer
    reported is a failed read (see `reads`).
    """
    return enrolled_gpu.serial is not None and enrolled_gpu.serial != serial(gpu.serial)


def _enrolled_gpu(
    gpu: Gpu, enrolled_gpu: EnrolledGpu | None, identity_key: str | None, *, enrolled: bool
) -> EnrolledGpu:
    """What was enrolled stays; what was not known then is filled in."""
    if enrolled_gpu is not None and enrolled_gpu.complete:
        shown = enrolled_gpu.serial or serial(gpu.serial)
        key = enrolled_gpu.identity_key or identity_key
        return replace(enrolled_gpu, serial=shown, identity_key=key)
    return EnrolledGpu(
        uuid=gpu.uuid,
        serial=serial(gpu.serial),
        identity_key=identity_key,
        pci_bus_id=gpu.pci_bus_id,
        enrolled=enrolled if enrolled_gpu is None else enrolled_gpu.enrolled,
    )


def _with_mig_devices(
    enrolled_gpu: EnrolledGpu, gpu: Gpu, known: EnrolledGpu | None
) -> EnrolledGpu:
    kept = known.mig_devices if known else ()
    migs = tuple(sorted({*(x.uuid for x in gpu.mig_devices), *kept}))
    return replace(enrolled_gpu, mig_devices=migs)


# --- findings

_ORDER: Final = {code: position for position, code in enumerate(ReasonCode)}
_LISTED: Final = 4
_MIG_DEVICES: Final = "migDevices"


@dataclass(frozen=True, slots=True)
class InventoryQuestion:
    """One inventory and everything it is compared with, looked up once."""

    evidence: Evidence
    """Without malformed auxiliary facts, and with unhealthy GPUs among the lost ones."""
    answering: tuple[Gpu, ...]
    """All GPUs that show their name, unhealthy ones included."""
    reads: Readable
    odd_use: tuple[Dropped, ...]
    """What was malformed of allocations, processes and pods."""
    node_name: str
    node: KnownNode
    standing: Standing
    enrollment: EnrollmentSnapshot
    policy: Policy
    enrollment_required: bool
    record: EnrollmentRecord | None
    """What is remembered about the node."""
    enrolled_gpus: Mapping[str, EnrolledGpu]
    """Pins by UUID; empty before first use."""
    pool: NodePool | None
    """The node's pool in policy."""


def inventory_refusals(
    question: InventoryQuestion, contested: tuple[ContestedClaim, ...]
) -> tuple[Refusal, ...]:
    """Everything that step 16 finds in a well-formed inventory, the winning code first."""
    found = [
        *_incomplete(question.reads),
        *_empty(question.evidence),
        *_denied(question),
        *(_twice(x) for x in contested),
        *_uid_changed(question),
        *_system_changed(question),
        *_not_enrolled(question),
        *(Refusal(ReasonCode.INVENTORY_CHANGED, x) for x in _changes(question)),
    ]
    return tuple(sorted(found, key=lambda x: _ORDER[x.code]))


def malformed_refusals(evidence: Evidence) -> tuple[Refusal, ...]:
    """What makes the evidence no account of a node: nothing else can be said about it then."""
    lines = [*inventory_findings(evidence.inventory), *_nameless(evidence)]
    return tuple(Refusal(ReasonCode.INVENTORY_INVALID, x) for x in lines)


def contested_claims(question: InventoryQuestion) -> tuple[ContestedClaim, ...]:
    """The GPUs and MIG devices that the node names but may not have, with their owners."""
    uuids = (*_claimed(question), *claimed_mig_uuids(question.answering))
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


def unread_migs(evidence: Evidence) -> frozenset[str | None]:
    """GPUs whose MIG devices could not all be read; None for one that has no name."""
    return frozenset(x.gpu for x in evidence.failed_reads if x.fact == _MIG_DEVICES)


def _nameless(evidence: Evidence) -> Iterator[str]:
    """A PCI identity may be missing only where its read failed."""
    failed = {(x.fact, x.gpu) for x in evidence.failed_reads}
    for gpu in evidence.inventory.gpus:
        for fact, value in (("pci", gpu.pci), ("subsystem", gpu.subsystem)):
            if value is None and not failed & {(fact, gpu.uuid), (fact, gpu.pci_bus_id)}:
                yield f"{gpu.uuid} has no {fact} and no failed read of it"


def _incomplete(reads: Readable) -> Iterator[Refusal]:
    if reads.undecidable:
        yield Refusal(ReasonCode.INVENTORY_INCOMPLETE, f"not read: {_list(reads.undecidable)}")


def _empty(evidence: Evidence) -> Iterator[Refusal]:
    """No GPU that answers: there is no class, whether or not lost ones are known."""
    if not evidence.inventory.gpus:
        yield Refusal(
            ReasonCode.INVENTORY_EMPTY,
            f"no GPU answers, {len(evidence.inventory.lost)} are reported lost",
        )


def _denied(question: InventoryQuestion) -> Iterator[Refusal]:
    """Quarantine entries follow the hardware, except where this node had it enrolled already."""
    enrolled_gpus, denied = question.enrolled_gpus, question.policy.denied_keys
    for gpu in question.answering:
        if denied and denied & _keys(gpu, question.standing):
            yield Refusal(ReasonCode.GPU_DENIED, f"policy denies {gpu.uuid}")
        elif gpu.uuid not in enrolled_gpus and (
            node := question.enrollment.quarantined_holder(gpu.uuid)
        ):
            yield Refusal(ReasonCode.GPU_DENIED, f"{gpu.uuid} belongs to the denied node {node}")


def _keys(gpu: Gpu, standing: Standing) -> frozenset[str | None]:
    """Whatever policy may name a denied GPU by."""
    keys = (gpu.uuid, serial(gpu.serial), standing.identity_keys.get(gpu.uuid))
    return frozenset({*keys, *(x.uuid for x in gpu.mig_devices)})


def _twice(claim: ContestedClaim) -> Refusal:
    return Refusal(ReasonCode.GPU_CLAIMED_TWICE, f"{claim.uuid} belongs to {claim.owner}")


def _uid_changed(question: InventoryQuestion) -> Iterator[Refusal]:
    record = question.record
    if record is None or record.node_uid in {None, question.node.uid} or _reattested(question):
        return
    yield Refusal(
        ReasonCode.NODE_UID_CHANGED,
        f"Node UID is {question.node.uid}, {record.node_uid} is enrolled",
    )


def _system_changed(question: InventoryQuestion) -> Iterator[Refusal]:
    """The same cards in another machine; one that shows no UUID any more is not compared."""
    enrolled = question.record.system_uuid if question.record else None
    shown = shown_system_uuid(question.evidence.inventory)
    if None not in {enrolled, shown} and enrolled != shown:
        yield Refusal(
            ReasonCode.SYSTEM_UUID_CHANGED, f"system UUID is {shown}, {enrolled} is enrolled"
        )


def _reattested(question: InventoryQuestion) -> bool:
    """From L1 on a new SPIRE agent with exactly the enrolled hardware is the same machine."""
    standing, record = question.standing, question.record
    return (
        standing.level.rank >= Level.L1.rank
        and record is not None
        and standing.spire_agent not in {None, record.spire_agent}
        and set(_claimed(question)) == set(question.enrolled_gpus)
    )


def _not_enrolled(question: InventoryQuestion) -> Iterator[Refusal]:
    """Where an operator must list GPUs beforehand: those that are new, or enrolled at first use."""
    pool = question.pool
    lists = pool is not None and bool(pool.uuids or pool.serials)
    if not (question.enrollment_required or lists):
        return
    enrolled, enrolled_gpus = enrolled_uuids(question), question.enrolled_gpus
    for gpu in question.answering:
        if gpu.uuid not in enrolled and (not enrolled_gpus or gpu.uuid in enrolled_gpus):
            yield Refusal(ReasonCode.INVENTORY_NOT_ENROLLED, f"nobody enrolled {gpu.uuid} here")


def _listed_uuids(question: InventoryQuestion) -> frozenset[str]:
    pool = question.pool
    enrolled_gpus = frozenset(x.uuid for x in question.enrolled_gpus.values() if x.enrolled)
    return enrolled_gpus | pool.uuids if pool else enrolled_gpus


def _enrolled_by_serial(question: InventoryQuestion) -> Mapping[str, str]:
    """UUID -> serial: a node says itself which UUID its listed serial goes with."""
    pool = question.pool
    if pool is None or not pool.serials:
        return {}
    shown = ((x.uuid, serial(x.serial)) for x in question.answering)
    return {uuid: text for uuid, text in shown if text in pool.serials}


def _owner(
    question: InventoryQuestion, uuid: str, *, listed: bool, board: str | None
) -> str | None:
    """Whose the GPU is instead; a listed serial takes it only from one of that serial."""
    node, known = question.node_name, question.enrollment
    if others := [x for x in known.claims.get(uuid, ()) if x.node != node]:
        enrolled_gpus = (known.records[x.node].enrolled_gpu(uuid) for x in others)
        same_board = board is not None and all(
            x is not None and x.serial == board for x in enrolled_gpus
        )
        if claim := rival(node, others, enrolled=listed or same_board):
            return claim.node
    for pool in () if listed else question.policy.pools:
        if pool is not question.pool and uuid in pool.uuids:
            return f"pool {quote(pool.pattern)}"
    return None


def _list(names: tuple[str, ...]) -> str:
    shown = ", ".join(quote(x) for x in names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"
