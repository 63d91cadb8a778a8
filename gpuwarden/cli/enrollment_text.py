"""Pins, denial and candidate of a node for people. Pure: messages in, text out, all escaped."""

from typing import Final

from gpuwarden.cli.terminal import Column, facts, shown, table
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import fleet_pb2 as pb

_KEPT: Final = "kept"
_WAITING: Final = "Waits for an operator:"
_LOST: Final = "Lost; if that is for good, `node accept` drops it from the pins:"

CHANGES: Final[tuple[Column[pb.PinChange], ...]] = (
    Column("CHANGE", lambda x: x.change),
    Column("SUBJECT", lambda x: x.subject),
    Column("PINNED", lambda x: x.pinned),
    Column("OFFERED", lambda x: x.offered),
)


def enrollment_text(enrollment: pb.Enrollment) -> str:
    """What is pinned, whether and why the node is denied, and what it shows instead."""
    parts = [facts(_facts(enrollment))]
    if enrollment.HasField("candidate"):
        parts.append(changes_text(enrollment.candidate))
    return "\n".join(parts)


def changes_text(candidate: pb.Candidate) -> str:
    """What accepting would change, under a heading; what stays is counted."""
    heading = _LOST if candidate.code == ReasonCode.GPU_LOST else _WAITING
    changing = [x for x in candidate.changes if x.change != _KEPT]
    kept = len(candidate.changes) - len(changing)
    lines = table(CHANGES, changing) if changing else ""
    evidence = shown(candidate.evidence_digest[:16])
    return f"{heading}\n{lines}{kept} kept, shown by evidence {evidence}\n"


def _facts(enrollment: pb.Enrollment) -> tuple[tuple[str, str], ...]:
    denial = enrollment.denial
    denied = f"{denial.code} by {_who(denial.actor)} at {denial.at}: {denial.reason}"
    return (
        ("Pinned", _pins(enrollment)),
        ("Pinned node UID", enrollment.node_uid),
        ("Pinned SPIRE agent", enrollment.spire_agent),
        ("Denied", denied if enrollment.HasField("denial") else ""),
    )


def _pins(enrollment: pb.Enrollment) -> str:
    if not enrollment.gpus:
        return "nothing yet"
    enrolled = sum(x.enrolled for x in enrollment.gpus)
    return f"{len(enrollment.gpus)} GPUs, {enrolled} of them by an operator"


def _who(actor: str) -> str:
    return "the controller" if actor == "controller" else actor
