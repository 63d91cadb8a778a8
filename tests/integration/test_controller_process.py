"""The controller as a process: starts with its sandbox directory, serves, drains, restarts."""

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import yaml
from grpc import aio

from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.svid import Svid
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import fleet_pb2_grpc as pb_grpc
from sandbox.program import Program
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.fakes.attest_client import AttestClient
from tests.hang import HANG_S

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = HANG_S
TD = "example.org"
NODE = "node-1"
INTERVAL_MS, TTL_MS = 300, 4000
"""The second is how long answers are taken, and a new controller is not ready: enough for tests
that a busy machine keeps waiting."""


@dataclass
class Controller:
    """A running controller program."""

    program: Program
    addresses: dict[str, str]
    api: InsecureWorkloadApi
    audit: Path

    @property
    def agents_port(self) -> int:
        return int(self.addresses["agents"].rpartition(":")[2])

    def client(self, node: str = NODE, **changes: Any) -> AttestClient:
        name = f"spiffe://{TD}/gpuwarden/agent/{node}"
        issued = self.api.ca.issue(name)
        roots = tuple(ca.certificate for ca in self.api.roots)
        svid = Svid(parse_spiffe_id(name), issued.private_key, issued.chain, roots, 1)
        return AttestClient(svid, self.agents_port, node=node, **changes)

    def records(self) -> list[dict[str, Any]]:
        files = sorted(self.audit.glob("*.jsonl")) or sorted(self.audit.rglob("*.log"))
        return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]

    async def get(self, path: str) -> tuple[int, str]:
        url = f"http://{self.addresses['ops']}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    async def filter(self, required: str | None) -> dict[str, Any]:
        annotations = {} if required is None else {"gpuwarden.dev/required-hash": required}
        pod = {
            "metadata": {"name": "p", "namespace": "d", "annotations": annotations},
            "spec": {"containers": [{"name": "c"}]},
        }
        body = {"Pod": pod, "NodeNames": [NODE, "node-2"]}
        url = f"http://{self.addresses['extender']}/filter"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            assert answer.status == 200
            found: dict[str, Any] = await answer.json()
            return found

    async def until_reasons(self, wanted: list[str]) -> None:
        """Ask /readyz until the reasons begin with exactly these words."""
        async with asyncio.timeout(DEADLINE):
            while True:
                _, text = await self.get("/readyz")
                if [reason.split(":")[0] for reason in json.loads(text)["reasons"]] == wanted:
                    return
                await asyncio.sleep(0.02)

    async def until_ready(self) -> None:
        await self.until_reasons([])


@dataclass
class Place:
    """Where controllers of one test live."""

    folder: Path
    api: InsecureWorkloadApi
    running: list[Program]

    async def start(self) -> Controller:
        config: dict[str, Any] = {
            "apiVersion": "config.gpuwarden.dev/v1alpha1",
            "kind": "ControllerConfig",
            "trustDomain": TD,
            "cluster": "test",
            "workloadApi": f"unix://{self.folder / 'controller.sock'}",
            "attestation": {
                "interval": f"{INTERVAL_MS}ms",
                "challengeTtl": f"{TTL_MS}ms",
                "lease": "10s",
            },
            "listen": {
                "agents": "127.0.0.1:0",
                "extender": "127.0.0.1:0",
                "ops": "127.0.0.1:0",
                "local": str(self.folder / "fleet.sock"),
            },
            "audit": {"dir": str(self.folder / "audit"), "reserve": "1Mi"},
            "store": {"path": str(self.folder / "ledger.db")},
        }
        path = self.folder / "controller.yaml"
        path.write_text(yaml.safe_dump(config))
        number = len(self.running)
        program = await Program.start(
            f"controller-{number}",
            (
                sys.executable,
                "-m",
                "sandbox.controller_main",
                *("--config", str(path), "--node", NODE, "--node", "node-2"),
                *("--addresses", str(self.folder / "addresses.json")),
            ),
            environment={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "PYTHONWARNINGS": "error",
                "BGS_LOG_LEVEL": "chatty",
            },
            log=self.folder / f"controller-{number}.log",
        )
        self.running.append(program)
        event = await program.event("controller.listening", timeout_s=DEADLINE)
        addresses = {
            key: value for key, value in event.items() if key not in {"event", "timestamp", "level"}
        }
        return Controller(program, addresses, self.api, self.folder / "audit")


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    api = InsecureWorkloadApi(tmp_path, TD)
    api.add("controller", f"spiffe://{TD}/gpuwarden/controller")
    made = Place(tmp_path, api, [])
    yield made
    for program in made.running:
        await program.stop()
    api.close()


async def test_from_evidence_to_decision(place: Place) -> None:
    controller = await place.start()
    assert json.loads((place.folder / "addresses.json").read_text()) == {
        "event": "controller.listening",
        **controller.addresses,
    }
    lines = (place.folder / "controller-0.log").read_text().splitlines()
    (ignored,) = (json.loads(line) for line in lines if '"config.ignored"' in line)
    assert ignored["warning"].startswith(
        "BGS_LOG_LEVEL (environment, sets log.level): got 'chatty';"
    )
    early = await controller.filter("v1:sha256:" + "0" * 64)
    assert "CONTROLLER_NOT_READY" in early["Error"]
    assert (await controller.filter(None))["NodeNames"] == [NODE, "node-2"]
    status, why = await controller.get("/readyz")
    assert (status, json.loads(why)["reasons"][0].split(":")[0]) == (503, "first round")
    async with controller.client() as agent:
        verdict = await agent.accepted()

        async def rounds() -> None:
            while True:
                await agent.answer(await agent.challenge())
                await agent.verdict()

        answering = asyncio.create_task(rounds())
        await controller.until_ready()
        answer = await controller.filter(verdict.attestation_hash)
        assert answer["NodeNames"] == [NODE]
        assert "NODE_NO_EVIDENCE" in answer["FailedAndUnresolvableNodes"]["node-2"]
        assert stat.S_IMODE((place.folder / "fleet.sock").stat().st_mode) == 0o600
        await _sees_the_fleet(controller)
        await _shows_metrics(controller)
        answering.cancel()
        await asyncio.wait({answering})
    assert await controller.program.stop() == 0
    kinds = [record["kind"] for record in controller.records()]
    assert kinds[0] == "log.start"
    assert kinds[-1] == "log.stop"
    assert {"config.change", "evidence.accepted", "filter.decision"} <= set(kinds)


async def _sees_the_fleet(controller: Controller) -> None:
    path = controller.addresses["local"]
    async with aio.insecure_channel(f"unix:{path}") as channel:
        stub: Any = pb_grpc.FleetServiceStub(channel)
        listed = await stub.ListNodes(pb.ListNodesRequest(), timeout=DEADLINE)
        states = {node.name: (node.state, node.code) for node in listed.nodes}
        assert states == {NODE: ("eligible", ""), "node-2": ("unknown", "NODE_NO_EVIDENCE")}
        assert listed.not_ready == ""
        assert "InsecureStaticNodes" in listed.warnings[0]
        (gpu,) = (await stub.ListGpus(pb.ListGpusRequest(), timeout=DEADLINE)).gpus
        assert list(gpu.labels) == ["model-nvidia-h100-80gb-hbm3"]
        pod = {"metadata": {"annotations": {"gpuwarden.dev/required-hash": "junk"}}}
        request = pb.FitPodRequest(pod_json=json.dumps(pod).encode())
        refused = await stub.FitPod(request, timeout=DEADLINE)
        assert (refused.managed, refused.code) == (True, "REQ_INVALID")


async def _shows_metrics(controller: Controller) -> None:
    _, text = await controller.get("/metrics")
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(lines['gpuwarden_nodes{state="eligible"}']) == 1
    assert float(lines['gpuwarden_evidence_total{code="ACCEPTED"}']) >= 1
    assert float(lines['gpuwarden_gpus{state="usable"}']) == 1
    assert float(lines["gpuwarden_svid_expires_seconds"]) > 0
    assert float(lines["gpuwarden_streams"]) == 1
    assert float(lines["gpuwarden_ready"]) == 1


async def test_sigterm_drains_in_order_and_ends(place: Place) -> None:
    controller = await place.start()
    async with (
        controller.client() as agent,
        aio.insecure_channel(f"unix:{controller.addresses['local']}") as channel,
    ):
        await agent.accepted()
        stub: Any = pb_grpc.FleetServiceStub(channel)
        watch = aiter(stub.WatchNodes(pb.WatchNodesRequest(), timeout=DEADLINE))
        while not (await asyncio.wait_for(anext(watch), DEADLINE)).synced:
            pass
        async with asyncio.timeout(HANG_S):
            os.kill(controller.program.pid, signal.SIGTERM)
            ended = await agent.ended()
            assert await controller.program.stop() == 0
        assert (ended.status, ended.reason) == ("UNAVAILABLE", None)
        assert "stopping" in ended.details
        with pytest.raises(aio.AioRpcError) as caught:
            await asyncio.wait_for(anext(watch), DEADLINE)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "stopping" in (caught.value.details() or "")
    last = controller.records()[-1]
    assert last["kind"] == "log.stop"


async def test_a_restart_is_not_ready_until_a_whole_round_has_passed(place: Place) -> None:
    first = await place.start()
    async with first.client() as agent:
        accepted = await agent.accepted()
    await first.program.stop()
    second = await place.start()
    answer = await second.filter(accepted.attestation_hash)
    assert "CONTROLLER_NOT_READY" in answer["Error"]
    await second.until_ready()
    answer = await second.filter(accepted.attestation_hash)
    assert answer["NodeNames"] == []
    assert "NODE_NO_EVIDENCE" in answer["FailedAndUnresolvableNodes"][NODE]


async def test_a_bad_node_name_is_named(tmp_path: Path) -> None:
    arguments = ("--trustDomain", TD, "--cluster", "c", "--workloadApi", f"unix://{tmp_path}/x")
    status, errors = await _ends(
        ("-m", "sandbox.controller_main", *arguments, "--node", "Not A Node")
    )
    assert status == 2
    assert "--node: node name 'Not A Node'" in errors


async def test_a_port_that_cannot_be_had_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    arguments = ("--trustDomain", TD, "--cluster", "c", "--workloadApi", f"unix://{tmp_path}/x")
    status, errors = await _ends(
        (
            *("-m", "sandbox.controller_main", *arguments, "--log.level", "error"),
            *("--audit.dir", str(tmp_path / "audit"), "--listen.ops", "192.0.2.1:1"),
            *("--store.path", str(tmp_path / "ledger.db")),
        )
    )
    assert status == 1
    assert "192.0.2.1" in errors
    assert "Traceback" not in errors


async def test_missing_settings_are_named() -> None:
    status, errors = await _ends(("-m", "sandbox.controller_main"))
    assert status == 2
    assert "trustDomain" in errors


async def test_the_stock_program_says_that_it_has_no_directory_yet(tmp_path: Path) -> None:
    arguments = ("--trustDomain", TD, "--cluster", "c", "--workloadApi", f"unix://{tmp_path}/x")
    status, errors = await _ends(("-m", "controller", *arguments))
    assert status == 1
    [line] = map(json.loads, errors.splitlines())
    assert (line["event"], line["level"]) == ("process.start.failed", "error")
    assert "no node directory" in line["detail"]
    assert "sandbox.controller_main" in line["detail"]


async def _ends(arguments: tuple[str, ...]) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await asyncio.wait_for(process.communicate(), DEADLINE)
    return process.returncode, errors.decode()
