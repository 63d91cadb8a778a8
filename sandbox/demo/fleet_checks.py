"""Checks of what the fleet shows: every GPU by UUID and serial, hashes anybody can recompute."""

import hashlib
import json
from typing import Any

from gpuwarden.wire.v1 import fleet_pb2 as pb
from sandbox.demo.check import Check, demand
from sandbox.demo.stage import Stage
from sandbox.laptop import has_real_nvml
from sandbox.nodes import HOPPER, LEGACY, REAL

_CLASS_TAG = b"gpuwarden.dev/class/v1\n"


def eligible(node: pb.Node) -> bool:
    """Whether the node may be chosen."""
    return node.state == "eligible"


async def inventory(stage: Stage) -> str:
    """Every GPU of the scenarios is listed with exactly its UUID and serial."""
    for name in stage.nodes:
        node = await stage.until(name, eligible, timeout_s=20)
        demand(eligible(node), f"{name} is {node.state} ({node.code} {node.detail})")
    status, output = await stage.cli("gpus", "--server", stage.laptop.server, "-o", "json")
    demand(status == 0, f"`gpuwarden gpus` ended with {status}: {output[:300]}")
    seen = {
        (gpu["node"], gpu["uuid"], gpu.get("serial", ""))
        for gpu in json.loads(output)["gpus"]
        if gpu["node"] in stage.nodes
    }
    expected = {
        (name, gpu.uuid, gpu.serial or "")
        for name, node in stage.nodes.items()
        for gpu in node.scenario.gpus
    }
    demand(seen == expected, f"GPUs differ from the hardware: {sorted(seen ^ expected)[:2]}")
    real = ", and this machine's own" if await _real_joined(stage) else ""
    return f"{len(stage.nodes)} nodes verified, {len(seen)} GPUs by UUID and serial{real}"


async def _real_joined(stage: Stage) -> bool:
    if not has_real_nvml():
        return False
    node = await stage.until(REAL, eligible, timeout_s=20)
    demand(eligible(node), f"{REAL} is {node.state} ({node.code} {node.detail})")
    return True


async def class_hash(stage: Stage) -> str:
    """A hash is SHA-256 over a document that can be read; another driver is another class."""
    nodes = {name: await stage.node(name) for name in (HOPPER, LEGACY)}
    documents = {}
    for name, node in nodes.items():
        document = await stage.document(node.attestation_hash)
        recomputed = f"v1:sha256:{hashlib.sha256(_CLASS_TAG + document).hexdigest()}"
        demand(recomputed == node.attestation_hash, f"{name}: {node.attestation_hash} is not it")
        documents[name] = json.loads(document)
    drivers = {_without_driver(document) for document in documents.values()}
    demand(len(drivers) == len(documents), f"both classes say driver {drivers}")
    demand(documents[HOPPER] == documents[LEGACY], "the classes differ in more than the driver")
    return f"{nodes[HOPPER].attestation_hash[:23]}… recomputed; {LEGACY} differs in its driver only"


def _without_driver(document: dict[str, Any]) -> str:
    """Take the driver out of a class document, and the GSP firmware that comes with it."""
    for gpu in document["gpus"]:
        del gpu["gsp"]
    return str(document["platform"].pop("driver"))


CHECKS = (
    Check("inventory", "three agents prove their GPUs", inventory),
    Check("class-hash", "a class hash can be recomputed by anybody", class_hash),
)
