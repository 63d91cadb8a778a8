"""Nodes of the verified fleet for tests of whoever reads it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from controller.fleet.view import Acceptance, FleetSnapshot, GpuView, NodeView, PastRefusal
from controller.policy import Level, NodeMode
from gpuwarden.evidence.model import Host
from gpuwarden.reasons import EFFECT_OF, STEP_OF, ReasonCode

S = 1_000_000_000

HASH_A = "v1:sha256:" + "a" * 64
HASH_B = "v1:sha256:" + "b" * 64


def gpu_view(index: int = 0, **changes: Any) -> GpuView:
    facts: dict[str, Any] = {
        "index": index,
        "uuid": f"GPU-0000000{index}-0000-0000-0000-000000000000",
        "serial": f"165012345{index}",
        "board_part_number": "900-21010-0000-000",
        "product": "NVIDIA H100 80GB HBM3",
        "pci_bus_id": f"00000000:0{index}:00.0",
        "pci": "10de:2330",
        "subsystem": "10de:16c1",
        "vbios": "96.00.74.00.11",
        "gsp": "570.86.10",
        "memory_mib": 81559,
        "ecc": True,
        "mig": False,
        "mig_devices": (),
        "virt": "none",
        "compute_capability": "9.0",
        "architecture": "hopper",
        "compute_mode": "default",
        "persistence_mode": True,
        "nvlinks": (),
        "fabric_kind": "nvswitch",
        "chassis_serial": None,
        "module_id": None,
    }
    return GpuView(**(facts | changes))


def acceptance(**changes: Any) -> Acceptance:
    facts: dict[str, Any] = {
        "attestation_hash": HASH_A,
        "level": Level.L0,
        "host": Host(driver="570.86.10", cuda="12.8", cc="off", arch="x86_64", system_uuid="su"),
        "gpus": (gpu_view(0), gpu_view(1)),
        "evidence_digest": "e" * 64,
        "identity_digest": "i" * 64,
        "identity_document": b'{"node":{}}',
        "class_document": b'{"level":"L0"}',
        "instance_id": "1" * 32,
        "boot_id": "boot-1",
        "agent_version": "0.1.0",
        "challenge_issued_ns": 10 * S,
        "fresh_until_ns": 100 * S,
        "accepted_wall_ns": 1_700_000_000_123_000_000,
    }
    return Acceptance(**(facts | changes))


def past_refusal(code: ReasonCode, detail: str = "", count: int = 1) -> PastRefusal:
    return PastRefusal(
        1_700_000_000_000_000_000, code, STEP_OF[code], EFFECT_OF[code], detail, count
    )


def node_view(name: str = "gpu-1", **changes: Any) -> NodeView:
    facts: dict[str, Any] = {
        "name": name,
        "acceptance": acceptance(),
        "blocked": None,
        "refusals": (),
        "mode": NodeMode.ENV,
    }
    return NodeView(**(facts | changes))


def fleet_of(*nodes: NodeView) -> FleetSnapshot:
    by_hash: dict[str, frozenset[str]] = {}
    for node in nodes:
        if node.acceptance:
            key = node.acceptance.attestation_hash
            by_hash[key] = by_hash.get(key, frozenset()) | {node.name}
    names: Mapping[str, NodeView] = MappingProxyType({node.name: node for node in nodes})
    return FleetSnapshot(names, MappingProxyType(by_hash), 1)
