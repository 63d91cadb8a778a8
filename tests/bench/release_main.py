"""Pods end in a whole controller in this process: how long until their GPUs are offered again.

Beside the controller run the real agent's session and a stand-in for the API server. Run as a
child of `release_rows`.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Final

from gpuwarden.evidence.model import GpuProcess
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.fakes.api_server import FakeApiServer
from tests.fakes.attesting_agent import AttestingAgent, slow_rounds
from tests.fakes.cluster import FakeCluster, LiveCluster
from tests.fakes.running_controller import TD

GPUS: Final = 8
RUN_S: Final = 3.0
_LOOK_S: Final = 0.005
_RETRY_S: Final = 0.2
"""Between two tries to bind the pods that wait."""


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--ends", type=int, required=True)
    parser.add_argument("--pods", type=int, required=True)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    found = asyncio.run(_measured(asked.folder, asked.ends, asked.pods))
    sys.stdout.write(json.dumps({"event": "report", **found}) + "\n")
    sys.stdout.flush()


async def _measured(folder: Path, ends: int, pods: int) -> dict[str, object]:
    with InsecureWorkloadApi(folder, TD) as workload_api:
        async with FakeApiServer(folder) as server:
            agent = AttestingAgent(GPUS)
            async with slow_rounds(FakeCluster(folder, server, workload_api), agent) as here:
                node = _Node(here, agent)
                released = [await node.end_of_one(f"one-{number}") for number in range(ends)]
                return {"released": released, "wave": await node.wave(pods)}


class _Node:
    """The node's pods, as agent and API server see them."""

    def __init__(self, here: LiveCluster, agent: AttestingAgent) -> None:
        self._here = here
        self._agent = agent
        self._running: dict[str, GpuProcess] = {}

    async def end_of_one(self, name: str) -> float:
        """A pod starts and ends; seconds from its end until its GPU has no reservation."""
        uid = self._here.create(name)["metadata"]["uid"]
        gpu = await self._here.bound(name)
        self._run(uid, gpu)
        await self._here.state_of(gpu, "Confirmed")
        begin = time.perf_counter()
        self._end(name, uid)
        while gpu.lower() in self._here.api.objects.all("gpureservations"):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)  # measured from the outside, as a scheduler sees it
        return time.perf_counter() - begin

    async def wave(self, pods: int) -> float:
        """Many pods want the GPUs; seconds until all have run."""
        names = [f"wave-{number}" for number in range(pods)]
        for name in names:
            self._here.create(name)
        begin = time.perf_counter()
        async with asyncio.TaskGroup() as runs:
            for name in names:
                while not (await self._here.bind(name))["allowed"]:  # noqa: ASYNC110 - a refusal
                    await asyncio.sleep(_RETRY_S)
                runs.create_task(self._ran(name))
        return time.perf_counter() - begin

    async def _ran(self, name: str) -> None:
        found = self._here.api.objects.get("pods", f"team-a/{name}")
        assigned = found["metadata"]["annotations"]["gpuwarden.dev/gpu-uuids-assigned"]
        uid = found["metadata"]["uid"]
        self._run(uid, assigned)
        await asyncio.sleep(RUN_S)
        self._end(name, uid)

    def _run(self, uid: str, gpu: str) -> None:
        self._running[uid] = GpuProcess(gpu, 1000 + len(self._running), uid)
        self._show()

    def _end(self, name: str, uid: str) -> None:
        del self._running[uid]
        self._show()
        found = self._here.api.objects.get("pods", f"team-a/{name}")
        self._here.api.change("pods", found | {"status": {"phase": "Succeeded"}})

    def _show(self) -> None:
        self._agent.processes = tuple(self._running.values())
        self._agent.pods = tuple(sorted(self._running))


if __name__ == "__main__":
    main()
