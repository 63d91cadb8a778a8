"""A store is put back to when the card was in another node: that node frees nothing that runs here.

The record of the copy is of a pod that nobody knows any more, on a node that shows it as running
for a while. What runs on the card's new node is remembered until that record has ended.
"""

from controller.ledger.occupancy import Grants
from controller.ledger.record import GpuRecord, HolderState, PodRef
from controller.ledger.release import DriftKind
from controller.ledger.store import MemoryLedgerStore
from controller.operations.logged import open_grants
from gpuwarden.reasons import ReasonCode
from tests.builders.bindings import NODE, WISH
from tests.builders.ledger import holder
from tests.builders.logged import logged
from tests.fakes.binding_world import BindingWorld, Replica

GPU = f"GPU-{NODE}-0"
OLD = PodRef("team-a", "old", "uid-old")
THERE = GpuRecord(GPU, "gpu-2", (holder(GPU, pod=OLD, state=HolderState.CONFIRMED),))
NAMED = {"gpuwarden.dev/gpu-uuids": GPU}
BUSY, NOT_READY = [ReasonCode.GPU_BUSY], [ReasonCode.CONTROLLER_NOT_READY]


async def running(world: BindingWorld) -> Replica:
    """A replica that has given the first node's GPU to a pod that runs."""
    me = await world.replica()
    assert world.lands("q", await me.bind(world.pod("q")))
    await me.follower.round()
    return me


async def restarted(world: BindingWorld, log: Grants) -> Replica:
    """On the copy, and as long as the old pod is shown on the other node."""
    world.store = MemoryLedgerStore()
    assert await world.store.compare_and_set(None, THERE)

    async def read() -> Grants:
        return log

    made = Replica(world, world.store, "b", recall=read)
    await made.stand()
    await rounds(world, made, "uid-old")
    return made


async def rounds(world: BindingWorld, me: Replica, *pods: str) -> None:
    for _ in range(25):
        world.report(pods=pods)
        await me.follower.round()


def removed(world: BindingWorld, me: Replica | None = None) -> None:
    """By force: its container runs on."""
    del world.pods.stored["q"]
    world.pods.catch_up()
    if me is not None:
        me.follower.pod_changed("uid-q", gone=True)


async def refusals(world: BindingWorld, me: Replica, wish: dict[str, str]) -> list[ReasonCode]:
    return [x.code for x in (await me.bind(world.pod("next", annotations=wish))).refusals]


async def demand_waiting(world: BindingWorld, me: Replica) -> None:
    """The GPU is recorded elsewhere, and nothing at all is granted on its own node."""
    assert held(world) == [("gpu-2", "Releasing", "uid-old")]
    assert await refusals(world, me, NAMED) == BUSY
    assert await refusals(world, me, WISH) == NOT_READY


def held(world: BindingWorld) -> list[tuple[str, str, str | None]]:
    entry = world.store.snapshot().get(GPU)
    if entry is None:
        return []
    return [(entry.record.node, x.state.value, x.pod.uid) for x in entry.record.holders]


async def ends_well(world: BindingWorld, me: Replica) -> None:
    """From the record elsewhere, with the deleted pod's container running, to a free GPU."""
    await demand_waiting(world, me)
    await rounds(world, me, "uid-q")
    assert held(world) == [(NODE, "Releasing", "uid-q")]
    assert await refusals(world, me, NAMED) == BUSY
    await rounds(world, me)
    assert held(world) == []
    assert await refusals(world, me, NAMED) == []


async def test_a_live_pod_is_adopted_once_the_other_record_has_ended() -> None:
    world = BindingWorld(2, 1)
    await running(world)
    me = await restarted(world, {})
    await demand_waiting(world, me)
    assert me.sink.drift[DriftKind.POD_UNRECORDED] == 1
    await rounds(world, me)
    assert held(world) == [(NODE, "Confirmed", "uid-q")]
    assert await refusals(world, me, NAMED) == BUSY
    assert await refusals(world, me, WISH) == []


async def test_one_that_is_deleted_before_is_held_until_its_node_shows_its_end() -> None:
    world = BindingWorld(2, 1)
    await running(world)
    me = await restarted(world, {})
    removed(world, me)
    await rounds(world, me, "uid-old", "uid-q")
    await ends_well(world, me)


async def test_what_only_the_log_knows_is_not_forgotten_meanwhile() -> None:
    world = BindingWorld(2, 1)
    before = await running(world)
    removed(world)
    log = open_grants(logged(*before.audit.granted, *before.sink.log))
    await ends_well(world, await restarted(world, log))


async def test_a_pod_that_the_api_server_does_not_answer_for_is_remembered_too() -> None:
    """It cannot be adopted, and has gone when it could be."""
    world = BindingWorld(1)
    await running(world)
    world.store, world.pods.down = MemoryLedgerStore(), True
    me = Replica(world, world.store, "b")
    await me.stand()
    removed(world)
    world.pods.down = False
    await rounds(world, me, "uid-q")
    assert held(world) == [(NODE, "Releasing", "uid-q")]
    await rounds(world, me)
    assert await refusals(world, me, NAMED) == []
