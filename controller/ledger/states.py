"""The states of a reservation and the only moves between them. Pure.

    Proposed ─┬─> Confirmed ──> Releasing ──> Released
              ├──────────────────^
              ├─> Expired
              └─> Revoked

Proposed is an attempt: an answer was given, nothing is known to run. Confirmed: the pod is
bound under this reservation. Releasing: the pod has ended, its processes may not have.
Released, Expired and Revoked are ends: the GPU is free of this holder. A move that is not
listed is refused; there is no way back into an earlier state. A record begins as Proposed, or
as Confirmed where a pod runs on the GPU already: one whose record was lost (`adoption`), and one
that kubelet gave the GPU to by itself (`settlement`).
"""

from enum import StrEnum
from typing import Final


class HolderState(StrEnum):
    """Where one reservation of one GPU stands."""

    PROPOSED = "Proposed"
    CONFIRMED = "Confirmed"
    RELEASING = "Releasing"
    RELEASED = "Released"
    """The node showed that nothing of the pod is left, or is gone for good."""
    EXPIRED = "Expired"
    """The attempt came to nothing, and can no longer come to anything."""
    REVOKED = "Revoked"
    """The attempt was withdrawn: rolled back, or its pod runs elsewhere."""

    @property
    def is_end(self) -> bool:
        """Whether the GPU is free of this holder."""
        return self in ENDS


class Origin(StrEnum):
    """Who made the reservation."""

    GATE = "gate"
    """The webhook on bindings: the pod exists and is about to be bound."""
    ADMISSION = "admission"
    """The webhook on pods: the pod may not exist yet, and may never."""
    SETTLEMENT = "settlement"
    """Kubelet, which gave the GPU to a bound pod by its own choice."""


ENDS: Final = frozenset({HolderState.RELEASED, HolderState.EXPIRED, HolderState.REVOKED})

MOVES: Final = frozenset(
    {
        (HolderState.PROPOSED, HolderState.CONFIRMED),
        (HolderState.PROPOSED, HolderState.RELEASING),
        (HolderState.PROPOSED, HolderState.EXPIRED),
        (HolderState.PROPOSED, HolderState.REVOKED),
        (HolderState.CONFIRMED, HolderState.RELEASING),
        (HolderState.RELEASING, HolderState.RELEASED),
    }
)
"""Every move there is."""


class MoveRefusedError(ValueError):
    """A move that is not in `MOVES`: whoever asked for it decided on something old."""


def demand_move(state: HolderState, to: HolderState) -> None:
    """Raise MoveRefusedError unless a holder may go from `state` to `to`."""
    if (state, to) not in MOVES:
        raise MoveRefusedError(f"a reservation does not go from {state} to {to}")
