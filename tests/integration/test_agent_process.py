"""The real program against a real Workload API, a stand-in NVML library, and TLS."""

import asyncio
import json
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from agent.app import ExitCode
from agent.state import FILE_NAME, decode_state
from gpuwarden.identity.server_credentials import server_credentials
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.svid import Svid
from sandbox.nvml.build import build
from sandbox.nvml.models import h100_sxm
from sandbox.nvml.scenario import VARIABLE, Faults, Scenario, write
from sandbox.program import Program
from sandbox.spiffe.workload import Fault
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.builders.attesting import AGENT, NODE
from tests.builders.ca import TRUST_DOMAIN
from tests.builders.challenges import CLUSTER, CONTROLLER
from tests.fakes.agent_ports import FakeSvids
from tests.fakes.fake_controller import FakeController

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = Scenario(cuda=12080, gpus=tuple(h100_sxm(number, NODE) for number in range(2)))
LIB_RM_VERSION_MISMATCH = 18


@dataclass
class World:
    """Everything around one agent process."""

    folder: Path
    workloads: InsecureWorkloadApi
    controller: FakeController
    port: int
    program: Program | None = None
    ops: str = ""
    listening: dict[str, Any] = field(default_factory=dict)

    def show(self, scenario: Scenario) -> None:
        write(self.folder / "scenario", scenario)

    async def start(self, **agent: Any) -> Program:
        config = {
            "apiVersion": "config.gpuwarden.dev/v1alpha1",
            "kind": "AgentConfig",
            "trustDomain": TRUST_DOMAIN,
            "cluster": CLUSTER,
            "workloadApi": f"unix://{self.folder}/node.sock",
            "agent": {
                "nodeName": NODE,
                "controllers": [f"127.0.0.1:{self.port}"],
                "stateDir": str(self.folder / "state"),
                **agent,
            },
            "listen": {"ops": "127.0.0.1:0"},
        }
        (self.folder / "agent.yaml").write_text(yaml.safe_dump(config))
        self.program = await Program.start(
            "agent",
            (sys.executable, "-m", "agent", "--config", str(self.folder / "agent.yaml")),
            environment={
                "PYTHONPATH": str(ROOT),
                "PATH": "/usr/bin:/bin",
                "LD_LIBRARY_PATH": str(build()),
                VARIABLE: str(self.folder / "scenario"),
            },
            log=self.folder / "agent.log",
        )
        self.listening = await self.program.event("agent.listening", timeout_s=20)
        self.ops = self.listening["ops"]
        return self.program

    async def get(self, path: str) -> tuple[int, str]:
        host, _, port = self.ops.rpartition(":")
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET {path} HTTP/1.1\r\nHost: agent\r\n\r\n".encode())
            answer = (await reader.read()).decode()
            writer.close()
        head, _, body = answer.partition("\r\n\r\n")
        return int(head.split(" ")[1]), body

    async def ready(self) -> tuple[int, dict[str, Any]]:
        status, body = await self.get("/readyz")
        return status, json.loads(body)

    async def until_ready(self, status: int) -> dict[str, Any]:
        """The answer of /readyz, once it has this status."""
        async with asyncio.timeout(15):
            while True:
                now, body = await self.ready()
                if now == status:
                    return body
                await asyncio.sleep(0.02)

    async def end(self) -> int:
        assert self.program is not None
        async with asyncio.timeout(15):
            while self.program.returncode is None:  # noqa: ASYNC110 -- another process
                await asyncio.sleep(0.02)
        return self.program.returncode

    def log(self) -> list[dict[str, Any]]:
        lines = (self.folder / "agent.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.log() if entry["event"] == event]


def controller_svid(workloads: InsecureWorkloadApi, generation: int = 1) -> Svid:
    issued = workloads.ca.issue(CONTROLLER, ttl=timedelta(hours=1))
    roots = tuple(root.certificate for root in workloads.roots)
    return Svid(parse_spiffe_id(CONTROLLER), issued.private_key, issued.chain, roots, generation)


@asynccontextmanager
async def listening(
    workloads: InsecureWorkloadApi, port: int = 0
) -> AsyncIterator[tuple[FakeController, int]]:
    svid = controller_svid(workloads)
    controller = FakeController(svid)
    credentials = server_credentials(FakeSvids(svid), lambda _: None)
    bound = await controller.start(f"127.0.0.1:{port}", credentials)
    try:
        yield controller, bound
    finally:
        await controller.stop()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with InsecureWorkloadApi(path, TRUST_DOMAIN) as workloads:
            workloads.add("node", AGENT)
            async with listening(workloads) as (controller, port):
                world = World(path, workloads, controller, port)
                world.show(SCENARIO)
                yield world
                if world.program is not None:
                    await world.program.stop()


async def test_from_start_to_sigterm(world: World) -> None:
    await world.start()
    body = await world.until_ready(200)
    [replica] = body["replicas"]
    assert (replica["state"], replica["code"], replica["level"]) == ("accepted", "ACCEPTED", "L0")
    [evidence] = world.controller.all_evidence
    assert [gpu.uuid for gpu in evidence.inventory.gpus] == [gpu.uuid for gpu in SCENARIO.gpus]
    assert evidence.failed_reads == ()
    assert await world.get("/healthz") == (200, "ok\n")
    status, metrics = await world.get("/metrics")
    assert status == 200
    assert 'gpuwarden_agent_verdicts_total{code="ACCEPTED"} 1.0' in metrics
    assert "gpuwarden_agent_accepted_controllers 1.0" in metrics
    assert "gpuwarden_agent_gpus 2.0" in metrics
    expires = re.search(r"^gpuwarden_svid_expires_seconds ([0-9.]+)$", metrics, re.MULTILINE)
    assert expires
    assert 3000 < float(expires[1]) <= 3600
    assert world.program is not None
    begun = time.monotonic()
    assert await world.program.stop() == ExitCode.STOPPED
    assert time.monotonic() - begun < 5
    assert world.controller.streams[0].ended
    state = decode_state((world.folder / "state" / FILE_NAME).read_bytes())
    assert state.instance_id == world.controller.streams[0].hello.instance_id
    assert [gpu.uuid for gpu in state.gpus] == [gpu.uuid for gpu in SCENARIO.gpus]
    assert [entry["event"] for entry in world.log()][-1] == "process.stopped"
    assert world.logged("stream.closed")[-1]["cause"] == "stopped"


async def test_rotation_opens_the_new_stream_before_the_old_one_ends(world: World) -> None:
    ended_when_new_was_accepted: list[bool] = []

    def judge(_evidence: object) -> dict[str, Any]:
        if len(world.controller.streams) == 2:
            ended_when_new_was_accepted.append(world.controller.streams[0].ended)
        return {}

    world.controller.judge = judge
    # Rotations are spread over an eighth of what is left of the SVID, at most 10 s.
    world.workloads.remove("node")
    world.workloads._ttl = timedelta(seconds=16)
    world.workloads.add("node", AGENT)
    await world.start()
    await world.until_ready(200)
    world.workloads.rotate("node")
    await world.controller.until(
        lambda: len(world.controller.streams) == 2 and world.controller.streams[0].ended, 20
    )
    old, new = world.controller.streams
    assert ended_when_new_was_accepted == [False]
    assert new.accepted
    assert old.hello.instance_id == new.hello.instance_id
    assert old.leaf != new.leaf
    assert (await world.ready())[0] == 200


async def test_a_controller_that_restarts_is_found_again(world: World) -> None:
    await world.start()
    await world.until_ready(200)
    await world.controller.stop()
    async with listening(world.workloads, world.port) as (again, _):
        await again.until(lambda: bool(again.all_evidence), 20)
        assert (await world.ready())[0] == 200
    assert world.logged("stream.closed")


async def test_a_workload_that_is_not_the_controller_gets_no_evidence(world: World) -> None:
    await world.start(controllerId=f"spiffe://{TRUST_DOMAIN}/gpuwarden/other")
    async with asyncio.timeout(15):
        while not world.logged("stream.closed"):  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.02)
    status, body = await world.ready()
    assert status == 503
    assert "wrong-identity" in body["reasons"][0]
    assert world.controller.streams == []


async def test_without_an_svid_it_waits_and_says_why(world: World) -> None:
    world.workloads.fault("node", Fault.DENIED)
    await world.start()
    status, body = await world.ready()
    assert status == 503
    assert body["reasons"][0].startswith("no SVID: ")
    assert (await world.get("/healthz"))[0] == 200
    world.workloads.fault("node", Fault.NONE)
    await world.until_ready(200)


async def test_a_call_that_never_returns_ends_the_process(world: World) -> None:
    await world.start(nvmlTimeout="100ms")
    await world.until_ready(200)
    world.controller.interval_ms = 100
    world.show(replace_faults(Faults(hang=("nvmlDeviceGetCount_v2", "nvmlDeviceGetUUID"))))
    await world.controller.challenge(world.controller.streams[0])
    assert await world.end() == ExitCode.NVML_STUCK
    assert world.logged("nvml.stuck")


async def test_a_driver_that_is_exchanged_ends_the_process(world: World) -> None:
    await world.start()
    await world.until_ready(200)
    world.show(replace_faults(Faults(rc={"nvmlSystemGetDriverVersion": LIB_RM_VERSION_MISMATCH})))
    await world.controller.challenge(world.controller.streams[0])
    assert await world.end() == ExitCode.DRIVER_RELOADED
    assert [news.kind for news in world.controller.all_news] == ["driver-reload"]


async def test_damaged_state_and_a_disk_that_takes_nothing_do_not_matter(world: World) -> None:
    (world.folder / "state").write_text("not a directory")
    await world.start()
    await world.until_ready(200)
    assert len(world.logged("state.lost")) >= 2


async def test_bad_settings_end_it_at_once(tmp_path: Path) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "agent",
        env={"PYTHONPATH": str(ROOT)},
        stderr=asyncio.subprocess.PIPE,
        cwd=tmp_path,
    )
    _, errors = await program.communicate()
    assert program.returncode == ExitCode.BAD_CONFIGURATION
    assert b"trustDomain" in errors


def replace_faults(faults: Faults) -> Scenario:
    scenario: Scenario = msgspec.structs.replace(SCENARIO, faults=faults)
    return scenario
