"""A share group's record is put back under a pod that is not of the group: nobody joins it."""

from typing import Any

import pytest

from controller.ledger.occupancy import Grants
from controller.ledger.record import GpuRecord, HolderState
from controller.ledger.release import DriftKind
from controller.ledger.store import MemoryLedgerStore
from controller.operations.logged import open_grants
from gpuwarden.evidence.model import GpuProcess
from gpuwarden.reasons import ReasonCode
from tests.builders.bindings import NODE
from tests.builders.logged import logged
from tests.fakes.binding_world import BindingWorld, Replica

GPU = f"GPU-{NODE}-0"
MAP = {"gpu-scheduling-map": f"0={NODE}:0\n1={NODE}:0\n2={NODE}:0"}
BUSY = [ReasonCode.GPU_BUSY]


def member(world: BindingWorld, number: int, owner: str = "set-1") -> str:
    """A pod of a StatefulSet all of whose pods have the same line."""
    world.pod(f"web-{number}", annotations=MAP)
    document = world.pods.stored[f"web-{number}"]
    owners = [{"kind": "StatefulSet", "name": "web", "uid": owner, "controller": True}]
    document["metadata"] |= {"ownerReferences": owners, "generateName": "web-"}
    world.pods.put(document)
    return f"web-{number}"


def removed(world: BindingWorld, name: str, *replicas: Replica) -> None:
    del world.pods.stored[name]
    world.pods.catch_up()
    for replica in replicas:
        replica.follower.pod_changed(f"uid-{name}", gone=True)


async def settled(world: BindingWorld, me: Replica, *processes: Any) -> None:
    for _ in range(5):
        await me.follower.round()
        world.report(*processes)


async def refusals(me: Replica, name: str) -> list[ReasonCode]:
    return [x.code for x in (await me.bind(name)).refusals]


async def with_copy(world: BindingWorld) -> tuple[Replica, GpuRecord]:
    """The group's first pod had the GPU when the copy was made; a stranger has it now."""
    me = await world.replica()
    assert world.lands("web-0", await me.bind(member(world, 0)))
    await me.follower.round()
    entry = world.store.snapshot().get(GPU)
    assert entry is not None
    removed(world, "web-0", me)
    await settled(world, me)
    assert world.states() == {}
    assert world.lands("q", await me.bind(world.pod("q")))
    await me.follower.round()
    return me, entry.record


async def restarted(world: BindingWorld, copy: GpuRecord, log: Grants | None = None) -> Replica:
    world.store = MemoryLedgerStore()
    assert await world.store.compare_and_set(None, copy)

    async def read() -> Grants:
        return log or {}

    made = Replica(world, world.store, "b", recall=read)
    await made.stand()
    world.report()
    for _ in range(11):
        await made.follower.round()
    return made


@pytest.mark.parametrize("owner", [None, "set-2"])
async def test_the_group_waits_until_an_adopted_stranger_has_gone(owner: str | None) -> None:
    world = BindingWorld(1)
    _, copy = await with_copy(world)
    if owner is not None:
        world.pods.stored["q"]["metadata"]["ownerReferences"] = [
            {"kind": "StatefulSet", "name": "q", "uid": owner, "controller": True}
        ]
        world.pods.catch_up()
    me = await restarted(world, copy)
    assert sorted(world.states()[GPU]) == ["Confirmed", "Releasing"]
    member(world, 1)
    assert await refusals(me, "web-1") == BUSY
    await settled(world, me)
    assert world.states() == {GPU: ["Confirmed"]}
    assert await refusals(me, "web-1") == BUSY
    removed(world, "q", me)
    await settled(world, me)
    assert world.lands("web-1", await me.bind("web-1"))


async def test_a_stranger_that_only_the_log_knows_closes_the_group_too() -> None:
    world = BindingWorld(1)
    before, copy = await with_copy(world)
    removed(world, "q")
    me = await restarted(world, copy, open_grants(logged(*before.audit.granted, *before.sink.log)))
    assert world.states() == {GPU: ["Releasing", "Releasing"]}
    assert me.sink.drift.get(DriftKind.HELD_TWICE) == 1
    member(world, 1)
    assert await refusals(me, "web-1") == BUSY
    await settled(world, me, GpuProcess(GPU, 7, "uid-q"))
    assert world.states() == {GPU: ["Releasing"]}
    assert await refusals(me, "web-1") == BUSY
    await settled(world, me)
    assert world.lands("web-1", await me.bind("web-1"))


async def test_a_stranger_without_a_record_is_seen_on_a_shared_gpu() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    assert world.lands("web-0", await me.bind(member(world, 0)))
    await me.follower.round()
    member(world, 1)
    world.report(GpuProcess(GPU, 7, "uid-web-0"), GpuProcess(GPU, 8, "uid-x"))
    assert await refusals(me, "web-1") == BUSY
    world.report(GpuProcess(GPU, 7, "uid-web-0"))
    assert world.lands("web-1", await me.bind("web-1"))
    states = [x.state for x in world.store.snapshot().entries["gpu-gpu-1-0"].record.holders]
    assert states == [HolderState.CONFIRMED, HolderState.PROPOSED]
