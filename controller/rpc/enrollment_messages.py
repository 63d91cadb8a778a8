"""Pins, denial and candidate of a node as protobuf messages. Pure; nothing is decided here."""

from collections.abc import Iterable

from controller.fleet.enrollment import Denial, PinnedGpu
from controller.fleet.operator_decisions import PinChange, Shown, pin_changes
from controller.rpc.fleet_messages import rfc3339
from gpuwarden.wire.v1 import fleet_pb2 as pb


def enrollment_message(shown: Shown) -> pb.Enrollment:
    """Everything that an operator judges by."""
    record, candidate = shown.record, shown.candidate
    message = pb.Enrollment(
        gpus=[_gpu(pin) for pin in record.gpus],
        node_uid=record.node_uid or "",
        spire_agent=record.spire_agent or "",
        version=shown.version,
    )
    if shown.denial is not None:
        message.denial.CopyFrom(_denial(shown.denial))
    if candidate is not None:
        message.candidate.CopyFrom(
            pb.Candidate(
                code=candidate.code,
                evidence_digest=candidate.evidence_digest,
                changes=change_messages(pin_changes(shown)),
            )
        )
    return message


def change_messages(changes: Iterable[PinChange]) -> list[pb.PinChange]:
    """The difference between pins and candidate, line by line."""
    return [
        pb.PinChange(change=x.change.value, subject=x.subject, pinned=x.pinned, offered=x.offered)
        for x in changes
    ]


def _gpu(pin: PinnedGpu) -> pb.PinnedGpu:
    return pb.PinnedGpu(
        uuid=pin.uuid,
        serial=pin.serial or "",
        identity_key=pin.identity_key or "",
        pci_bus_id=pin.pci_bus_id or "",
        enrolled=pin.enrolled,
    )


def _denial(denial: Denial) -> pb.Denial:
    return pb.Denial(
        code=denial.code, reason=denial.reason, actor=denial.actor, at=rfc3339(denial.wall_ns)
    )
