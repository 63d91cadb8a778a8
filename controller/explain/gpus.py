"""Which GPUs of a node are free, and who has the others; for people. Pure; decides nothing."""

from collections.abc import Callable, Iterable
from typing import Final

from controller.fleet.view import NodeState
from controller.ledger.store import LedgerSnapshot
from gpuwarden.evidence.use_rules import device_uuid
from gpuwarden.wire.v1 import fleet_pb2 as pb

Holders = Callable[[str], Iterable[str]]
"""Pods that reservations give a GPU or MIG device to, as NAMESPACE/NAME."""

FREE: Final = "free"
_NAMELESS: Final = "-"


def holders_in(ledger: LedgerSnapshot) -> Holders:
    """By this snapshot."""

    def held(uuid: str) -> set[str]:
        entry = ledger.get(uuid)
        pods = () if entry is None else (x.pod for x in entry.record.holders)
        return {f"{pod.namespace}/{pod.name or _NAMELESS}" for pod in pods}

    return held


def nobody(_uuid: str) -> tuple[str, ...]:
    """Where nothing is reserved."""
    return ()


def add_states(gpus: Iterable[pb.Gpu], node: pb.Node, use: pb.GpuUse, of: Holders | None) -> None:
    """Fill in who has each GPU and its MIG devices; `of` is None where that is not known."""
    used = {x.gpu for x in use.processes}
    used |= {uuid for x in use.allocations if (uuid := device_uuid(x.device))}
    out = "" if node.state == NodeState.ELIGIBLE else "unavailable"
    for gpu in gpus:
        bad = "" if gpu.health == "ok" else gpu.health
        parts: tuple[pb.Gpu | pb.MigDevice, ...] = (gpu, *gpu.mig_devices)
        for part in parts:
            if of is not None:
                part.reserved_by.extend(sorted(of(part.uuid)))
            part.state = bad or out or _state(part, known=of is not None, used=part.uuid in used)
        if gpu.mig_devices and gpu.state in {FREE, "used"}:
            gpu.state = "split"


def _state(part: pb.Gpu | pb.MigDevice, *, known: bool, used: bool) -> str:
    if part.reserved_by:
        return "reserved"
    if used:
        return "used"
    return FREE if known else "unknown"
