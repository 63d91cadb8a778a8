from typing import Any

import pytest

from controller.binding.use_records import allocation_record
from controller.ledger.record import GpuRecord, HolderState, PodRef
from controller.ledger.release import DriftKind, GivenGpu
from controller.ledger.restore import Grants
from controller.ledger.store import Entry
from controller.operations.logged import open_grants
from controller.record import Record
from gpuwarden.evidence.model import GpuProcess
from gpuwarden.reasons import ReasonCode
from tests.builders.bindings import NODE, REQUIREMENT, env_pod
from tests.builders.ledger import OTHER_POD, holder, record
from tests.builders.logged import logged
from tests.fakes.binding_world import BindingWorld, LogReplayer, Replica
from tests.fakes.ledger_store import MemoryLedgerStore

# --- The store, the pods or both are put back to an old copy: no GPU in use is given away

GPU = f"GPU-{NODE}-0"
REFUSED_BUSY = [ReasonCode.GPU_BUSY]


def log_of(replica: Replica) -> list[Record]:
    return [*replica.audit.granted, *replica.sink.log]


def log_replay(records: list[Record]) -> LogReplayer:
    async def read() -> Grants:
        return open_grants(logged(*records))

    return read


async def running(world: BindingWorld) -> Replica:
    """A replica that has given the node's GPU to a pod that runs."""
    me = await world.replica()
    assert world.lands(world.pod("train-0"), await me.bind("train-0"))
    await me.reconciler.round()
    return me


async def restarted(world: BindingWorld, log: LogReplayer | None) -> Replica:
    """A replica on an empty ledger, after its first round and a further report of the node."""
    world.store = MemoryLedgerStore()
    made = Replica(world, world.store, "b", log_replay=log)
    await made.stand()
    world.report()
    return made


def forget(world: BindingWorld, name: str) -> None:
    del world.pods.stored[name]
    world.pods.catch_up()


async def refusals(me: Replica, name: str = "next") -> list[ReasonCode]:
    return [x.code for x in (await me.bind(name)).refusals]


async def test_what_the_log_gave_away_is_held_until_the_node_shows_no_use() -> None:
    world = BindingWorld(1)
    log = log_of(await running(world))
    forget(world, "train-0")
    me = await restarted(world, log_replay(log))
    assert world.states() == {GPU: ["Releasing"]}
    world.pod("next")
    assert await refusals(me) == REFUSED_BUSY
    await me.reconciler.round()
    world.report(GpuProcess(GPU, 7, "uid-train-0"))
    await me.reconciler.round()
    world.report()
    await me.reconciler.round()
    assert world.states() == {GPU: ["Releasing"]}
    world.report()
    await me.reconciler.round()
    assert world.states() == {}
    assert open_grants(logged(*log, *me.sink.log)) == {}
    assert world.lands("next", await me.bind("next"))


async def test_without_the_log_it_would_be_given_away() -> None:
    world = BindingWorld(1)
    await running(world)
    forget(world, "train-0")
    me = await restarted(world, None)
    world.pod("next")
    assert await refusals(me) == []


async def test_before_the_log_was_read_nothing_is_granted() -> None:
    world = BindingWorld(1)
    log = log_of(await running(world))
    forget(world, "train-0")
    is_away = True

    async def read() -> Grants:
        if is_away:
            raise OSError("away")
        return open_grants(logged(*log))

    me = await restarted(world, read)
    world.pod("next")
    assert await refusals(me) == [ReasonCode.CONTROLLER_NOT_READY]
    assert not me.reconciliation.is_firm
    is_away = False
    await me.reconciler.round()
    assert world.states() == {GPU: ["Releasing"]}
    assert await refusals(me) == REFUSED_BUSY


async def test_a_node_waits_until_what_was_lost_is_held() -> None:
    world = BindingWorld(2)
    log = log_of(await running(world))
    forget(world, "train-0")
    world.pods.down = True
    me = await restarted(world, log_replay(log))
    world.pods.down = False
    world.pod("next")
    assert world.states() == {}
    assert await refusals(me) == [ReasonCode.CONTROLLER_NOT_READY]
    for _ in range(11):
        await me.reconciler.round()
    assert world.states() == {GPU: ["Releasing"]}
    for _ in range(11):
        await me.reconciler.round()
    assert world.lands("next", await me.bind("next"))
    assert world.assigned()["next"] == (f"GPU-{NODE}-1",)


async def test_a_live_pod_is_restored_and_no_ghost_of_it_is_made() -> None:
    world = BindingWorld(1)
    me = await running(world)
    again = await restarted(world, log_replay(log_of(me)))
    for _ in range(11):
        await again.reconciler.round()
    assert world.states() == {GPU: ["Confirmed"]}
    assert again.sink.restored_pods == [f"train-0 {GPU}"]


async def test_what_has_ended_by_the_log_is_not_held() -> None:
    world = BindingWorld(1)
    me, other = await running(world), await world.replica("b")
    forget(world, "train-0")
    other.reconciler.pod_changed("uid-train-0", gone=True)
    for _ in range(4):
        await other.reconciler.round()
        world.report()
    assert world.states() == {}
    await me.reconciler.round()
    assert [x.kind.value for x in me.sink.log][-1] == "reservation.ended"
    await restarted(world, log_replay(log_of(me)))
    assert world.states() == {}


async def test_a_pod_that_waits_again_is_requeued_and_its_old_gpu_let_go_when_unused() -> None:
    """The API server is at a time before the Binding: the pod is there, and not bound."""
    world = BindingWorld(1)
    world.pod("train-0")
    before = world.pods.stored["train-0"]
    me = await world.replica()
    late = await me.bind("train-0")
    assert world.lands("train-0", late)
    await me.reconciler.round()
    world.pods.put(before)
    again = await restarted(world, log_replay(log_of(me)))
    assert world.pods.requeues == ["train-0"]
    assert not world.lands("train-0", late)
    assert world.states() == {GPU: ["Releasing"]}
    assert await refusals(again, "train-0") == REFUSED_BUSY
    await kubelets_allocation_is_recorded(world, again)
    assert world.lands("train-0", await again.bind("train-0"))


class RestoredStore(MemoryLedgerStore):
    """Somebody puts an old copy back under whoever uses it."""

    def put_back(self, entry: Entry) -> None:
        self._snapshot = self._snapshot.with_entry(entry.record.key, entry)


@pytest.mark.parametrize("restarts", [True, False])
async def test_an_attempt_of_the_copy_whose_pod_was_bound_after_it_does_not_expire(
    restarts: bool,
) -> None:
    """Store and pods are put back to between answer and Binding; the container runs on, idle."""
    store = RestoredStore()
    world = BindingWorld(1, store=store)
    world.pod("train-0")
    before = world.pods.stored["train-0"]
    me = await world.replica()
    late = await me.bind("train-0")
    copy = world.store.snapshot().get(GPU)
    assert copy is not None
    assert world.lands("train-0", late)
    for _ in range(2):
        await me.reconciler.round()
    world.pods.put(before)
    if restarts:
        world.store = MemoryLedgerStore()
        assert await world.store.compare_and_set(None, copy.record)
        me = Replica(world, world.store, "b", log_replay=log_replay(log_of(me)))
    else:
        store.put_back(copy)
        await me.reconciler.round()
    await me.stand()
    world.report()
    for _ in range(11):
        await me.reconciler.round()
    assert world.states() == {GPU: ["Releasing"]}
    assert not world.lands("train-0", late)
    world.pod("next")
    assert await refusals(me) == REFUSED_BUSY


async def test_a_confirmed_pod_that_waits_again_does_not_keep_its_gpu_for_ever() -> None:
    """The replicas ran on, and so the ledger is whole; the pod was put back."""
    world = BindingWorld(1)
    world.pod("train-0")
    before = world.pods.stored["train-0"]
    me = await world.replica()
    assert world.lands("train-0", await me.bind("train-0"))
    await me.reconciler.round()
    world.pods.put(before)
    for _ in range(11):
        await me.reconciler.round()
    assert world.states() == {GPU: ["Confirmed"]}
    world.report(GpuProcess(GPU, 7, "uid-train-0"), after_s=16)
    for _ in range(12):
        await me.reconciler.round()
    assert world.states() == {GPU: ["Releasing"]}
    await kubelets_allocation_is_recorded(world, me)
    assert world.lands("train-0", await me.bind("train-0"))


async def kubelets_allocation_is_recorded(world: BindingWorld, me: Replica) -> None:
    """Time goes by, and the node's reports show no use."""
    for _ in range(5):
        for _ in range(2):
            await me.reconciler.round()
        world.report(after_s=16)
    assert world.states() == {}


class SwappedStore(MemoryLedgerStore):
    """Somebody changes records by hand."""

    async def swap(self, old: Entry, new: GpuRecord) -> None:
        await self.end(old)
        assert await self.compare_and_set(None, new)

    async def end(self, old: Entry) -> None:
        ended = old.record
        for part in ended.holders:
            if part.state is HolderState.CONFIRMED:
                ended = ended.moved(part.reservation, HolderState.RELEASING)
        for part in ended.holders:
            ended = ended.moved(part.reservation, HolderState.RELEASED)
        assert await self.compare_and_set(old, ended)


@pytest.mark.parametrize("told", [True, False], ids=["unseen", "seen to end"])
async def test_a_record_that_takes_the_place_of_another_drives_nobody_out(told: bool) -> None:
    store = SwappedStore()
    world = BindingWorld(1, store=store)
    me = await running(world)
    forget(world, "train-0")
    old = store.snapshot().get(GPU)
    assert old is not None
    older = record(holder(GPU, pod=OTHER_POD, state=HolderState.CONFIRMED), gpu=GPU)
    await store.swap(old, older)
    if told:
        me.replaced = (old,)
    for _ in range(11):
        await me.reconciler.round()
    states = [HolderState.RELEASING] if told else []
    found = store.snapshot().get(GPU)
    assert found is not None
    mine = found.record.of_pod("uid-train-0")
    assert ([] if mine is None else [mine.state]) == states


async def test_a_record_that_is_ended_by_hand_gives_a_live_pods_gpu_to_nobody() -> None:
    store = SwappedStore()
    world = BindingWorld(1, store=store)
    me = await running(world)
    old = store.snapshot().get(GPU)
    assert old is not None
    await store.end(old)
    world.pod("next")
    assert await refusals(me) == REFUSED_BUSY
    await me.reconciler.round()
    assert await refusals(me) == REFUSED_BUSY
    for _ in range(11):
        await me.reconciler.round()
    assert world.states() == {GPU: ["Confirmed"]}
    assert me.sink.restored_pods == [f"train-0 {GPU}"]


async def test_a_pod_that_only_says_so_holds_nothing_back() -> None:
    world = BindingWorld(1)
    await running(world)
    copied = world.pods.stored["train-0"]
    copied["metadata"]["uid"] = "uid-copy"
    world.pods.put(copied)
    me = await restarted(world, None)
    world.pod("next")
    assert await refusals(me) == []


async def test_a_live_pod_that_kubelet_gave_its_gpu_is_left_to_its_nodes_reports() -> None:
    world = BindingWorld(1)
    allocated = allocation_record(
        GivenGpu(PodRef("team-a", "theirs", "uid-theirs"), NODE, GPU), "v1.k.x", "e" * 64
    )
    world.pods.put(env_pod(name="theirs", uid="uid-theirs") | {"spec": {"nodeName": NODE}})
    await restarted(world, log_replay([allocated]))
    assert world.states() == {}
    forget(world, "theirs")
    await restarted(world, log_replay([allocated]))
    assert world.states() == {GPU: ["Releasing"]}


# --- A store is put back to when the card was in another node: that node frees nothing that runs

OLD = PodRef("team-a", "old", "uid-old")
THERE = GpuRecord(GPU, "gpu-2", (holder(GPU, pod=OLD, state=HolderState.CONFIRMED),))
NAMED = {"gpuwarden.dev/gpu-uuids": GPU}
BUSY, NOT_READY = [ReasonCode.GPU_BUSY], [ReasonCode.CONTROLLER_NOT_READY]


async def running_on_first(world: BindingWorld) -> Replica:
    """A replica that has given the first node's GPU to a pod that runs."""
    me = await world.replica()
    assert world.lands("q", await me.bind(world.pod("q")))
    await me.reconciler.round()
    return me


async def restarted_elsewhere(world: BindingWorld, log: Grants) -> Replica:
    """On the copy, and as long as the old pod is shown on the other node."""
    world.store = MemoryLedgerStore()
    assert await world.store.compare_and_set(None, THERE)

    async def read() -> Grants:
        return log

    made = Replica(world, world.store, "b", log_replay=read)
    await made.stand()
    await rounds(world, made, "uid-old")
    return made


async def rounds(world: BindingWorld, me: Replica, *pods: str) -> None:
    for _ in range(25):
        world.report(pods=pods)
        await me.reconciler.round()


def removed(world: BindingWorld, me: Replica | None = None) -> None:
    """By force: its container runs on."""
    del world.pods.stored["q"]
    world.pods.catch_up()
    if me is not None:
        me.reconciler.pod_changed("uid-q", gone=True)


async def refusals_of(
    world: BindingWorld, me: Replica, requirement: dict[str, str]
) -> list[ReasonCode]:
    return [x.code for x in (await me.bind(world.pod("next", annotations=requirement))).refusals]


async def demand_waiting(world: BindingWorld, me: Replica) -> None:
    """The GPU is recorded elsewhere, and nothing at all is granted on its own node."""
    assert held(world) == [("gpu-2", "Releasing", "uid-old")]
    assert await refusals_of(world, me, NAMED) == BUSY
    assert await refusals_of(world, me, REQUIREMENT) == NOT_READY


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
    assert await refusals_of(world, me, NAMED) == BUSY
    await rounds(world, me)
    assert held(world) == []
    assert await refusals_of(world, me, NAMED) == []


async def test_a_live_pod_is_restored_once_the_other_record_has_ended() -> None:
    world = BindingWorld(2, 1)
    await running_on_first(world)
    me = await restarted_elsewhere(world, {})
    await demand_waiting(world, me)
    assert me.sink.drift[DriftKind.POD_UNRECORDED] == 1
    await rounds(world, me)
    assert held(world) == [(NODE, "Confirmed", "uid-q")]
    assert await refusals_of(world, me, NAMED) == BUSY
    assert await refusals_of(world, me, REQUIREMENT) == []


async def test_one_that_is_deleted_before_is_held_until_its_node_shows_its_end() -> None:
    world = BindingWorld(2, 1)
    await running_on_first(world)
    me = await restarted_elsewhere(world, {})
    removed(world, me)
    await rounds(world, me, "uid-old", "uid-q")
    await ends_well(world, me)


async def test_what_only_the_log_knows_is_not_forgotten_meanwhile() -> None:
    world = BindingWorld(2, 1)
    before = await running_on_first(world)
    removed(world)
    log = open_grants(logged(*before.audit.granted, *before.sink.log))
    await ends_well(world, await restarted_elsewhere(world, log))


async def test_a_pod_that_the_api_server_does_not_answer_for_is_remembered_too() -> None:
    """It cannot be restored, and has gone when it could be."""
    world = BindingWorld(1)
    await running_on_first(world)
    world.store, world.pods.down = MemoryLedgerStore(), True
    me = Replica(world, world.store, "b")
    await me.stand()
    removed(world)
    world.pods.down = False
    await rounds(world, me, "uid-q")
    assert held(world) == [(NODE, "Releasing", "uid-q")]
    await rounds(world, me)
    assert await refusals_of(world, me, NAMED) == []


# --- A share group's record is put back under a pod that is not of the group: nobody joins it

MAP = {"gpu-scheduling-map": f"0={NODE}:0\n1={NODE}:0\n2={NODE}:0"}
GROUP_BUSY = [ReasonCode.GPU_BUSY]


def member(world: BindingWorld, number: int, owner: str = "set-1") -> str:
    """A pod of a StatefulSet all of whose pods have the same line."""
    world.pod(f"web-{number}", annotations=MAP)
    document = world.pods.stored[f"web-{number}"]
    owners = [{"kind": "StatefulSet", "name": "web", "uid": owner, "controller": True}]
    document["metadata"] |= {"ownerReferences": owners, "generateName": "web-"}
    world.pods.put(document)
    return f"web-{number}"


def removed_by_force(world: BindingWorld, name: str, *replicas: Replica) -> None:
    del world.pods.stored[name]
    world.pods.catch_up()
    for replica in replicas:
        replica.reconciler.pod_changed(f"uid-{name}", gone=True)


async def reports(world: BindingWorld, me: Replica, *processes: Any) -> None:
    for _ in range(5):
        await me.reconciler.round()
        world.report(*processes)


async def group_refusals(me: Replica, name: str) -> list[ReasonCode]:
    return [x.code for x in (await me.bind(name)).refusals]


async def with_copy(world: BindingWorld) -> tuple[Replica, GpuRecord]:
    """The group's first pod had the GPU when the copy was made; a stranger has it now."""
    me = await world.replica()
    assert world.lands("web-0", await me.bind(member(world, 0)))
    await me.reconciler.round()
    entry = world.store.snapshot().get(GPU)
    assert entry is not None
    removed_by_force(world, "web-0", me)
    await reports(world, me)
    assert world.states() == {}
    assert world.lands("q", await me.bind(world.pod("q")))
    await me.reconciler.round()
    return me, entry.record


async def restarted_on(world: BindingWorld, copy: GpuRecord, log: Grants | None = None) -> Replica:
    world.store = MemoryLedgerStore()
    assert await world.store.compare_and_set(None, copy)

    async def read() -> Grants:
        return log or {}

    made = Replica(world, world.store, "b", log_replay=read)
    await made.stand()
    world.report()
    for _ in range(11):
        await made.reconciler.round()
    return made


@pytest.mark.parametrize("owner", [None, "set-2"])
async def test_the_group_waits_until_a_restored_pod_outside_it_has_ended(owner: str | None) -> None:
    world = BindingWorld(1)
    _, copy = await with_copy(world)
    if owner is not None:
        world.pods.stored["q"]["metadata"]["ownerReferences"] = [
            {"kind": "StatefulSet", "name": "q", "uid": owner, "controller": True}
        ]
        world.pods.catch_up()
    me = await restarted_on(world, copy)
    assert sorted(world.states()[GPU]) == ["Confirmed", "Releasing"]
    member(world, 1)
    assert await group_refusals(me, "web-1") == GROUP_BUSY
    await reports(world, me)
    assert world.states() == {GPU: ["Confirmed"]}
    assert await group_refusals(me, "web-1") == GROUP_BUSY
    removed_by_force(world, "q", me)
    await reports(world, me)
    assert world.lands("web-1", await me.bind("web-1"))


async def test_a_pod_outside_the_group_that_only_the_log_knows_closes_it_too() -> None:
    world = BindingWorld(1)
    before, copy = await with_copy(world)
    removed_by_force(world, "q")
    me = await restarted_on(
        world, copy, open_grants(logged(*before.audit.granted, *before.sink.log))
    )
    assert world.states() == {GPU: ["Releasing", "Releasing"]}
    assert me.sink.drift.get(DriftKind.HELD_TWICE) == 1
    member(world, 1)
    assert await group_refusals(me, "web-1") == GROUP_BUSY
    await reports(world, me, GpuProcess(GPU, 7, "uid-q"))
    assert world.states() == {GPU: ["Releasing"]}
    assert await group_refusals(me, "web-1") == GROUP_BUSY
    await reports(world, me)
    assert world.lands("web-1", await me.bind("web-1"))


async def test_unreserved_use_of_a_shared_gpu_is_seen() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    assert world.lands("web-0", await me.bind(member(world, 0)))
    await me.reconciler.round()
    member(world, 1)
    world.report(GpuProcess(GPU, 7, "uid-web-0"), GpuProcess(GPU, 8, "uid-x"))
    assert await group_refusals(me, "web-1") == GROUP_BUSY
    world.report(GpuProcess(GPU, 7, "uid-web-0"))
    assert world.lands("web-1", await me.bind("web-1"))
    states = [x.state for x in world.store.snapshot().entries["gpu-gpu-1-0"].record.holders]
    assert states == [HolderState.CONFIRMED, HolderState.PROPOSED]
