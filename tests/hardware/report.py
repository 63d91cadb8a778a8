"""What our agent reads on this machine, how long that takes, and what an idle agent costs.

Values for a person to compare; nothing here is a threshold. Serials and UUIDs are whole.
"""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from agent.claims.host import read_host
from agent.claims.pods import ProcessPods
from agent.gpu.source import NvmlInventorySource
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.class_document import (
    CLASS_FACTS,
    attestation_hash,
    class_document,
    unread_facts,
)
from gpuwarden.evidence.node_identity import IDENTITY_FACTS, identity_digest, node_identity
from sandbox.demo.checks import eligible
from sandbox.demo.stage import Stage
from sandbox.fleet.tally import cpu_seconds, rss_mib
from sandbox.laptop import Laptop, Pace
from sandbox.nodes import CLUSTER, REAL, TRUST_DOMAIN
from tests.hardware.smi import ask, differences

READINGS: Final = 20
PRODUCTION: Final = Pace(interval_s=25.0, challenge_ttl_s=15.0, lease_s=90.0)
_SETTLE_S: Final = 2.0


async def read() -> dict[str, Any]:
    """Inventory, documents, failed reads, disagreements with nvidia-smi, and times."""
    source = NvmlInventorySource(read_host(), ProcessPods())
    took, readings = [], []
    try:
        for _ in range(READINGS):
            begin = time.perf_counter()
            readings.append(await source.read())
            took.append(1000 * (time.perf_counter() - begin))
    finally:
        await source.aclose()
    last = readings[-1]
    document = class_document(last.inventory, level="L0", trust_domain=TRUST_DOMAIN, attestor=None)
    identity = node_identity(
        last.inventory, trust_domain=TRUST_DOMAIN, cluster=CLUSTER, node_name=REAL
    )
    return {
        "state": last.state,
        "inventory": last.inventory,
        "failed_reads": last.failed_reads,
        "failed_reads_that_matter": unread_facts(last.failed_reads, CLASS_FACTS | IDENTITY_FACTS),
        "all_readings_equal": all(x.inventory == last.inventory for x in readings),
        "inventory_bytes": len(canonical_json(last.inventory)),
        "class": document,
        "class_hash": attestation_hash(document),
        "identity": identity,
        "identity_digest": identity_digest(identity),
        "nvidia_smi_disagrees": differences(last.inventory, await asyncio.to_thread(ask)),
        "first_reading_ms": round(took[0], 2),
        "median_reading_ms": round(statistics.median(took[1:]), 2),
        "slowest_later_reading_ms": round(max(took[1:]), 2),
    }


async def idle(seconds: float) -> dict[str, Any]:
    """The agent as a process on a controller of this machine, at production's pace."""
    with tempfile.TemporaryDirectory(prefix="gpuwarden-") as folder:
        laptop = Laptop(Path(folder), PRODUCTION)
        try:
            await laptop.start_controller((REAL,))
            await laptop.start_real_agent()
            stage = Stage(laptop)
            try:
                node = await stage.until(REAL, eligible, timeout_s=30)
                shown = [
                    (await stage.cli(*what, "--server", laptop.server))[1]
                    for what in (("nodes",), ("gpus",), ("explain", "node", REAL))
                ]
            finally:
                await stage.close()
            pid = laptop.programs[REAL].pid
            await asyncio.sleep(_SETTLE_S)
            before = cpu_seconds(pid)
            await asyncio.sleep(seconds)
            return {
                "node": f"{node.state} {node.code}".strip(),
                "shown": shown,
                "resident_mib": round(rss_mib(pid), 1),
                "threads": _threads(pid),
                "percent_of_a_core": round(100 * (cpu_seconds(pid) - before) / seconds, 3),
                "log": laptop.programs[REAL].tail(30).splitlines(),
            }
        finally:
            await laptop.close()


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def written(path: Path, seconds: float) -> dict[str, Any]:
    """Take both and write them as JSON to `path`."""
    found = {"read": asyncio.run(read()), "idle": asyncio.run(idle(seconds))}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    return found
