"""Reservations are seen through: by the watch, by requeues, by reports, against a failing world."""

import asyncio
from typing import Any

from controller.binding.reconciler import StartupReconciler
from controller.ledger.record import HolderState
from controller.ledger.release import DriftKind, NodeGone
from controller.ledger.store import LedgerSnapshot, LedgerUnavailableError
from gpuwarden.evidence.model import GpuProcess
from gpuwarden.reasons import ReasonCode
from tests.builders.bindings import NODE
from tests.fakes.binding_world import BindingWorld, Replica
from tests.fakes.eventually import eventually
from tests.fakes.ledger_store import FaultyLedgerStore, MemoryLedgerStore

GPU = f"GPU-{NODE}-0"


async def bound(world: BindingWorld, me: Replica, name: str = "train-0") -> str:
    """A pod that runs with its GPU, confirmed."""
    assert world.lands(world.pod(name), await me.bind(name))
    await me.reconciler.round()
    return name


def end(world: BindingWorld, name: str) -> None:
    world.pods.put(world.pods.stored[name] | {"status": {"phase": "Succeeded"}})


def delete(world: BindingWorld, name: str) -> None:
    del world.pods.stored[name]
    world.pods.catch_up()


async def test_records_and_pods_are_compared_with_a_fleet_that_no_thread_asks_for() -> None:
    """A snapshot that a thread made could lack a quarantine, and be kept until the next change."""
    world = BindingWorld(1)
    me = await world.replica()
    await bound(world, me)
    await me.reconciliation.reconcile(world.pods.live(), world.clock.boottime_ns())
    assert me.reconciliation.uncertainty is None


async def test_from_the_binding_to_the_release() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    name = await bound(world, me)
    assert [x.state for x in me.sink.changes] == [HolderState.CONFIRMED]
    end(world, name)
    me.reconciler.pod_changed(f"uid-{name}", gone=False)
    await me.reconciler.round()
    world.report(GpuProcess(GPU, 7, f"uid-{name}"))
    await me.reconciler.round()
    world.report()
    await me.reconciler.round()
    assert world.states() == {GPU: ["Releasing"]}
    assert me.woken == []
    world.report()
    await me.reconciler.round()
    assert world.states() == {}
    assert me.woken == [NODE]
    released = me.sink.changes[-1]
    assert (released.state, released.evidence) == (HolderState.RELEASED, "e" * 64)
    assert world.lands(world.pod("next"), await me.bind("next"))
    assert set(me.sink.writes) == {"written"}


async def test_an_end_is_followed_up_as_its_node_answers() -> None:
    """No second is waited for: the next whole round is an hour away."""
    world = BindingWorld(1, 1)
    me = await world.replica()
    name = await bound(world, me)
    assert me.asked_nodes == []
    whole_rounds = me.reconciler._rounds
    following = asyncio.create_task(me.reconciler.follow(3600))

    async def begun() -> bool | None:
        return me.reconciler._rounds > whole_rounds or None

    await eventually(begun, "the first whole round is over")
    try:
        world.clock.advance(1)
        end(world, name)
        me.reconciler.pod_changed(f"uid-{name}", gone=False)
        for count in (1, 2):

            async def asked(count: int = count) -> bool | None:
                return me.asked_nodes == [NODE] * count or None

            await eventually(asked, f"asked {count} times")
            world.report()
            world.clock.advance(1)
            me.reconciler.heard(NODE)

        async def free() -> bool | None:
            return world.states() == {} or None

        await eventually(free, "two reports have shown the end")
    finally:
        following.cancel()
    assert me.asked_nodes == [NODE] * 2
    assert me.sink.releases == [4.0]


async def test_a_node_without_an_answer_is_asked_again() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    name = await bound(world, me)
    following = asyncio.create_task(me.reconciler.follow(3600))
    try:
        world.clock.advance(1)
        end(world, name)
        me.reconciler.pod_changed(f"uid-{name}", gone=False)

        async def asked_once() -> bool | None:
            return len(me.asked_nodes) == 1 or None

        await eventually(asked_once, "asked")
        world.report(GpuProcess(GPU, 7, f"uid-{name}"), after_s=0.2)
        me.reconciler.heard(NODE)

        async def waits() -> int | None:
            return me.reconciler._asked.next_ns

        next_ns = await eventually(waits, "the answer was counted, and its next turn is set")
        assert next_ns > world.clock.boottime_ns()
        world.clock.advance(1)

        async def asked_again() -> bool | None:
            return len(me.asked_nodes) == 2 or None

        await eventually(asked_again, "asked in its turn, though nothing was heard")
    finally:
        following.cancel()
    assert world.states() == {GPU: ["Releasing"]}


async def test_a_node_that_is_not_connected_is_not_asked() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    me.reconciler.is_connected = lambda node: node != NODE
    name = await bound(world, me)
    world.clock.advance(1)
    end(world, name)
    me.reconciler.pod_changed(f"uid-{name}", gone=False)
    await me.reconciler.round()
    await me.reconciler.round()
    assert list(me.reconciler.followup.awaited) == [NODE]
    assert me.asked_nodes == []
    me.reconciler.is_connected = lambda node: node == NODE
    await me.reconciler.round()
    assert me.asked_nodes == [NODE]


async def test_reports_that_nobody_waits_for_wake_nobody() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    await bound(world, me)
    me.reconciler.heard(NODE)
    assert not me.reconciler._news.is_set()


async def test_rounds_between_whole_ones_compare_nothing() -> None:
    """However often nodes answer, the whole ledger is compared every ten seconds."""
    world = BindingWorld(1)
    me = await world.replica()
    compared: list[int | None] = []

    async def compare(live: Any, listed_ns: int | None) -> None:
        del live
        compared.append(listed_ns)

    me.reconciliation.reconcile = compare  # type: ignore[method-assign] # counts
    await _rounds(me, 9, is_whole=True)
    await _rounds(me, 30, is_whole=False)
    assert compared == []
    await _rounds(me, 1, is_whole=True)
    assert len(compared) == 1
    await _rounds(me, 5, is_whole=False)
    await _rounds(me, 9, is_whole=True)
    assert len(compared) == 1
    await _rounds(me, 1, is_whole=True)
    assert len(compared) == 2


async def _rounds(me: Replica, count: int, *, is_whole: bool) -> None:
    for _ in range(count):
        await me.reconciler.round(is_whole=is_whole)


async def test_a_deleted_pod_is_believed_gone_once_it_was_seen_to_go() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    name = await bound(world, me)
    delete(world, name)
    me.reconciler.pod_changed(f"uid-{name}", gone=True)
    await me.reconciler.round()
    assert world.states() == {GPU: ["Releasing"]}
    assert world.pods.reads == []


async def test_a_pod_that_is_there_again_keeps_its_gpu() -> None:
    """The API server was put back to before its deletion: its node starts it again."""
    world = BindingWorld(1)
    me = await world.replica()
    name = await bound(world, me)
    pod = world.pods.stored[name]
    delete(world, name)
    me.reconciler.pod_changed(f"uid-{name}", gone=True)
    await me.reconciler.round()
    assert world.states() == {GPU: ["Releasing"]}
    world.pods.put(pod)
    me.reconciler.pod_changed(f"uid-{name}", gone=False)
    for _ in range(3):
        world.report()
        await me.reconciler.round()
    assert world.states() == {GPU: ["Releasing"]}
    delete(world, name)
    me.reconciler.pod_changed(f"uid-{name}", gone=True)
    for _ in range(3):
        world.report()
        await me.reconciler.round()
    assert world.states() == {}


async def test_a_pod_that_the_copy_never_had_is_asked_about() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    name = await bound(world, me)
    world.pods.copy = {}
    for _ in range(11):
        await me.reconciler.round()
    assert world.states() == {GPU: ["Confirmed"]}
    assert world.pods.reads
    world.pods.down = True
    delete(world, name)
    for _ in range(11):
        await me.reconciler.round()
    assert world.states() == {GPU: ["Confirmed"]}
    world.pods.down = False
    for _ in range(11):
        await me.reconciler.round()
    assert world.states() == {GPU: ["Releasing"]}


async def test_news_about_others_is_no_news() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    name = await bound(world, me)
    me.reconciler.pod_changed("uid-of-nobody", gone=True)
    await me.reconciler.round()
    assert world.states() == {GPU: ["Confirmed"]}
    assert name in world.pods.stored


async def test_an_answer_that_came_to_nothing_expires_after_a_requeue() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    verdict = await me.bind(world.pod("train-0"))
    await me.reconciler.round()
    world.report(after_s=91)
    await me.reconciler.round()
    assert world.pods.requeues == ["train-0"]
    assert world.states() == {GPU: ["Proposed"]}
    await me.reconciler.round()
    assert world.states() == {}
    assert me.sink.changes[-1].state is HolderState.EXPIRED
    assert me.woken == [NODE]
    assert not world.lands("train-0", verdict)


async def test_a_requeue_that_is_not_answered_is_tried_again() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    await me.bind(world.pod("train-0"))
    await me.reconciler.round()
    world.report(after_s=91)
    world.pods.down = True
    await me.reconciler.round()
    await me.reconciler.round()
    assert world.states() == {GPU: ["Proposed"]}
    world.pods.down = False
    await me.reconciler.round()
    await me.reconciler.round()
    assert world.states() == {}


async def test_two_replicas_and_one_of_them_writes() -> None:
    world = BindingWorld(1)
    me, other = await world.replica("a"), await world.replica("b")
    await bound(world, me)
    await other.reconciler.round()
    assert other.sink.changes == []
    assert other.use.use("another", None).busy == {GPU}
    assert [x.code for x in (await other.bind(world.pod("next"))).refusals] == [ReasonCode.GPU_BUSY]


async def test_writes_that_fail_or_come_too_late() -> None:
    world = BindingWorld(1)
    store = FaultyLedgerStore(world.store)
    me = await world.replica(store=store)
    name = await bound(world, me)
    end(world, name)
    store.faults = ["before"]
    await me.reconciler.round()
    assert world.states() == {GPU: ["Confirmed"]}
    other = await world.replica("b")
    assert world.states() == {GPU: ["Releasing"]}
    assert [x.state for x in other.sink.changes] == [HolderState.RELEASING]
    assert "failed" in me.sink.writes


class DeafStore(MemoryLedgerStore):
    """Cannot be read while `is_deaf`."""

    is_deaf = False

    async def load(self) -> LedgerSnapshot:
        if self.is_deaf:
            raise LedgerUnavailableError("the disk is away")
        return await super().load()


async def test_a_ledger_that_cannot_be_read_moves_nothing() -> None:
    store = DeafStore()
    world = BindingWorld(1, store=store)
    me = await world.replica()
    name = await bound(world, me)
    end(world, name)
    store.is_deaf = True
    await me.reconciler.round()
    assert me.sink.errors[-1] == "the disk is away"
    assert world.states() == {GPU: ["Confirmed"]}
    store.is_deaf = False
    me.reconciler.pod_changed(f"uid-{name}", gone=False)
    await me.reconciler.round()
    assert me.sink.errors[-1] == ""
    assert world.states() == {GPU: ["Releasing"]}


async def test_a_pod_that_was_denied_is_tried_again_when_it_is_over_and_no_other() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    me.changes = {"not_ready": "for a while"}
    await me.bind(world.pod("train-0"))
    await me.reconciler.round()
    assert world.pods.requeues == []
    world.clock.advance(6)
    await me.reconciler.round()
    assert world.pods.requeues == ["train-0"]
    await me.reconciler.round()
    assert (world.pods.requeues, me.woken) == (["train-0"], [])


async def test_a_pod_that_only_its_author_can_cure_is_not_tried_again() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    world.pod("train-0")
    world.pods.stored["train-0"]["spec"]["hostPID"] = True
    assert (await me.bind("train-0")).refusals
    world.clock.advance(6)
    await me.reconciler.round()
    assert (world.pods.requeues, me.woken) == ([], [])
    assert me.denials.of_pod("uid-train-0", world.clock.boottime_ns()) is not None


async def test_a_deleted_node_lets_go_after_its_grace() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    await bound(world, me)
    world.gone[NODE] = NodeGone(world.clock.boottime_ns())
    for _ in range(11):
        await me.reconciler.round()
    assert world.states() == {GPU: ["Releasing"]}
    world.clock.advance(301)
    await me.reconciler.round()
    assert world.states() == {}


async def test_a_live_pod_without_a_record_gets_it_again_before_anything_is_granted() -> None:
    world = BindingWorld(2)
    first = await world.replica()
    await bound(world, first)
    world.store = MemoryLedgerStore()
    me = Replica(world, world.store, "b")
    world.report()
    world.pods.down = True
    await me.stand()
    world.report()
    verdict = await me.bind(world.pod("next"))
    assert [x.code for x in verdict.refusals] == [ReasonCode.CONTROLLER_NOT_READY]
    assert me.sink.drift == {DriftKind.POD_UNRECORDED: 1}
    world.pods.down = False
    for _ in range(11):
        await me.reconciler.round()
    assert me.sink.restored_pods == [f"train-0 {GPU}"]
    assert world.states() == {GPU: ["Confirmed"]}
    for _ in range(11):
        await me.reconciler.round()
    assert me.sink.drift == {}
    assert world.lands("next", await me.bind("next"))
    assert world.assigned()["next"] == (f"GPU-{NODE}-1",)


async def test_a_pod_that_only_says_so_is_not_restored() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    name = await bound(world, me)
    pod = world.pods.stored[name]
    pod["metadata"]["uid"] = "uid-copy"
    world.pods.put(pod)
    world.store = MemoryLedgerStore()
    fresh = Replica(world, world.store, "b")
    await fresh.stand()
    assert fresh.sink.drift == {}
    assert world.states() == {}


async def test_a_pod_that_has_just_gone_is_not_restored() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    name = await bound(world, me)
    world.store = MemoryLedgerStore()
    fresh = Replica(world, world.store, "b")
    del world.pods.stored[name]
    await fresh.stand()
    assert fresh.sink.drift == {DriftKind.POD_UNRECORDED: 1}
    assert world.states() == {}


async def test_a_pod_that_ends_while_the_ledger_is_read_is_no_drift() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    name = await bound(world, me)
    alive, before = world.pods.stored[name], world.pods.live()
    end(world, name)
    me.reconciler.pod_changed(f"uid-{name}", gone=False)
    await me.reconciler.round()
    assert world.states() == {GPU: ["Releasing"]}
    reconcile = me.reconciler.reconciliation.reconcile
    await reconcile(before, world.clock.boottime_ns())
    assert me.sink.drift == {}
    world.pods.put(alive)
    await reconcile(before, world.clock.boottime_ns())
    assert me.sink.drift == {DriftKind.POD_ALIVE: 1}


class RestoredStore(MemoryLedgerStore):
    """Shows an older copy when it is told to."""

    older: LedgerSnapshot | None = None

    def snapshot(self) -> LedgerSnapshot:
        return self.older or super().snapshot()


async def test_where_history_went_back_nothing_is_granted_for_a_while() -> None:
    store = RestoredStore()
    world = BindingWorld(2, store=store)
    me = await world.replica()
    await me.bind(world.pod("train-0"))
    before = store.snapshot()
    await me.bind("train-0")
    await me.reconciler.round()
    store.older = before
    await me.reconciler.round()
    assert me.sink.rollbacks == [frozenset({GPU})]
    assert world.pods.rereads == 1
    world.report()
    verdict = await me.bind(world.pod("next"))
    assert [x.code for x in verdict.refusals] == [ReasonCode.CONTROLLER_NOT_READY]
    me.reconciliation.pods_listed(world.clock.boottime_ns())
    await me.reconciler.round()
    world.report()
    assert (await me.bind("next")).patch


def test_ground_is_firm_once_all_was_compared() -> None:
    world = BindingWorld()
    me = Replica(world, world.store, "a")
    startup_reconciler: StartupReconciler = me.reconciliation
    assert not startup_reconciler.is_firm
    startup_reconciler.pods_listed(world.clock.boottime_ns())
    startup_reconciler.ledger_read(world.clock.boottime_ns())
    assert not startup_reconciler.is_firm


async def test_a_process_of_a_pod_without_a_reservation_blocks_its_gpu() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    world.report(GpuProcess(GPU, 7, "uid-of-nobody"))
    verdict = await me.bind(world.pod("train-0"))
    assert [x.code for x in verdict.refusals] == [ReasonCode.GPU_BUSY]
