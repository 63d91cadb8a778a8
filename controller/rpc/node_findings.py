"""Why a node is or is not eligible, as lines for people, and its pins as a document.

Order: where it stands, what was proven, which GPUs are not usable, what is pinned,
what blocks it and what to do, what was refused last, warnings. Pure; text only,
nothing may be decided from here.
"""

from collections.abc import Mapping

from controller.fleet.enrollment import AUTOMATIC, EnrollmentRecord
from controller.fleet.view import Acceptance, GpuView, NodeState, NodeView, PastRefusal
from controller.rpc.fleet_messages import rfc3339
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.reason_texts import EXPLANATIONS

_NS = 1_000_000_000
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
        lines.append(f"blocked by {_refusal(node.blocked)}")
        lines.append(f"what to do: {EXPLANATIONS[node.blocked.code].remedy}")
    if node.refusals and node.refusals[0] != node.blocked:
        lines.append(f"last refusal: {_refusal(node.refusals[0])}")
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
        left_s = (node.acceptance.fresh_until_ns - now_ns) // _NS
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
        lines.append(f"denied by {who}: {denial.code} {denial.reason}".rstrip())
    return lines


def _refusal(refusal: PastRefusal) -> str:
    times = f", {refusal.count} times" if refusal.count > 1 else ""
    detail = f": {refusal.detail}" if refusal.detail else ""
    return f"{refusal.code} (step {refusal.step}{times}, {refusal.effect}){detail}"
