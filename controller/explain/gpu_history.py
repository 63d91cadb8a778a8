"""Where a GPU was and who had it, in rows of the HTTP API: the last of both, newest first. Pure."""

from typing import Final

import msgspec

from gpuwarden.audit import gpu_history
from gpuwarden.audit.gpu_history import Hold, Stay

MOST: Final = 200
"""Places, and holdings, of one history: the last ones."""


class Place(msgspec.Struct, frozen=True, rename="kebab"):
    """A slot of a node in which accepted evidence has shown the GPU."""

    node: str
    index: int | None
    """As NVML counts the node's GPUs; null where no evidence of then is kept."""
    since: str
    until: str
    """When evidence of the node no longer showed it, or another node's did; else empty."""
    evidence_digest: str
    """Of the first such evidence."""
    record: int
    """Its number in the log."""


class Holding(msgspec.Struct, frozen=True, rename="kebab"):
    """A pod that had the GPU or one of its MIG devices."""

    namespace: str
    pod: str
    """Empty where the pod was never born."""
    uid: str
    gpu: str
    """The GPU, or the MIG device."""
    node: str
    reservation: str
    since: str
    until: str
    """Empty while it has it."""
    ended_as: str
    """released, expired, revoked or ended; else empty."""
    record: int
    """Number of the first record of it."""


class GpuHistory(msgspec.Struct, frozen=True, rename="kebab"):
    """Both, newest first."""

    places: list[Place]
    holdings: list[Holding]
    records_since: str
    """Of the oldest record that was read; empty where there is none."""


def history_rows(history: gpu_history.GpuHistory) -> GpuHistory:
    """The history of one GPU, by one log."""
    return GpuHistory(
        [_place(x) for x in history.stays[: -MOST - 1 : -1]],
        [_holding(x) for x in history.holds[: -MOST - 1 : -1]],
        history.records_since,
    )


def _place(stay: Stay) -> Place:
    return Place(stay.node, stay.index, stay.since, stay.until or "", stay.evidence, stay.record)


def _holding(hold: Hold) -> Holding:
    return Holding(
        hold.namespace,
        hold.pod,
        hold.uid,
        hold.gpu,
        hold.node,
        hold.reservation,
        hold.since,
        hold.until or "",
        "" if hold.until is None else hold.state,
        hold.record,
    )
