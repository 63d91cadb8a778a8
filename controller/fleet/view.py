"""The verified fleet as everybody else reads it: frozen snapshots, swapped as a whole.

Made only from accepted evidence. A reader (extender, gRPC, CLI, metrics) holds one snapshot for a
whole decision; `now` decides freshness, so an old snapshot cannot make a stale node pass.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from controller.fleet.attestation_result import Accepted
from controller.fleet.enrollment import Candidate
from controller.policy import Level, NodeMode
from gpuwarden.evidence.model import (
    WANT_PODS,
    Allocation,
    Evidence,
    EvidenceWithPods,
    Gpu,
    GpuProcess,
    Host,
    Inventory,
    LostGpu,
    MigDevice,
    NvLink,
)
from gpuwarden.evidence.node_identity import serial
from gpuwarden.reasons import Effect, ReasonCode

T = TypeVar("T")
Use = TypeVar("Use", bound=tuple[Any, ...])

_VALUES: Final = 4096
"""Shared values that are remembered; rare ones are forgotten again."""
_MIB_SHIFT: Final = 20
_NO_PROCESSES: Final[Mapping[str, int]] = MappingProxyType({})


class NodeState(StrEnum):
    """The state of a node at a given moment."""

    UNKNOWN = "unknown"
    """Known to the directory, or trying, but never accepted."""
    REFUSED = "refused"
    """Never accepted, last attempt refused."""
    ELIGIBLE = "eligible"
    STALE = "stale"
    """Accepted once, lease run out."""
    REVOKED = "revoked"
    """Refused with effect revoke after an acceptance."""
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class GpuView:
    """One physical GPU of accepted evidence. A lost one keeps its last facts, `lost` says so."""

    index: int
    uuid: str
    serial: str | None
    board_part_number: str | None
    product: str | None
    pci_bus_id: str
    pci: str | None
    subsystem: str | None
    vbios: str | None
    gsp: str | None
    memory_mib: int | None
    ecc: bool | None
    mig: bool | None
    mig_devices: tuple[MigDevice, ...]
    virt: str | None
    compute_capability: str | None
    architecture: str | None
    compute_mode: str | None
    persistence_mode: bool | None
    nvlinks: tuple[NvLink, ...]
    fabric_kind: str | None
    chassis_serial: str | None
    module_id: int | None
    lost: LostGpu | None = None
    unhealthy: str | None = None
    """A failure notice since the last evidence, or a fault that has not ended, for example `xid 48,
    until the GPU is reset`; not allocatable."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What the last accepted evidence of a node proved."""

    attestation_hash: str
    level: Level
    host: Host
    gpus: tuple[GpuView, ...]
    """In PCI bus order: position is the index that maps use."""
    evidence_digest: str
    identity_digest: str
    identity_document: bytes
    class_document: bytes
    instance_id: str
    boot_id: str
    agent_version: str
    challenge_issued_ns: int
    """Controller CLOCK_BOOTTIME of the challenge that this evidence answered."""
    fresh_until_ns: int
    """Controller CLOCK_BOOTTIME at which the lease ends."""
    accepted_wall_ns: int
    warnings: tuple[str, ...] = ()
    processes_by_gpu: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """UUID -> number of processes seen on it (in the last evidence)."""
    allocations: tuple[Allocation, ...] | None = None
    """Devices that kubelet gave to containers, as of the last evidence; None where not read."""
    processes: tuple[GpuProcess, ...] | None = None
    """Processes on GPUs with their pods, likewise."""
    pods: tuple[str, ...] | None = None
    """UIDs of pods of which a process runs, likewise; None where nothing was said of them."""
    pods_unread: bool = False
    """Whether the agent looked for them and could not."""
    inventory: Inventory | None = field(default=None, compare=False, repr=False)
    """Where `gpus` come from: the very object, to know it again. Not for reading."""

    def with_parts(self, gpu: str) -> tuple[str, ...]:
        """The GPU and its MIG devices: the driver names the whole one for their processes."""
        found = next((x for x in self.gpus if x.uuid == gpu), None)
        return (gpu, *(x.uuid for x in found.mig_devices)) if found is not None else (gpu,)


@dataclass(frozen=True, slots=True)
class PastRefusal:
    """A refusal, aggregated while the same code repeats."""

    wall_ns: int
    code: ReasonCode
    step: int
    effect: Effect
    detail: str
    count: int


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. `acceptance` survives a refusal, so that people see what was."""

    name: str
    acceptance: Acceptance | None
    blocked: PastRefusal | None
    """The refusal that revoked or quarantined it; None while nothing blocks."""
    refusals: tuple[PastRefusal, ...]
    """Newest first, bounded."""
    mode: NodeMode
    warnings: tuple[str, ...] = ()
    candidate: Candidate | None = None
    """What its last appraised evidence showed, where only the enrolled GPUs were against it."""

    def state(self, now_ns: int) -> NodeState:
        """The node's state at `now_ns` (controller CLOCK_BOOTTIME)."""
        if self.blocked is not None:
            if self.blocked.effect is Effect.QUARANTINE:
                return NodeState.QUARANTINED
            return NodeState.REVOKED if self.acceptance else NodeState.REFUSED
        if self.acceptance is None:
            return NodeState.REFUSED if self.refusals else NodeState.UNKNOWN
        if now_ns >= self.acceptance.fresh_until_ns:
            return NodeState.STALE
        return NodeState.ELIGIBLE


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """All nodes by name, and which nodes carry which class hash (whatever their freshness)."""

    nodes: Mapping[str, NodeView]
    nodes_by_hash: Mapping[str, frozenset[str]]
    version: int


EMPTY_FLEET = FleetSnapshot(MappingProxyType({}), MappingProxyType({}), 0)


# --- from accepted evidence


@lru_cache(_VALUES)
def shared(value: T) -> T:
    """The first of equal values, in place of the others: a fleet holds each fact once.

    Not for what differs between all nodes (UUIDs, serials).
    """
    return value


def compacted(inventory: Inventory) -> Inventory:
    """An equal inventory that shares with others what is large."""
    return msgspec.structs.replace(
        inventory,
        gpus=tuple(
            msgspec.structs.replace(
                gpu,
                nvlinks=shared(gpu.nvlinks),
                board_part_number=shared(gpu.board_part_number),
                product=shared(gpu.product),
                vbios=shared(gpu.vbios),
                fabric=shared(gpu.fabric),
            )
            for gpu in inventory.gpus
        ),
    )


def acceptance_of(
    accepted: Accepted, before: Acceptance | None, *, accepted_wall_ns: int
) -> Acceptance:
    """The new acceptance of a node whose last one is `before`.

    A lost GPU keeps its place in PCI bus order and its last known facts, so that indices in
    scheduling maps do not shift when a card falls off the bus.
    """
    inventory = accepted.evidence.inventory
    hello = accepted.stream.hello
    if before is not None and _unchanged(accepted, before):
        gpus = before.gpus
    else:
        last = {x.uuid: x for x in before.gpus} if before else {}
        gpus = with_faults(_in_bus_order(inventory.gpus, accepted.lost, last), accepted.unhealthy)
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


def with_faults(gpus: tuple[GpuView, ...], unhealthy: Mapping[str, str]) -> tuple[GpuView, ...]:
    """The GPUs, with the reason on each that is not to be given away."""
    if not unhealthy:
        return gpus
    return tuple(
        replace(x, unhealthy=unhealthy[x.uuid]) if x.uuid in unhealthy else x for x in gpus
    )


def _pods(evidence: Evidence) -> tuple[str, ...] | None:
    return evidence.pods if isinstance(evidence, EvidenceWithPods) else None


def _unchanged(accepted: Accepted, before: Acceptance) -> bool:
    """Whether the GPUs are those of before, none of them lost or in failure notices."""
    same = accepted.evidence.inventory is before.inventory and not accepted.lost
    return (
        same
        and not accepted.unhealthy
        and all(x.lost is None and x.unhealthy is None for x in before.gpus)
    )


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
