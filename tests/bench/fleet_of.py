"""A fleet of verified nodes in memory, as the registry holds it once its agents were accepted.

The evidence is made up, everything after it is real: class document, hashes, acceptance.
"""

from dataclasses import replace
from typing import Final

import msgspec

from controller.fleet.attestation_result import Accepted
from controller.fleet.registry import FleetRegistry
from controller.ledger.record import GpuRecord, Holder, HolderState, Origin, PodRef
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.clock import SystemClock
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.node_identity import identity_digest, node_identity
from sandbox.fleet.hardware import NodeHardware, fleet_hardware, reading_of
from tests.builders.ca import TRUST_DOMAIN
from tests.builders.evidence import CLUSTER, Scene

DAY_NS: Final = 86_400 * 1_000_000_000
RARE: Final = 100
"""One node in so many has the hash that the pod asks for."""
_GPUS: Final = 8


def node_name(number: int) -> str:
    """As cloud providers name nodes: long, with a common part."""
    place = f"ip-10-{number >> 8 & 255}-{number & 255}-7.gpu-pool.eu-north-2.compute"
    return f"{place}.internal-{number:05d}"


def holder_of(number: int, gpu: int) -> str:
    """UID of the pod that has one GPU of a node that is full."""
    return f"{number:08x}-51a7-4a7b-9f0e-{gpu:012x}"


def ledger_of(full: int) -> LedgerSnapshot:
    """What kubelet has given on the first `full` nodes: every GPU to a pod of its own."""
    return LedgerSnapshot.of(
        Entry(_given(number, gpu), "1") for number in range(full) for gpu in range(_GPUS)
    )


def registry_of(nodes: int) -> tuple[FleetRegistry, str, str]:
    """The registry, the hash of one node in `RARE`, and the hash of the others."""
    registry, clock = FleetRegistry(), SystemClock()
    rare, usual = _samples()
    for number in range(nodes):
        sample = usual if number % RARE else rare
        accepted = _for_node(sample, number, clock.boottime_ns())
        registry.accept(accepted, now_ns=clock.boottime_ns(), wall_ns=clock.wall_ns())
    return registry, rare.attestation_hash, usual.attestation_hash


def _given(number: int, gpu: int) -> GpuRecord:
    uuid, uid = _uuid(number, gpu), holder_of(number, gpu)
    holder = Holder(
        f"v1.bench.{uid}",
        PodRef("team-b", f"serve-{number}-{gpu}", uid, "owner"),
        (uuid,),
        Origin.KUBELET,
        "0123456789abcdef",
        HolderState.CONFIRMED,
        restored=True,
    )
    return GpuRecord(uuid, node_name(number), (holder,))


def _uuid(number: int, gpu: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-{gpu:012x}"


def _samples() -> tuple[Accepted, Accepted]:
    """An eight-GPU node through the whole Verifier, with two drivers."""
    hardware = next(x for x in fleet_hardware(1, 50) if len(x.scenario.gpus) == _GPUS)
    new = hardware.upgraded()
    return _verified(new), _verified(hardware)


def _verified(hardware: NodeHardware) -> Accepted:
    inventory = reading_of(hardware.scenario, hardware.host).inventory
    return Scene(evidence={"inventory": inventory}).accepted()


def _for_node(sample: Accepted, number: int, now_ns: int) -> Accepted:
    """The same hardware with this node's name, UUIDs and serials."""
    name = node_name(number)
    inventory = msgspec.structs.replace(
        sample.evidence.inventory,
        gpus=tuple(
            msgspec.structs.replace(
                gpu,
                uuid=_uuid(number, gpu.index),
                serial=f"165{number:08d}{gpu.index}",
            )
            for gpu in sample.evidence.inventory.gpus
        ),
    )
    identity = node_identity(inventory, trust_domain=TRUST_DOMAIN, cluster=CLUSTER, node_name=name)
    return replace(
        sample,
        node=name,
        evidence=msgspec.structs.replace(sample.evidence, inventory=inventory),
        identity_digest=identity_digest(identity),
        identity_document=canonical_json(identity),
        challenge_issued_ns=now_ns,
        fresh_until_ns=now_ns + DAY_NS,
    )
