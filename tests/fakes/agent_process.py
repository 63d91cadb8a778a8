"""The agent as a program, with everything around it: Workload API, NVML, one fake controller."""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from gpuwarden.identity.server_credentials import server_credentials
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.svid import Svid
from sandbox.nvml.build import build
from sandbox.nvml.models import h100_sxm
from sandbox.nvml.scenario import VARIABLE, Scenario, write
from sandbox.program import Program
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.builders.attesting import AGENT, NODE
from tests.builders.ca import TRUST_DOMAIN
from tests.builders.challenges import CLUSTER, CONTROLLER
from tests.fakes.agent_ports import FakeSvids
from tests.fakes.fake_controller import FakeController
from tests.hang import HANG_S

ROOT = Path(__file__).resolve().parents[2]
SCENARIO = Scenario(cuda=12080, gpus=tuple(h100_sxm(number, NODE) for number in range(2)))


@dataclass
class AgentWorld:
    """Everything around one agent process."""

    folder: Path
    workloads: InsecureWorkloadApi
    controller: FakeController
    port: int
    program: Program | None = None
    ops: str = ""
    listening: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """What the agent's environment holds besides."""

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
                "kubeletSocket": "off",
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
                **self.environment,
            },
            log=self.folder / "agent.log",
        )
        self.listening = await self.program.event("agent.listening", timeout_s=HANG_S)
        self.ops = self.listening["ops"]
        return self.program

    async def get(self, path: str) -> tuple[int, str]:
        host, _, port = self.ops.rpartition(":")
        async with asyncio.timeout(HANG_S):
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
        async with asyncio.timeout(HANG_S):
            while True:
                now, body = await self.ready()
                if now == status:
                    return body
                await asyncio.sleep(0.02)

    async def end(self) -> int:
        assert self.program is not None
        async with asyncio.timeout(HANG_S):
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


@asynccontextmanager
async def agent_world() -> AsyncIterator[AgentWorld]:
    """A controller that listens and a workload with an SVID; the test starts the agent."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        with InsecureWorkloadApi(path, TRUST_DOMAIN) as workloads:
            workloads.add("node", AGENT)
            async with listening(workloads) as (controller, port):
                world = AgentWorld(path, workloads, controller, port)
                world.show(SCENARIO)
                try:
                    yield world
                finally:
                    if world.program is not None:
                        await world.program.stop()
