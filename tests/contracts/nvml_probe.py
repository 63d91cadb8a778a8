"""One reading of this machine's NVML, whichever the loader finds, as JSON on standard output.

A program of its own, because a process can have only one NVML library.
"""

import asyncio
import sys
from typing import Any

import msgspec

from agent.claims.host import read_host
from agent.claims.pods import ProcessPods
from agent.gpu.source import NvmlInventorySource


async def main() -> dict[str, Any]:
    source = NvmlInventorySource(read_host(), ProcessPods())
    try:
        reading, again = await source.read(), await source.read()
    finally:
        await source.aclose()
    return {
        "state": reading.state,
        "inventory": reading.inventory,
        "again": again.inventory,
        "failed_reads": reading.failed_reads,
        "processes": reading.processes,
    }


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(main())))
