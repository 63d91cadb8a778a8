"""Who cures what a waiting pod is refused with, and what wakes the pod then.

The binding webhook's memory of refusals goes by it, and docs/reference/reasons.md is made from it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Self

from gpuwarden.reasons import ReasonCode


class Cure(StrEnum):
    """Who or what cures a refusal."""

    cured_by: str
    wakes: str
    """When the pod is tried again."""

    def __new__(cls, value: str, cured_by: str, wakes: str) -> Self:
        """Keep the texts beside the string."""
        cure = str.__new__(cls, value)
        cure._value_ = value
        cure.cured_by = cured_by
        cure.wakes = wakes
        return cure

    TIME = "time", "some seconds", "after 5 s this pod, if its Binding was refused"
    TURN = "turn", "time, or whoever refuses its Bindings", "when others had their turn, this pod"
    RELEASE = (
        "release",
        "a GPU that becomes free",
        "at each release on the node as many as can be placed, in the scheduler's order",
    )
    QUOTA = (
        "quota",
        "a pod of the namespace that ends",
        "when the namespace holds fewer GPUs, as many of its pods as can be placed",
    )
    EVIDENCE = (
        "evidence",
        "the node: its agent, hardware or driver; an operator where it is quarantined",
        "with the node's next evidence that helps, as many as can be placed there",
    )
    POLICY = (
        "policy",
        "whoever writes the policy, or the node's next evidence",
        "with a new policy, or with such evidence, as many as can be placed",
    )
    AUTHOR = (
        "author",
        "whoever made the pod: it is made again",
        "by nothing of gpuwarden; /filter repeats the refusal for 5 min",
    )
    CALLER = "caller", "whoever sent the Binding", "by nothing of gpuwarden"


CURES: Final[Mapping[ReasonCode, Cure]] = {
    ReasonCode.NODE_NO_EVIDENCE: Cure.EVIDENCE,
    ReasonCode.NODE_STALE: Cure.EVIDENCE,
    ReasonCode.NODE_REFUSED: Cure.EVIDENCE,
    ReasonCode.NODE_QUARANTINED: Cure.EVIDENCE,
    ReasonCode.GPU_LOST: Cure.EVIDENCE,
    ReasonCode.HASH_MISMATCH: Cure.POLICY,
    ReasonCode.CLASS_UNKNOWN: Cure.POLICY,
    ReasonCode.CLASS_NOT_ALLOWED: Cure.POLICY,
    ReasonCode.LEVEL_TOO_LOW: Cure.POLICY,
    ReasonCode.NODE_MODE: Cure.POLICY,
    ReasonCode.EXACT_UNAVAILABLE: Cure.POLICY,
    ReasonCode.MAP_ELSEWHERE: Cure.POLICY,
    ReasonCode.GPU_NO_MATCH: Cure.POLICY,
    ReasonCode.GPU_BUSY: Cure.RELEASE,
    ReasonCode.RESERVATION_CONFLICT: Cure.RELEASE,
    ReasonCode.QUOTA_EXCEEDED: Cure.QUOTA,
    ReasonCode.RESERVATION_EXPIRED: Cure.TURN,
    ReasonCode.BINDING_DENIED_RECENTLY: Cure.TIME,
    ReasonCode.CONTROLLER_NOT_READY: Cure.TIME,
    ReasonCode.LEDGER_UNAVAILABLE: Cure.TIME,
    ReasonCode.LEDGER_CONFLICT: Cure.TIME,
    ReasonCode.AUDIT_UNAVAILABLE: Cure.TIME,
    ReasonCode.POD_UNKNOWN: Cure.TIME,
    ReasonCode.BINDING_STALE: Cure.TIME,
    ReasonCode.BINDING_FORGED: Cure.CALLER,
    ReasonCode.REQ_INVALID: Cure.AUTHOR,
    **{code: Cure.AUTHOR for code in ReasonCode if code.startswith("BYPASS_")},
}
"""Of every code that /filter or the binding webhook gives."""
_SOON: Final = frozenset({Cure.TIME, Cure.TURN, Cure.RELEASE, Cure.QUOTA})
_PASSING: Final = _SOON | {Cure.EVIDENCE}


def is_passing(code: ReasonCode) -> bool:
    """Whether a pod that is refused now for it may be placed later, as it is."""
    return code is ReasonCode.RESERVATION_PENDING or CURES.get(code) in _PASSING


_SAYS_LITTLE: Final = frozenset({ReasonCode.NODE_MODE, ReasonCode.NODE_NO_EVIDENCE})


def rank(code: ReasonCode, *, names_gpus: bool = False) -> int:
    """Which code of many nodes holds the pod back: the lowest, however few nodes have it.

    First a node that would take the pod, but for others that have its GPUs or their turn; last
    nodes that the pod does not mean. `names_gpus`: the pod asks for GPUs by UUID, of one node.
    """
    if CURES.get(code) in _SOON:
        return 0
    if code is ReasonCode.MAP_ELSEWHERE or (names_gpus and code is ReasonCode.GPU_NO_MATCH):
        return 3
    return 2 if code in _SAYS_LITTLE else 1
