"""Clocks that jump, on either side: trust follows the controller's boot time and nothing else."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from controller.fleet.view import NodeState
from gpuwarden.clock import SystemClock
from gpuwarden.wire.v1 import attestation_pb2 as pb
from tests.fakes.attestation_world import SLOW, World

S = 1_000_000_000
BUSY = replace(SLOW, interval_ns=S // 10)
HOUR_MS = 3_600_000


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World(BUSY) as made:
        yield made


@pytest.mark.parametrize(
    ("step", "code"),
    [(timedelta(hours=2), "SVID_EXPIRED"), (timedelta(hours=-2), "SVID_NOT_YET_VALID")],
    ids=["forward", "back"],
)
async def test_a_step_of_the_controllers_wall_clock_revokes_nobody(
    world: World, step: timedelta, code: str
) -> None:
    """No new evidence counts meanwhile, the lease runs on, and it heals by itself."""
    async with world.client() as client:
        await client.accepted()
        until = _lease_end(world)
        world.wall_shift = step
        await client.answer(await client.challenge())
        assert (await client.verdict()).code == code
        assert (await client.ended()).reason == code
    assert world.state() is NodeState.ELIGIBLE
    assert _lease_end(world) == until
    async with world.client() as client:
        await client.hello()
        assert (await client.verdict()).code == code
    assert world.state() is NodeState.ELIGIBLE
    world.wall_shift = timedelta()
    async with world.client() as client:
        await client.accepted()


async def test_a_suspended_controller_believes_no_lease_from_before(world: World) -> None:
    """CLOCK_MONOTONIC stands still in a suspend, and would have kept every lease alive."""
    async with world.client() as client:
        await client.accepted()
        late = client.evidence(await client.challenge())
        world.slept_ns = 600 * S
        world.wall_shift = timedelta(seconds=600)
        assert world.state() is NodeState.STALE
        await client.send(late)
        assert (await client.verdict()).code == "CHALLENGE_EXPIRED"
        assert world.state() is NodeState.STALE


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS], ids=["forward", "back"])
async def test_a_step_of_the_nodes_wall_clock_gains_and_revokes_nothing(
    world: World, step_ms: int
) -> None:
    async with world.client() as client:
        await client.accepted()
        until = _lease_end(world)
        wall_ms = SystemClock().wall_ns() // 1_000_000 + step_ms
        await client.answer(await client.challenge(), wall_ms=str(wall_ms))
        assert (await client.verdict()).code == "CLOCK_SKEW"
        assert (await client.ended()).reason == "CLOCK_SKEW"
    assert (world.state(), _lease_end(world)) == (NodeState.ELIGIBLE, until)
    async with world.client() as client:
        await client.accepted()


async def test_a_node_that_was_suspended_goes_on(world: World) -> None:
    async with world.client() as client:
        await client.accepted()
        later = SystemClock().boottime_ns() // 1_000_000 + HOUR_MS
        await client.answer(await client.challenge(), boottime_ms=str(later))
        assert (await client.verdict()).outcome == pb.OUTCOME_ACCEPTED


async def test_a_node_whose_boot_time_goes_back_is_another_machine(world: World) -> None:
    async with world.client() as client:
        await client.accepted()
        await client.answer(await client.challenge(), boottime_ms="1")
        assert (await client.verdict()).code == "CLOCK_BACKWARDS"
        assert world.state() is NodeState.REVOKED


def _lease_end(world: World) -> int:
    acceptance = world.registry.snapshot().nodes["node-1"].acceptance
    assert acceptance is not None
    return acceptance.fresh_until_ns
