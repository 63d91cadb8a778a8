"""What tables of reservations show. Pure: protobuf messages in, columns out."""

from typing import Final

from gpuwarden.cli.fleet_columns import joined
from gpuwarden.cli.terminal import Column
from gpuwarden.wire.v1 import placement_pb2 as pb

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60))
_ENOUGH: Final = 2
"""Of a unit, before it is used: 90 s are 90s, 120 s are 2m."""


def age(seconds: int) -> str:
    """As kubectl writes it, in one unit; empty where it is not known."""
    for unit, size in _UNITS:
        if seconds >= _ENOUGH * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s" if seconds else ""


def gpu_text(gpu: pb.ReservedGpu, state: str) -> str:
    """A GPU, and what is special about it."""
    notes = []
    if gpu.state != state:
        notes.append(gpu.state or "no record")
    if gpu.holders > 1:
        notes.append(f"{gpu.holders} holders")
    return f"{gpu.uuid}({', '.join(notes)})" if notes else gpu.uuid


RESERVATIONS: Final[tuple[Column[pb.Reservation], ...]] = (
    Column("NAMESPACE", lambda x: x.namespace),
    Column("POD", lambda x: x.pod),
    Column("STATE", lambda x: x.state),
    Column("NODE", lambda x: x.node),
    Column("GPUS", lambda x: joined(gpu_text(one, x.state) for one in x.gpus)),
    Column("ORIGIN", lambda x: x.origin),
    Column("SHARED", lambda x: x.share_group),
    Column("AGE", lambda x: age(x.age_s)),
    Column("ADOPTED", lambda x: "yes" if x.adopted else "", wide=True),
    Column("POD-UID", lambda x: x.uid, wide=True),
    Column("RESERVATION", lambda x: x.id, wide=True),
)
