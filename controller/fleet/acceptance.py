"""Turns accepted evidence into what the rest of the product reads: `Acceptance` with GPU views.

A lost GPU keeps its place in PCI bus order and its last known facts, so that indices in
scheduling maps do not shift when a card falls off the bus. Judges nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from controller.fleet.sharing import shared
from controller.fleet.view import Acceptance, GpuView
from controller.verifier.result import Accepted
from gpuwarden.evidence.model import (
    WANT_PODS,
    Evidence,
    EvidenceWithPods,
    Gpu,
    GpuProcess,
    LostGpu,
)
from gpuwarden.evidence.node_identity import serial

Use = TypeVar("Use", bound=tuple[Any, ...])

_MIB_SHIFT = 20
_NO_PROCESSES: Mapping[str, int] = MappingProxyType({})


def acceptance_of(
    accepted: Accepted, before: Acceptance | None, *, accepted_wall_ns: int
) -> Acceptance:
    """The new acceptance of a node whose last one is `before`."""
    inventory = accepted.evidence.inventory
    hello = accepted.stream.hello
    if before is not None and _unchanged(accepted, before):
        gpus = before.gpus
    else:
        last = {x.uuid: x for x in before.gpus} if before else {}
        gpus = _in_bus_order(inventory.gpus, accepted.lost, last)
    return Acceptance(
        attestation_hash=shared(accepted.attestation_hash),
        level=accepted.level,
        host=inventory.host,
        gpus=gpus,
        evidence_digest=accepted.evidence_digest,
        identity_digest=accepted.identity_digest,
        identity_document=accepted.identity_document,
        class_document=shared(accepted.class_document),
        instance_id=hello.instance_id,
        boot_id=hello.boot_id,
        agent_version=shared(hello.agent_version),
        challenge_issued_ns=accepted.challenge_issued_ns,
        fresh_until_ns=accepted.fresh_until_ns,
        accepted_wall_ns=accepted_wall_ns,
        warnings=accepted.warnings,
        processes_by_gpu=_processes(accepted.evidence.processes or ()),
        allocations=_kept(before.allocations if before else None, accepted.evidence.allocations),
        processes=_kept(before.processes if before else None, accepted.evidence.processes),
        pods=_pods(accepted.evidence),
        pods_unread=any(x.fact == WANT_PODS for x in accepted.evidence.failed_reads),
        inventory=inventory,
    )


def _pods(evidence: Evidence) -> tuple[str, ...] | None:
    return evidence.pods if isinstance(evidence, EvidenceWithPods) else None


def _unchanged(accepted: Accepted, before: Acceptance) -> bool:
    """Whether the GPUs are those of before, none of them lost or in bad news."""
    same = accepted.evidence.inventory is before.inventory and not accepted.lost
    return same and all(x.lost is None and x.unhealthy is None for x in before.gpus)


def _in_bus_order(
    gpus: Iterable[Gpu], lost: Iterable[LostGpu], last: Mapping[str, GpuView]
) -> tuple[GpuView, ...]:
    """Position is the index; a GPU whose bus id nobody knows comes last."""
    found: list[tuple[str, Gpu | LostGpu]] = [(x.pci_bus_id, x) for x in gpus]
    found += [(_last_bus_id(x, last), x) for x in lost]
    found.sort(key=lambda x: (not x[0], x[0].lower(), x[1].uuid))
    return tuple(
        _view(position, card)
        if isinstance(card, Gpu)
        else _lost_view(position, bus_id, card, last.get(card.uuid))
        for position, (bus_id, card) in enumerate(found)
    )


def _last_bus_id(lost: LostGpu, last: Mapping[str, GpuView]) -> str:
    known = last.get(lost.uuid)
    return lost.pci_bus_id or (known.pci_bus_id if known else "")


def _view(position: int, gpu: Gpu) -> GpuView:
    return GpuView(
        index=position,
        uuid=gpu.uuid,
        serial=serial(gpu.serial),
        board_part_number=shared(gpu.board_part_number),
        product=shared(gpu.product),
        pci_bus_id=shared(gpu.pci_bus_id),
        pci=shared(gpu.pci),
        subsystem=shared(gpu.subsystem),
        vbios=shared(gpu.vbios),
        gsp=shared(gpu.gsp),
        memory_mib=_mebibytes(gpu.memory_bytes),
        ecc=gpu.ecc,
        mig=gpu.mig,
        mig_devices=gpu.mig_devices,
        virt=shared(gpu.virt),
        compute_capability=shared(gpu.compute_capability),
        architecture=shared(gpu.architecture),
        compute_mode=shared(gpu.compute_mode),
        persistence_mode=gpu.persistence_mode,
        nvlinks=shared(gpu.nvlinks),
        fabric_kind=shared(gpu.fabric.kind) if gpu.fabric else None,
        chassis_serial=shared(gpu.chassis_serial),
        module_id=gpu.module_id,
    )


def _lost_view(position: int, bus_id: str, lost: LostGpu, known: GpuView | None) -> GpuView:
    if known is not None:
        return replace(known, index=position, pci_bus_id=bus_id, lost=lost, unhealthy=None)
    return GpuView(
        index=position,
        uuid=lost.uuid,
        serial=None,
        board_part_number=None,
        product=None,
        pci_bus_id=bus_id,
        pci=None,
        subsystem=None,
        vbios=None,
        gsp=None,
        memory_mib=None,
        ecc=None,
        mig=None,
        mig_devices=(),
        virt=None,
        compute_capability=None,
        architecture=None,
        compute_mode=None,
        persistence_mode=None,
        nvlinks=(),
        fabric_kind=None,
        chassis_serial=None,
        module_id=None,
        lost=lost,
    )


def _kept(before: Use | None, now: Use | None) -> Use | None:
    """The old object where nothing has changed: a fleet holds each account once, not per round."""
    return before if before == now else now


def _processes(processes: tuple[GpuProcess, ...]) -> Mapping[str, int]:
    return MappingProxyType(dict(Counter(x.gpu for x in processes))) if processes else _NO_PROCESSES


def _mebibytes(count: str | None) -> int | None:
    """As in the class document: 0 (unified memory) is no such fact."""
    return (int(count) >> _MIB_SHIFT) or None if count is not None else None
