"""The real program against a real Workload API, a stand-in NVML library, and TLS."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.app import ExitCode
from agent.state import FILE_NAME, decode_state
from gpuwarden.evidence.model import Allocation
from sandbox.nvml.scenario import Faults, Scenario
from sandbox.spiffe.workload import Fault
from tests.builders.attesting import AGENT
from tests.builders.ca import TRUST_DOMAIN
from tests.fakes.agent_process import ROOT, SCENARIO, AgentWorld, agent_world, listening
from tests.fakes.kubelet import fake_kubelet, pod_resources
from tests.hang import HANG_S

LIB_RM_VERSION_MISMATCH = 18


@pytest.fixture
async def world() -> AsyncIterator[AgentWorld]:
    async with agent_world() as made:
        yield made


async def test_allocations_of_kubelet_and_that_they_were_not_read(world: AgentWorld) -> None:
    device = f"{SCENARIO.gpus[1].uuid}::2"
    async with fake_kubelet(world.folder) as kubelet:
        kubelet.pods = [pod_resources("team-a", "job", devices=[device])]
        await world.start(kubeletSocket=str(kubelet.socket))
        await world.until_ready(200)
        [evidence] = world.controller.all_evidence
        held = Allocation("team-a", "job", "main", "nvidia.com/gpu", device)
        assert (evidence.allocations, evidence.failed_reads) == ((held,), ())
        _, metrics = await world.get("/metrics")
        assert "gpuwarden_agent_allocations 1.0" in metrics
    await world.controller.challenge(world.controller.streams[0])
    await world.controller.until(lambda: len(world.controller.all_evidence) == 2)
    evidence = world.controller.all_evidence[1]
    assert evidence.allocations is None
    assert [(x.fact, x.error) for x in evidence.failed_reads] == [("allocations", "UNAVAILABLE")]
    assert len(evidence.inventory.gpus) == len(SCENARIO.gpus)
    assert [x["error"] for x in world.logged("allocations.unread")] == ["UNAVAILABLE"]


async def test_from_start_to_sigterm(world: AgentWorld) -> None:
    world.environment["BGS_LOG_LEVEL"] = "chatty"
    await world.start()
    [ignored] = world.logged("config.ignored")
    assert ignored["warning"].startswith(
        "BGS_LOG_LEVEL (environment, sets log.level): got 'chatty';"
    )
    body = await world.until_ready(200)
    [replica] = body["replicas"]
    assert (replica["state"], replica["code"], replica["level"]) == ("accepted", "ACCEPTED", "L0")
    [evidence] = world.controller.all_evidence
    assert [gpu.uuid for gpu in evidence.inventory.gpus] == [gpu.uuid for gpu in SCENARIO.gpus]
    assert evidence.failed_reads == ()
    for path in ("/healthz", "/health"):
        assert await world.get(path) == (200, "ok\n")
    assert (await world.get("/ready"))[0] == 200
    status, metrics = await world.get("/metrics")
    assert status == 200
    assert 'gpuwarden_agent_verdicts_total{code="ACCEPTED"} 1.0' in metrics
    assert "gpuwarden_agent_accepted_controllers 1.0" in metrics
    assert "gpuwarden_agent_gpus 2.0" in metrics
    expires = re.search(r"^gpuwarden_svid_expires_seconds ([0-9.]+)$", metrics, re.MULTILINE)
    assert expires
    assert 3000 < float(expires[1]) <= 3600
    assert world.program is not None
    assert await world.program.stop() == ExitCode.STOPPED
    assert world.controller.streams[0].ended
    state = decode_state((world.folder / "state" / FILE_NAME).read_bytes())
    assert state.instance_id == world.controller.streams[0].hello.instance_id
    assert [gpu.uuid for gpu in state.gpus] == [gpu.uuid for gpu in SCENARIO.gpus]
    assert [entry["event"] for entry in world.log()][-1] == "process.stopped"
    assert world.logged("stream.closed")[-1]["cause"] == "stopped"


async def test_rotation_opens_the_new_stream_before_the_old_one_ends(world: AgentWorld) -> None:
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


async def test_a_controller_that_restarts_is_found_again(world: AgentWorld) -> None:
    await world.start()
    await world.until_ready(200)
    await world.controller.stop()
    async with listening(world.workloads, world.port) as (again, _):
        await again.until(lambda: bool(again.all_evidence), 20)
        assert (await world.ready())[0] == 200
    assert world.logged("stream.closed")


async def test_a_workload_that_is_not_the_controller_gets_no_evidence(world: AgentWorld) -> None:
    await world.start(controllerId=f"spiffe://{TRUST_DOMAIN}/gpuwarden/other")
    async with asyncio.timeout(HANG_S):
        while not world.logged("stream.closed"):  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.02)
    status, body = await world.ready()
    assert status == 503
    assert "wrong-identity" in body["reasons"][0]
    assert world.controller.streams == []


async def test_without_an_svid_it_waits_and_says_why(world: AgentWorld) -> None:
    world.workloads.fault("node", Fault.DENIED)
    await world.start()
    status, body = await world.ready()
    assert status == 503
    assert body["reasons"][0].startswith("no SVID: ")
    assert (await world.get("/healthz"))[0] == 200
    world.workloads.fault("node", Fault.NONE)
    await world.until_ready(200)


async def test_a_call_that_never_returns_ends_the_process(world: AgentWorld) -> None:
    await world.start(nvmlTimeout="100ms")
    await world.until_ready(200)
    world.controller.interval_ms = 100
    world.show(replace_faults(Faults(hang=("nvmlDeviceGetCount_v2", "nvmlDeviceGetUUID"))))
    await world.controller.challenge(world.controller.streams[0])
    assert await world.end() == ExitCode.NVML_STUCK
    assert world.logged("nvml.stuck")


async def test_a_driver_that_is_exchanged_ends_the_process(world: AgentWorld) -> None:
    await world.start()
    await world.until_ready(200)
    world.show(replace_faults(Faults(rc={"nvmlSystemGetDriverVersion": LIB_RM_VERSION_MISMATCH})))
    await world.controller.challenge(world.controller.streams[0])
    assert await world.end() == ExitCode.DRIVER_RELOADED
    assert world.controller.failures == [("driver-reload", None)]


async def test_damaged_state_and_a_disk_that_takes_nothing_do_not_matter(world: AgentWorld) -> None:
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
