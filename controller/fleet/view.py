"""The verified fleet as everybody else reads it: frozen snapshots, swapped as a whole.

Made only from accepted evidence. Readers (extender, gRPC, CLI, metrics) hold one
snapshot for a whole decision; `now` decides freshness, so an old snapshot cannot
make a stale node pass. No IO, no clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from controller.fleet.enrollment import Candidate
from controller.policy import Level, NodeMode
from gpuwarden.evidence.model import (
    Allocation,
    GpuProcess,
    Host,
    Inventory,
    LostGpu,
    MigDevice,
    NvLink,
)
from gpuwarden.reasons import Effect, ReasonCode

_RANKS: Final = {level: rank for rank, level in enumerate(Level)}


class NodeState(StrEnum):
    """Where a node stands at a given moment."""

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
    """Bad news about this GPU since the last evidence, for example `xid 79`; not allocatable."""


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
    """What its last judged evidence showed, where only the pins stood against that."""

    def state(self, now_ns: int) -> NodeState:
        """Where the node stands at `now_ns` (controller CLOCK_BOOTTIME)."""
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
