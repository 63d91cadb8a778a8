"""Attestation classes: found by hash, by prefix of a hash, by name in policy. Pure.

Reads one snapshot and one policy; eligible is what `NodeView.state` says.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from controller.audit.past_classes import ClassChange, PastClass
from controller.fleet.view import (
    FleetSnapshot,
    NodeState,
)
from controller.policy import AttestationClass, Policy
from gpuwarden.evidence.class_document import ClassDocument, Scalar, diff
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import fleet_pb2 as pb

HASH_PREFIX: Final = "v1:sha256:"
_PREFIX_DIGITS: Final = re.compile(r"[0-9a-f]{8,64}")
_MAX_REFERENCE: Final = 253


def list_classes(fleet: FleetSnapshot, policy: Policy, now_ns: int) -> list[pb.Class]:
    """Classes seen in the fleet, then hashes and names that only policy knows; sorted."""
    hashes = set(fleet.nodes_by_hash)
    for named in policy.classes.values():
        hashes.update(item.attestation_hash for item in named.hashes)
    messages = [hash_class(fleet, policy, one, now_ns) for one in sorted(hashes)]
    messages.extend(named_class(fleet, policy.classes[n], now_ns) for n in sorted(policy.classes))
    return messages


def find_class(
    fleet: FleetSnapshot, policy: Policy, reference: str, now_ns: int
) -> pb.Class | Refusal:
    """The class behind a full hash, a unique hex prefix of 8 digits at least, or a policy name."""
    if not reference or len(reference) > _MAX_REFERENCE or not reference.isprintable():
        return Refusal(
            ReasonCode.REQ_INVALID,
            f"class_ref must be a hash, 8 or more of its hex digits, or a class name,"
            f" got {reference[:80]!a}",
        )
    if reference in policy.classes:
        return named_class(fleet, policy.classes[reference], now_ns)
    matches = _matching_hashes(fleet, policy, reference)
    if len(matches) > 1:
        return Refusal(
            ReasonCode.REQ_INVALID,
            f"class_ref {reference!a} begins {len(matches)} hashes; give more digits",
        )
    if not matches:
        return Refusal(ReasonCode.CLASS_UNKNOWN, f"no class {reference!a}")
    return hash_class(fleet, policy, matches[0], now_ns)


def hash_class(
    fleet: FleetSnapshot, policy: Policy, attestation_hash: str, now_ns: int
) -> pb.Class:
    """One class hash with its document, where a node has shown it, and who has it now."""
    names = sorted(
        named.name
        for named in policy.classes.values()
        if any(item.attestation_hash == attestation_hash for item in named.hashes)
    )
    message = pb.Class(attestation_hash=attestation_hash, names=names)
    for name in sorted(fleet.nodes_by_hash.get(attestation_hash, ())):
        node = fleet.nodes.get(name)
        if node is None or node.acceptance is None:
            continue
        message.document = node.acceptance.class_document.decode()
        message.level = node.acceptance.level.value
        if node.state(now_ns) is NodeState.ELIGIBLE:
            message.nodes.append(name)
            message.gpu_count += len(node.acceptance.gpus)
    return message


def named_class(fleet: FleetSnapshot, named: AttestationClass, now_ns: int) -> pb.Class:
    """A class that policy names: its hashes and the nodes that carry one of them now."""
    message = pb.Class(names=[named.name], level=named.min_level.value)
    eligible: dict[str, int] = {}
    for item in named.hashes:
        message.hashes.append(item.attestation_hash)
        for name in fleet.nodes_by_hash.get(item.attestation_hash, ()):
            node = fleet.nodes.get(name)
            if node and node.acceptance and node.state(now_ns) is NodeState.ELIGIBLE:
                eligible[name] = len(node.acceptance.gpus)
    message.nodes.extend(sorted(eligible))
    message.gpu_count = sum(eligible.values())
    return message


def is_hash(reference: str) -> bool:
    """Whether it can be a hash, or at least 8 of its hex digits."""
    return _PREFIX_DIGITS.fullmatch(reference.removeprefix(HASH_PREFIX)) is not None


def past_class(
    fleet: FleetSnapshot,
    policy: Policy,
    found: pb.Class | Refusal,
    past: Sequence[PastClass],
    now_ns: int,
) -> pb.Class | Refusal:
    """`found` with the document that the log has of it; a class that no node has now."""
    if len(past) > 1:
        detail = f"class_ref begins {len(past)} hashes; give more digits"
        return Refusal(ReasonCode.REQ_INVALID, detail)
    if not past or (
        isinstance(found, pb.Class) and found.attestation_hash != (past[0].attestation_hash)
    ):
        return found
    message = hash_class(fleet, policy, past[0].attestation_hash, now_ns)
    message.level, message.document = past[0].level, past[0].text
    return message


def change_messages(changes: Iterable[ClassChange]) -> list[pb.ClassChange]:
    """Each change with the facts that differ, where both documents are kept."""
    return [
        pb.ClassChange(
            at=change.at,
            old_hash=change.before.attestation_hash,
            new_hash=change.after.attestation_hash,
            facts=_facts(change.before.document, change.after.document),
        )
        for change in changes
    ]


def _facts(old: ClassDocument | None, new: ClassDocument | None) -> list[pb.FactChange]:
    if old is None or new is None:
        return []
    return [
        pb.FactChange(path=x.path, old=_scalar(x.left), new=_scalar(x.right))
        for x in diff(old, new)
    ]


def _scalar(value: Scalar) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else str(value).lower()


def _matching_hashes(fleet: FleetSnapshot, policy: Policy, reference: str) -> list[str]:
    known = set(fleet.nodes_by_hash)
    for named in policy.classes.values():
        known.update(item.attestation_hash for item in named.hashes)
    if reference in known:
        return [reference]
    digits = reference.removeprefix(HASH_PREFIX)
    if not _PREFIX_DIGITS.fullmatch(digits):
        return []
    return sorted(one for one in known if one.startswith(HASH_PREFIX + digits))
