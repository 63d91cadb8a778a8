"""The short text of each refusal of a node. Constant per cause, so that Events group."""

from collections.abc import Container

from controller.placement.requirements import Requirements
from controller.placement.selector import MODEL_PREFIX
from controller.policy import NodeMode
from gpuwarden.policy.texts import shown
from gpuwarden.reasons import ReasonCode, Refusal

_TEXTS: dict[ReasonCode, str] = {
    ReasonCode.NODE_NO_EVIDENCE: "no attestation hash",
    ReasonCode.NODE_STALE: "attestation is stale",
    ReasonCode.NODE_QUARANTINED: "node is quarantined until an operator acts",
    ReasonCode.HASH_MISMATCH: "attestation mismatch",
    ReasonCode.CLASS_UNKNOWN: "attestation class is not in the policy",
    ReasonCode.CLASS_NOT_ALLOWED: "the cluster does not accept the node's attestation hash",
    ReasonCode.LEVEL_TOO_LOW: "evidence level is too low",
    ReasonCode.NODE_MODE: "the node gives GPUs in another way than the pod asks for them",
    ReasonCode.EXACT_UNAVAILABLE: "kubelet chooses the GPU on this node",
    ReasonCode.MAP_ELSEWHERE: "the scheduling map names another node",
    ReasonCode.GPU_NO_MATCH: "too few GPUs are as the pod asks",
    ReasonCode.GPU_LOST: "a GPU that the pod needs is lost or unhealthy",
    ReasonCode.GPU_BUSY: "too few matching GPUs are free",
    ReasonCode.BINDING_DENIED_RECENTLY: "the binding was denied a moment ago",
}

REFUSALS: dict[ReasonCode, Refusal] = {code: Refusal(code, text) for code, text in _TEXTS.items()}

STILL_CLAIMED = Refusal(
    ReasonCode.NODE_MODE,
    "pods still have GPUs of the node by claims from before its mode was changed",
)
WITHOUT_RECORD = Refusal(
    ReasonCode.GPU_BUSY,
    "kubelet gave matching GPUs to pods, or pods use them, without a reservation",
)
"""Else enough of them would be free."""
NO_MODE_YET: dict[NodeMode, Refusal] = {
    mode: Refusal(ReasonCode.NODE_MODE, f"nodes of mode {mode} give no GPUs yet")
    for mode in (NodeMode.PER_GPU, NodeMode.DRA)
}
"""Of the modes that are not available: managed pods pass none of their nodes."""


def unknown_name(
    needs: Requirements, classes: Container[str], labels: Container[str]
) -> Refusal | None:
    """Against a pod that names a class or a label of GPUs that the policy does not define."""
    name = needs.attestation_class
    if name is not None and name not in classes:
        return REFUSALS[ReasonCode.CLASS_UNKNOWN]
    for label in sorted(needs.labels):
        if label not in labels and not label.startswith(MODEL_PREFIX):
            text = f"GPU label {shown(label)} is not in the policy"
            return Refusal(ReasonCode.REQ_INVALID, text)
    return None


def refused_node(code: ReasonCode) -> Refusal:
    """NODE_REFUSED with the code of the refusal of the node's evidence."""
    return Refusal(ReasonCode.NODE_REFUSED, f"evidence refused ({code})")


def message(refusal: Refusal) -> str:
    """The text of extender answers: `gpuwarden: CODE short text`."""
    return f"gpuwarden: {refusal.code} {refusal.detail}"
