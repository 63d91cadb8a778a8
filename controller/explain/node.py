"""Node.

Holds: node findings, fleet classes, node lines, recent refusals.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from controller.fleet.enrollment import AUTOMATIC, EnrollmentRecord
from controller.fleet.view import (
    Acceptance,
    FleetSnapshot,
    GpuView,
    NodeState,
    NodeView,
    PastRefusal,
)
from controller.policy import AttestationClass, Policy
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.moment import NS_PER_S, rfc3339
from gpuwarden.reason_texts import EXPLANATIONS
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import fleet_pb2 as pb

# --- node findings
# Why a node is or is not eligible, as lines for people, and its pins as a document.
#
# Order: where it stands, what was proven, which GPUs are not usable, what is pinned,
# what blocks it and what to do, what was refused last, warnings. Pure; text only,
# nothing may be decided from here.

_STATE_LINES: Mapping[NodeState, str] = {
    NodeState.UNKNOWN: "no evidence has been seen since this controller started",
    NodeState.REFUSED: "no evidence has been accepted; the last attempt was refused",
    NodeState.STALE: "the lease ran out: no evidence was accepted in time",
    NodeState.REVOKED: "trust was taken away by a refusal; the next accepted evidence restores it",
    NodeState.QUARANTINED: "trust was taken away until an operator acts",
}


def findings(node: NodeView, record: EnrollmentRecord | None, now_ns: int) -> list[str]:
    """What holds and what does not, in order."""
    lines = [_state_line(node, now_ns)]
    if node.acceptance is not None:
        lines.append(_evidence_line(node.acceptance))
        lines.append(_gpus_line(node.acceptance))
        lines.extend(_gpu_lines(node.acceptance))
    lines.extend(_pin_lines(node, record))
    if node.blocked is not None:
        lines.append(f"blocked by {_refusal_of_node_findings(node.blocked)}")
        lines.append(f"what to do: {EXPLANATIONS[node.blocked.code].remedy}")
    if node.refusals and node.refusals[0] != node.blocked:
        lines.append(f"last refusal: {_refusal_of_node_findings(node.refusals[0])}")
    lines.extend(f"warning: {text}" for text in node.warnings)
    if node.acceptance is not None:
        lines.extend(f"warning: {text}" for text in node.acceptance.warnings)
    return lines


def pin_document(record: EnrollmentRecord | None) -> str:
    """RFC 8785 JSON of what is pinned, empty when nothing is."""
    if record is None or not record.gpus:
        return ""
    return canonical_json(
        {
            "node": {"name": record.node, "uid": record.node_uid},
            "spireAgent": record.spire_agent,
            "gpus": [
                {
                    "uuid": pin.uuid,
                    "serial": pin.serial,
                    "identityKey": pin.identity_key,
                    "enrolled": pin.enrolled,
                }
                for pin in record.gpus
            ],
        }
    ).decode()


def _state_line(node: NodeView, now_ns: int) -> str:
    state = node.state(now_ns)
    if state is NodeState.ELIGIBLE and node.acceptance is not None:
        left_s = (node.acceptance.fresh_until_ns - now_ns) // NS_PER_S
        return f"state eligible: evidence counts for another {left_s} s"
    return f"state {state}: {_STATE_LINES[state]}"


def _evidence_line(accepted: Acceptance) -> str:
    return (
        f"last accepted {rfc3339(accepted.accepted_wall_ns)}: level {accepted.level}, "
        f"class {accepted.attestation_hash}, evidence {accepted.evidence_digest[:16]}, "
        f"agent {accepted.agent_version}"
    )


def _gpus_line(accepted: Acceptance) -> str:
    lost = sum(gpu.lost is not None for gpu in accepted.gpus)
    unhealthy = sum(gpu.unhealthy is not None and gpu.lost is None for gpu in accepted.gpus)
    usable = len(accepted.gpus) - lost - unhealthy
    return f"GPUs: {usable} usable, {lost} lost, {unhealthy} unhealthy"


def _gpu_lines(accepted: Acceptance) -> list[str]:
    return [
        f"GPU {gpu.index} {gpu.uuid}: {_trouble(gpu)}; not allocatable"
        for gpu in accepted.gpus
        if gpu.lost is not None or gpu.unhealthy is not None
    ]


def _trouble(gpu: GpuView) -> str:
    return f"lost ({gpu.lost.error})" if gpu.lost is not None else f"unhealthy ({gpu.unhealthy})"


def _pin_lines(node: NodeView, record: EnrollmentRecord | None) -> list[str]:
    if record is None or not record.gpus:
        return ["pins: none yet"]
    enrolled = sum(pin.enrolled for pin in record.gpus)
    lines = [f"pins: {len(record.gpus)} GPUs, {enrolled} of them enrolled by an operator"]
    if node.acceptance is not None:
        shown = {gpu.uuid for gpu in node.acceptance.gpus}
        lines.extend(
            f"pinned GPU {pin.uuid} is not in the last accepted evidence"
            for pin in record.gpus
            if pin.uuid not in shown
        )
    if record.denial is not None:
        denial = record.denial
        who = "the controller" if denial.actor == AUTOMATIC else denial.actor
        lines.append(f"quarantined by {who}: {denial.code} {denial.reason}".rstrip())
    return lines


def _refusal_of_node_findings(refusal: PastRefusal) -> str:
    times = f", {refusal.count} times" if refusal.count > 1 else ""
    detail = f": {refusal.detail}" if refusal.detail else ""
    return f"{refusal.code} (step {refusal.step}{times}, {refusal.effect}){detail}"


# --- fleet classes
# Attestation classes as FleetService shows them: by hash, by prefix, by name in policy.
#
# Pure reading of one snapshot and one policy; must not decide who is eligible
# otherwise than `NodeView.state` does.

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


# --- node lines
# One line of a support bundle for each node: where it stands and by which codes. Pure.

WITHHELD: Final = ("detail", "warnings", "gpus", "instanceId", "bootId", "systemUuid")
_VERSION: Final = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,5}){1,3}(?:(?:a|b|rc|\.dev)[0-9]{1,4})?")


def node_line(node: NodeView, now_ns: int, streams: int) -> dict[str, object]:
    """What leaves of a node; `now_ns` is CLOCK_BOOTTIME."""
    accepted = node.acceptance
    return {
        "name": node.name,
        "state": node.state(now_ns).value,
        "blockedBy": None if node.blocked is None else node.blocked.code.value,
        "mode": node.mode.value,
        "streams": streams,
        "acceptance": None if accepted is None else _acceptance(accepted, now_ns),
        "refusals": [_refusal_of_node_lines(one) for one in node.refusals],
        "waitsForOperator": node.candidate is not None,
    }


def _acceptance(accepted: Acceptance, now_ns: int) -> dict[str, object]:
    return {
        "at": rfc3339(accepted.accepted_wall_ns),
        "freshForSeconds": max(0, accepted.fresh_until_ns - now_ns) // NS_PER_S,
        "level": accepted.level.value,
        "attestationHash": accepted.attestation_hash,
        "driver": _version(accepted.host.driver),
        "agent": _version(accepted.agent_version),
        "gpus": len(accepted.gpus),
        "lost": sum(gpu.lost is not None for gpu in accepted.gpus),
        "unhealthy": sum(gpu.unhealthy is not None for gpu in accepted.gpus),
        "warnings": len(accepted.warnings),
    }


def _refusal_of_node_lines(one: PastRefusal) -> dict[str, object]:
    return {
        "last": rfc3339(one.wall_ns),
        "code": one.code.value,
        "step": one.step,
        "effect": one.effect.value,
        "count": one.count,
    }


def _version(text: str | None) -> str | None:
    """A node may call its version anything; what does not look like one is not told."""
    return text if text is not None and _VERSION.fullmatch(text) else None


# --- recent refusals
# The last refusals of this controller, for people who look for a cause: codes, never texts.
#
# A refusal that repeats is counted. Bounded, whatever callers do: the one that was seen
# longest ago goes first. One event loop; must not wait.

KEPT: Final = 256


@dataclass(frozen=True, slots=True)
class RecentRefusal:
    """What was refused to whom; times are nanoseconds since the Unix epoch."""

    what: str
    """`evidence`, or the full name of a gRPC method, `unknown` for one that is not ours."""
    subject: str | None
    """Node that evidence was about, or kind of caller; None where nobody was recognised."""
    code: ReasonCode
    step: int | None
    """Of verification."""
    first_ns: int
    last_ns: int
    count: int = 1


class RecentRefusals:
    """One for the process."""

    def __init__(self, wall_ns: Callable[[], int], kept: int = KEPT) -> None:
        self._wall_ns = wall_ns
        self._kept = kept
        self._entries: OrderedDict[tuple[str, str | None, str, int | None], RecentRefusal] = (
            OrderedDict()
        )

    def note(
        self, what: str, subject: str | None, code: ReasonCode, step: int | None = None
    ) -> None:
        """Take note of a refusal."""
        now_ns, key = self._wall_ns(), (what, subject, code.value, step)
        known = self._entries.pop(key, None)
        self._entries[key] = (
            RecentRefusal(what, subject, code, step, now_ns, now_ns)
            if known is None
            else replace(known, last_ns=now_ns, count=known.count + 1)
        )
        if len(self._entries) > self._kept:
            self._entries.popitem(last=False)

    def newest_first(self) -> tuple[RecentRefusal, ...]:
        """All that are kept."""
        return tuple(reversed(self._entries.values()))
