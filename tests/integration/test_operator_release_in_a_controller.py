"""A whole controller: a GPU whose node fell silent is released by command, and given away again."""

import asyncio
import json
import sys
from typing import Any

from gpuwarden.evidence.model import GpuProcess
from tests.fakes.cluster import FakeCluster, LiveCluster, answering
from tests.fakes.eventually import eventually

TIMES = {"attestation__challengeTtl": "1s", "attestation__lease": "3s"}


class Shell:
    """The command line against a controller's socket, in a process of its own."""

    def __init__(self, here: LiveCluster) -> None:
        self._socket = f"unix:{here.controller.addresses.local}"

    async def release(self, gpu: str, *options: str) -> tuple[int, str]:
        """Exit code, and what was printed."""
        whose = ("--pod", "team-a/train-0", "--reason", "the rack burnt down", "--yes")
        words = ("reservation", "release", gpu, *whose, "--server", self._socket, *options)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gpuwarden.cli",
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        written, _ = await process.communicate()
        return process.returncode or 0, written.decode()


async def test_a_silent_node_s_gpu_is_released_by_command_and_given_away_again(
    cluster: FakeCluster,
) -> None:
    async with cluster.live(**TIMES) as here:
        uid = here.create("train-0")["metadata"]["uid"]
        given = await here.bound("train-0")
        await here.state_of(given, "Confirmed")
        shell = Shell(here)
        code, text = await shell.release(given)
        assert "RESERVATION_IN_FORCE: it is Confirmed" in text
        assert code == 1
        here.agent.processes = (GpuProcess(given, 7, uid),)
        await here.agent.some_rounds()
        cluster.api.delete("pods", "team-a/train-0")
        await here.state_of(given, "Releasing")
        code, text = await shell.release(given)
        assert f"RESERVATION_IN_USE: node-1 shows a process of the pod on {given}" in text
        assert code == 1
        here.agent.silent = True

        async def released() -> str | None:
            code, text = await shell.release(given, "-o", "json", "--as-recorded-by", "ann")
            return text if code == 0 else None

        text = await eventually(released, "the lease is over, and the node spoken for")
        assert json.loads(text)["already"] is False
        await here.state_of(given, None)
        assert (await shell.release(given))[0] == 0
        records = here.controller.records()
        done = [x for x in records if x["kind"] == "reservation.released"]
        assert [(x["actor"].split()[0], x["refs"]["cause"]) for x in done] == [
            ("local", "an operator said so: the rack burnt down")
        ]
        orders: list[Any] = [x for x in records if x["kind"] == "reservation.operator"]
        assert {x["decision"] for x in orders} == {"refused", "released"}
        names = [here.create(f"next-{n}")["metadata"]["name"] for n in range(3)]
        async with here.controller.client() as again, answering(again):
            assert given in [await here.bound(name) for name in names]
