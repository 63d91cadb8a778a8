"""Waking pods, against an API server over HTTPS."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.binding.waking import Chosen, Room
from controller.fleet.trust import ChangeKind, TrustChange
from controller.kube.api.cache import Cache
from controller.kube.pods.pod_waker import PodWaker
from controller.kube.pods.pods import REQUEUED, ClusterPods, pod_kind
from controller.ledger.record import PodRef
from controller.placement.keys import RequirementRules
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.admitted_pods import new_pod
from tests.builders.kube_access import api_client, in_cluster
from tests.fakes.api_server import FakeApiServer
from tests.fakes.clock import FakeClock
from tests.fakes.eventually import eventually

GOOD_AGAIN = [TrustChange("n", ChangeKind.RESTORED)]
NAMES = ("a", "b")


class World:
    """Two pods that wait for one node."""

    def __init__(self, server: FakeApiServer) -> None:
        self.server = server
        self.clock = FakeClock()
        self.waits = True
        self.asked: list[tuple[Room, frozenset[str]]] = []
        self.freed: set[str] = set()
        self.pods = {}
        for name in NAMES:
            made = new_pod(annotations={"theirs": "kept"})
            made["metadata"] |= {"name": name, "namespace": "team-a"}
            server.create("pods", made)
            uid = server.objects.get("pods", f"team-a/{name}")["metadata"]["uid"]
            self.pods[name] = PodRef("team-a", name, uid)

    def choose(self, room: Room, without: frozenset[str]) -> Chosen:
        """The first of those that were not woken yet."""
        self.asked.append((room, without))
        left = [x for x in self.pods.values() if x.uid not in without]
        return Chosen(tuple((x, "n") for x in left[:1]))

    def woken(self) -> list[str]:
        there = self.server.objects.all("pods")
        return [x for x in NAMES if f"team-a/{x}" in there and REQUEUED in self.annotations(x)]

    def annotations(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.server.objects.get("pods", f"team-a/{name}")["metadata"][
            "annotations"
        ]
        return found


@pytest.fixture
def world(server: FakeApiServer) -> World:
    return World(server)


@pytest.fixture
async def waker(world: World, tmp_path: Path) -> AsyncIterator[PodWaker]:
    api, transport = api_client(in_cluster(tmp_path / "sa", world.server))
    kind = pod_kind(RequirementRules())
    pods = ClusterPods(api, kind, Cache(), replica="controller-1", clock=world.clock)
    made = PodWaker(
        pods,
        pods_wait=lambda: world.waits,
        clock=world.clock,
        instruments=Instruments(Process.CONTROLLER, "test"),
    )
    made.choose, made.freed = world.choose, lambda: world.freed
    yield made
    await transport.close()


async def test_who_can_be_placed_is_changed_and_nobody_else(world: World, waker: PodWaker) -> None:
    task = asyncio.create_task(waker.follow(0.01))
    waker.wake(GOOD_AGAIN)

    async def one() -> bool | None:
        return world.woken() == ["a"] or None

    await eventually(one, "one pod is woken")
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert world.asked == [(Room(nodes=frozenset({"n"})), frozenset())]
    assert world.annotations("a")["theirs"] == "kept"
    assert world.annotations("a")[REQUEUED].endswith(" controller-1")


async def test_the_next_is_woken_where_the_first_is_not_placed(
    world: World, waker: PodWaker
) -> None:
    waker.wake_nodes(["n"])
    await waker.reconcile()
    world.clock.advance(3)
    await waker.reconcile()
    assert world.woken() == ["a", "b"]
    world.clock.advance(3)
    await waker.reconcile()
    world.clock.advance(3)
    await waker.reconcile()
    assert len(world.asked) == 3


async def test_nothing_is_written_while_no_pod_waits(world: World, waker: PodWaker) -> None:
    world.waits = False
    waker.wake(GOOD_AGAIN)
    await waker.reconcile()
    assert world.server.requests == []
    world.waits = True
    await waker.reconcile()
    assert [verb for verb, _ in world.server.requests] == ["patch"]


async def test_a_failed_wake_is_tried_at_the_next_look(world: World, waker: PodWaker) -> None:
    world.server.fail_next(503)
    waker.wake(GOOD_AGAIN)
    await waker.reconcile()
    assert world.woken() == []
    await waker.reconcile()
    assert world.woken() == ["a"]


async def test_a_pod_that_is_gone_wakes_nobody(world: World, waker: PodWaker) -> None:
    world.server.delete("pods", "team-a/a")
    waker.wake_everything()
    await waker.reconcile()
    assert [verb for verb, _ in world.server.requests] == ["patch"]
    world.clock.advance(3)
    await waker.reconcile()
    assert world.woken() == ["b"]


async def test_a_namespace_with_room_in_its_quota_is_looked_at(
    world: World, waker: PodWaker
) -> None:
    world.freed = {"team-a"}
    await waker.reconcile()
    assert world.asked == [(Room(namespaces=frozenset({"team-a"})), frozenset())]
