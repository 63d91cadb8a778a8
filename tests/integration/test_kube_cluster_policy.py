"""The policy from custom resources, against an API server over HTTPS."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from controller.kube.api.cache import Pace
from controller.kube.api.client import ApiClient
from controller.kube.objects.policies import ClusterPolicy
from controller.policies.file import PolicyChange
from controller.policy import Level
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.kube_access import api_client, in_cluster
from tests.fakes.api_server import FakeApiServer
from tests.fakes.clock import FakeClock
from tests.fakes.eventually import eventually

POLICIES, CLASSES = "attestationpolicies", "attestationclasses"
HASH = "v1:sha256:" + "a" * 64
WRONG = {"labels": {"big": "huh"}}
Object = dict[str, Any]


def part(spec: Any, name: str = "cluster", generation: int = 1) -> Object:
    return {"metadata": {"name": name, "generation": generation}, "spec": spec}


def _policy(api: ApiClient, leads: list[bool]) -> ClusterPolicy:
    return ClusterPolicy(
        api,
        clock=FakeClock(),
        instruments=Instruments(Process.CONTROLLER, "test"),
        leads=lambda: leads[0],
        jitter=lambda: 0.0,
        pace=Pace(pause_factor=0.01),
    )


@dataclass
class World:
    server: FakeApiServer
    policy: ClusterPolicy
    leads: list[bool] = field(default_factory=lambda: [True])

    async def change(self) -> PolicyChange:
        return await eventually(self.policy.poll, "a change of the policy")

    def condition(self, collection: str = POLICIES, name: str = "cluster") -> Object:
        status = self.server.objects.get(collection, name)["status"]
        (found,) = status["conditions"]
        return {**found, "digest": status.get("policyDigest")}

    def patches(self) -> int:
        return [verb for verb, _ in self.server.requests].count("patch")

    async def told(self, reason: str, generation: int, collection: str = POLICIES) -> Object:
        """The status, once the copy that is told about has the generation."""
        name = "cluster" if collection == POLICIES else "a"

        async def there() -> Object | None:
            await self.policy.write_status()
            if "status" not in self.server.objects.get(collection, name):
                return None
            found = self.condition(collection, name)
            fits = (found["reason"], found["observedGeneration"]) == (reason, generation)
            return found if fits else None

        return await eventually(there, f"{collection}: {reason} {generation}")


@pytest.fixture
async def world(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[World]:
    api, transport = api_client(in_cluster(tmp_path / "sa", server))
    leads = [True]
    policy = _policy(api, leads)
    tasks = [asyncio.create_task(x.follow()) for x in policy.watchers.values()]
    yield World(server, policy, leads)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await transport.close()


async def test_nothing_is_known_before_both_copies_are_there(
    server: FakeApiServer, world: World
) -> None:
    server.fail_next(503, matching=CLASSES)
    server.create(POLICIES, part({"minLevel": "L1"}))
    assert await world.policy.poll() is None
    await world.policy.write_status()
    assert world.patches() == 0
    change = await world.change()
    assert change.policy is not None
    assert change.policy.min_level is Level.L1
    assert world.policy.current is change.policy
    assert await world.policy.poll() is None


async def test_one_copy_is_not_enough(server: FakeApiServer, tmp_path: Path) -> None:
    api, transport = api_client(in_cluster(tmp_path / "sa", server))
    for collection in (POLICIES, CLASSES):
        policy = _policy(api, [True])
        policy.watchers[collection].synced.set()
        assert await policy.poll() is None
    await transport.close()


async def test_a_missing_policy_is_refused_and_not_taken_for_an_empty_one(world: World) -> None:
    change = await world.change()
    assert change.policy is None
    assert world.policy.current is None
    (fault,) = change.findings
    assert str(fault).startswith("AttestationPolicy/cluster: got nothing")


async def test_classes_and_policy_are_one_and_a_wrong_change_leaves_the_last(
    server: FakeApiServer, world: World
) -> None:
    server.create(POLICIES, part({"minLevel": "L1"}))
    server.create(CLASSES, part({"hashes": [{"hash": HASH}]}, "a"))
    change = await world.change()
    while change.policy is None or "a" not in change.policy.classes:
        change = await world.change()
    good = change.policy
    first = await world.told("InForce", 1)
    assert (first["status"], first["digest"]) == ("True", good.digest)
    assert (await world.told("InForce", 1, CLASSES))["digest"] is None

    server.change(
        POLICIES, {**server.objects.get(POLICIES, "cluster"), **part(WRONG, generation=2)}
    )
    change = await world.change()
    assert change.policy is None
    assert world.policy.current is good
    said = await world.told("Refused", 2)
    assert (said["status"], said["digest"]) == ("False", good.digest)
    assert said["message"].startswith("AttestationPolicy/cluster: spec.labels.big: got 'huh'")
    assert world.condition(CLASSES, "a")["reason"] == "InForce"

    server.delete(POLICIES, "cluster")
    change = await world.change()
    assert "got nothing" in str(change.findings[0])
    assert world.policy.current is good

    server.create(POLICIES, part({"minLevel": "L2"}))
    change = await world.change()
    assert change.policy is not None
    assert change.policy.min_level is Level.L2
    await world.told("InForce", 1)


async def test_a_class_that_is_deleted_is_gone(server: FakeApiServer, world: World) -> None:
    server.create(CLASSES, part({"hashes": [{"hash": HASH}]}, "a"))
    server.create(POLICIES, part({}))
    while (await world.change()).policy is None:
        pass
    server.delete(CLASSES, "a")
    change = await world.change()
    assert change.policy is not None
    assert change.policy.classes == {}


async def test_the_last_policy_outlives_an_outage_and_a_deleted_definition(
    server: FakeApiServer, world: World
) -> None:
    server.create(POLICIES, part({"minLevel": "L1"}))
    await world.change()
    good = world.policy.current
    for _ in range(5):
        server.fail_next(404, matching=POLICIES)
    server.drop_watches()

    async def watched() -> bool | None:
        return server.open_watches[POLICIES] == 1 or None

    await eventually(watched, "it is followed again")
    assert await world.policy.poll() is None
    assert world.policy.current is good


async def test_a_status_is_written_once_and_by_the_leader_alone(
    server: FakeApiServer, world: World
) -> None:
    server.create(POLICIES, part({}))
    world.leads[0] = False
    await world.change()
    await world.policy.write_status()
    assert world.patches() == 0
    world.leads[0] = True
    await world.told("InForce", 1)

    async def copied() -> bool | None:
        before = world.patches()
        await world.policy.write_status()
        return world.patches() == before or None

    await eventually(copied, "the copy has the status")


async def test_a_status_that_was_not_taken_is_written_at_the_next_look(
    server: FakeApiServer, world: World
) -> None:
    server.create(POLICIES, part({}))
    await world.change()
    server.fail_next(503, matching="status")
    task = asyncio.create_task(world.policy.run(0.01))

    async def there() -> bool | None:
        return "status" in server.objects.get(POLICIES, "cluster") or None

    await eventually(there, "the status")
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_deleted_object_gets_no_status(server: FakeApiServer, world: World) -> None:
    server.create(POLICIES, part({}))
    server.create(CLASSES, part({"hashes": [{"hash": HASH}]}, "a"))
    while (await world.change()).policy is None:
        pass
    server.fail_next(404, matching=f"{POLICIES}/cluster/status")
    await world.policy.write_status()
    await world.told("InForce", 1, CLASSES)
