"""Fifty simulated agents against a real controller: the fleet keeps what it must, whatever happens.

The second test is the program itself, processes and all.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuwarden.settings.values import Address
from gpuwarden.wire.v1 import fleet_pb2 as pb
from sandbox.demo.stage import Stage
from sandbox.fleet.hardware import NEXT_DRIVER, fleet_hardware
from sandbox.fleet.node import FleetEnvironment
from sandbox.fleet.plan import Happening, Kind
from sandbox.fleet.process import MAX_UNACCEPTED, Share
from sandbox.fleet.run import EXIT_INTERRUPTED
from sandbox.fleet.tally import Tally
from sandbox.laptop import ROOT, Laptop, Pace
from sandbox.nodes import TRUST_DOMAIN
from sandbox.spiffe.ca import InsecureCa
from tests.fakes.eventually import eventually
from tests.fakes.process_group import run_group
from tests.hang import HANG_S

NODES = 50
DROPPED, RESTARTED, ROTATED, UPGRADED = (
    range(8),
    range(8, 16),
    range(16, 32),
    range(32, 40),
)


@dataclass
class Scene:
    share: Share
    stage: Stage

    async def until(self, holds: Callable[[dict[str, pb.Node]], bool]) -> dict[str, pb.Node]:
        async with asyncio.timeout(HANG_S):
            while not holds(nodes := await self.stage.listed()):  # noqa: ASYNC110 - polls another process
                await asyncio.sleep(0.05)
        return nodes

    def all_accepted(self, nodes: dict[str, pb.Node]) -> bool:
        """Every node eligible, by evidence of the agent that runs now."""
        return len(nodes) == len(self.share.nodes) and all(
            (found := nodes[node.name]).state == "eligible"
            and found.instance_id == node.instance_id
            and found.driver == node.hardware.scenario.driver
            for node in self.share.nodes.values()
        )


@asynccontextmanager
async def running(folder: Path, pace: Pace, nodes: int) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        laptop = Laptop(folder, pace)
        stack.push_async_callback(laptop.close)
        await laptop.start_controller(("*",))
        around = FleetEnvironment(
            (Address.parse(laptop.addresses.agents),),
            laptop.workload_api.ca,
            (laptop.workload_api.ca.certificate,),
            Tally(),
        )
        stage = Stage(laptop)
        stack.push_async_callback(stage.close)
        share = Share(around, dict(enumerate(fleet_hardware(7, nodes))), seed=7)
        stack.push_async_callback(share.stop)
        yield Scene(share, stage)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Fifty nodes, and so much time that no round is lost on a busy machine."""
    async with running(tmp_path, Pace(20.0, challenge_ttl_s=15.0, lease_s=60.0), NODES) as made:
        yield made


@pytest.fixture
async def small_scene(tmp_path: Path) -> AsyncIterator[Scene]:
    """Few nodes, whose leases end soon."""
    async with running(tmp_path, Pace(1.0, challenge_ttl_s=3.0, lease_s=6.0), 6) as made:
        yield made


async def test_a_fleet_survives_drops_restarts_rotations_and_a_rolling_upgrade(
    scene: Scene,
) -> None:
    share, tally = scene.share, scene.share.tally
    await share.start(per_second=200)
    before = await scene.until(scene.all_accepted)
    gpus = sum(len(node.hardware.scenario.gpus) for node in share.nodes.values())
    assert sum(node.gpu_count for node in before.values()) == gpus
    assert {node.accepted_hash for node in share.nodes.values()} == hashes(before)
    assert (tally.opened, tally.streams, tally.refused) == (NODES, NODES, {})

    await share.live(
        [
            *(Happening(0.00, Kind.DROP, number) for number in DROPPED),
            *(Happening(0.02, Kind.ROTATE, number) for number in ROTATED),
            *(Happening(0.04, Kind.RESTART, number) for number in RESTARTED),
            *(Happening(0.06, Kind.UPGRADE, number) for number in UPGRADED),
        ]
    )
    reopened = len(DROPPED) + len(ROTATED) + len(RESTARTED) + len(UPGRADED)
    after = await scene.until(
        lambda nodes: tally.opened == NODES + reopened and scene.all_accepted(nodes)
    )

    changed_hash = {
        x.name for x in after.values() if x.attestation_hash != before[x.name].attestation_hash
    }
    changed_instance = {
        x.name for x in after.values() if x.instance_id != before[x.name].instance_id
    }
    assert changed_hash == names(share, UPGRADED)
    assert {after[name].driver for name in changed_hash} == {NEXT_DRIVER}
    assert changed_instance == names(share, RESTARTED) | names(share, UPGRADED)
    assert {x.node_identity for x in before.values()} == {x.node_identity for x in after.values()}
    assert set(tally.refused) <= {"STREAM_SUPERSEDED"}
    assert not tally.alarms
    assert tally.happened == {
        Kind.DROP: len(DROPPED),
        Kind.RESTART: len(RESTARTED),
        Kind.ROTATE: len(ROTATED),
        Kind.UPGRADE: len(UPGRADED),
    }


async def test_a_node_that_stays_away_goes_stale_and_others_do_not(small_scene: Scene) -> None:
    await small_scene.share.start(per_second=200)
    await small_scene.until(small_scene.all_accepted)
    gone = small_scene.share.nodes[3]
    await gone.stop()
    nodes = await small_scene.until(lambda found: found[gone.name].state == "stale")
    assert {x.name for x in nodes.values() if x.state != "eligible"} == {gone.name}


async def test_no_more_agents_start_than_are_let_in() -> None:
    ca = InsecureCa(TRUST_DOMAIN)
    nobody = FleetEnvironment((Address("127.0.0.1", 1),), ca, (ca.certificate,), Tally())
    share = Share(nobody, dict(enumerate(fleet_hardware(7, MAX_UNACCEPTED + 9))), seed=7)

    def begun() -> int:
        return sum(bool(node.instance_id) for node in share.nodes.values())

    starting = asyncio.create_task(share.start(per_second=10_000))
    try:
        for accepted in (0, 1, 2, 5):
            for number in range(accepted):
                share.nodes[number].accepted_hash = "v1"

            async def held_back(most: int = MAX_UNACCEPTED + accepted) -> bool | None:
                return begun() == most or None

            await eventually(held_back, "as many agents as are let in")
    finally:
        starting.cancel()
        await share.stop()


def test_the_program_forks_its_fleet_and_says_that_all_nodes_are_eligible() -> None:
    arguments = "--nodes 12 --seconds 2 --interval 1 --drop 5 --restart 5 --rotate 5 --upgrade 0.5"
    done = run_group(
        [sys.executable, "-m", "sandbox", "fleet", *arguments.split()], cwd=ROOT, timeout=HANG_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("fleet: all nodes eligible\n")
    assert "happened drop 2, restart 2, rotate 2, upgrade 6" in done.stdout


def hashes(nodes: dict[str, pb.Node]) -> set[str]:
    return {node.attestation_hash for node in nodes.values()}


def names(share: Share, numbers: range) -> set[str]:
    return {share.nodes[number].name for number in numbers}


def test_an_interrupted_fleet_leaves_nothing_behind() -> None:
    with tempfile.TemporaryDirectory(prefix="gw-") as folder:
        fleet = subprocess.Popen(
            [sys.executable, "-m", "sandbox", "fleet", "--nodes", "5", "--interval", "5"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": folder},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with fleet:
            assert fleet.stdout is not None
            assert any("stands" in line for line in fleet.stdout)
            os.killpg(fleet.pid, signal.SIGINT)
            fleet.stdout.read()
            assert fleet.wait() == EXIT_INTERRUPTED
        assert list(Path(folder).iterdir()) == []
        with pytest.raises(ProcessLookupError):
            os.killpg(fleet.pid, 0)
