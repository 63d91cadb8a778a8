"""Messages of FleetService as a controller with a small fleet would send them."""

from typing import Any

from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.class_document import attestation_hash, class_document
from gpuwarden.evidence.model import Inventory
from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.builders.inventory import gpu_uuid, inventory


def node_message(name: str = "gpu-a1", **changes: Any) -> pb.Node:
    fields: dict[str, Any] = {
        "name": name,
        "state": "eligible",
        "level": "L0",
        "attestation_hash": "v1:sha256:" + "ab" * 32,
        "fresh_for_ms": 62_900,
        "driver": "570.86.10",
        "cuda": "12.8",
        "arch": "x86_64",
        "gpu_count": 8,
        "products": ["NVIDIA H100 80GB HBM3"],
        "evidence_digest": "cd" * 32,
        "instance_id": "a1" * 16,
        "agent_version": "0.1.0",
        "accepted_at": "2026-11-27T20:00:00.000Z",
        "mode": "env",
    }
    return pb.Node(**(fields | changes))


def gpu_message(index: int = 0, **changes: Any) -> pb.Gpu:
    fields: dict[str, Any] = {
        "node": "gpu-a1",
        "index": index,
        "uuid": gpu_uuid(index + 1),
        "serial": f"16542230{index:05d}",
        "product": "NVIDIA H100 80GB HBM3",
        "pci_bus_id": f"00000000:{0x18 + index:02X}:00.0",
        "memory_mib": 81559,
        "mig": "off",
        "health": "ok",
    }
    return pb.Gpu(**(fields | changes))


def class_message(one: Inventory | None = None, **changes: Any) -> pb.Class:
    """The class of an inventory, with its real document and hash."""
    document = class_document(
        one or inventory(), level="L0", trust_domain="example.org", attestor=None
    )
    fields: dict[str, Any] = {
        "attestation_hash": attestation_hash(document),
        "level": "L0",
        "document": canonical_json(document).decode(),
        "nodes": ["gpu-a1"],
        "gpu_count": 8,
    }
    return pb.Class(**(fields | changes))
