"""An operator releases a GPU of a silent node: races, a crash between two steps, what is told."""

import asyncio
from dataclasses import replace

import pytest

from controller.binding.operator_release import ReleaseDone
from controller.binding.records import ReleaseOrder
from controller.ledger.record import GpuRecord, HolderState
from controller.ledger.restore import Grants
from controller.ledger.store import Entry, LedgerUnavailableError
from controller.operations.logged import open_grants
from gpuwarden.audit.record import RecordKind
from gpuwarden.evidence.model import GpuProcess
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.bindings import NODE
from tests.builders.logged import logged
from tests.fakes.binding_world import BindingWorld, Replica
from tests.fakes.clock import FakeClock
from tests.fakes.eventually import eventually
from tests.fakes.ledger_store import MemoryLedgerStore
from tests.fakes.shared_ledger import KINDS, shared_ledger

GPU = f"GPU-{NODE}-0"
WHO = "spiffe://example.org/gpuwarden/operator/ann"
LEASE_S = 90


async def left_behind(world: BindingWorld, me: Replica, *, silent: bool = True) -> str:
    """A pod was deleted by force, and its node says nothing any more; the reservation."""
    assert world.lands(world.pod("train-0"), await me.bind("train-0"))
    await me.reconciler.round()
    del world.pods.stored["train-0"]
    world.pods.catch_up()
    me.reconciler.pod_changed("uid-train-0", gone=True)
    await me.reconciler.round()
    assert world.states() == {GPU: ["Releasing"]}
    if silent:
        world.clock.advance(LEASE_S + 1)
    found = world.store.snapshot().get(GPU)
    assert found is not None
    return found.record.holders[0].reservation


def order(reservation: str) -> ReleaseOrder:
    return ReleaseOrder(GPU, reservation, "burnt down, ticket 7", WHO)


def code(found: ReleaseDone | Refusal) -> ReasonCode | None:
    return found.code if isinstance(found, Refusal) else None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_gpu_of_a_silent_node_is_released_and_given_to_the_next_pod(kind: str) -> None:
    clock, opened = FakeClock(), shared_ledger(kind)
    world = BindingWorld(1, store=opened(), clock=clock)
    me, other = await world.replica(), await world.replica("b", opened())
    mine = await left_behind(world, me)
    for _ in range(5):
        await me.reconciler.round()
        await other.reconciler.round()
    assert world.states() == {GPU: ["Releasing"]}
    assert await me.releases.release(order(mine)) == ReleaseDone(NODE, "team-a", "train-0")
    assert world.states() == {}
    assert me.woken == [NODE]
    told = me.sink.changes[-1]
    assert (told.state, told.actor) == (HolderState.RELEASED, WHO)
    assert told.cause == "an operator said so: burnt down, ticket 7"
    assert me.sink.writes[-1] == "written"
    assert me.sink.orders == [None]
    for _ in range(11):
        await other.reconciler.round()
        await me.reconciler.round()
    assert world.states() == {}
    assert other.sink.log[-1].kind is RecordKind.RESERVATION_ENDED
    assert await other.releases.release(order(mine)) == ReleaseDone(already=True)
    world.report()
    assert world.lands(world.pod("next"), await other.bind("next"))


async def test_nothing_happens_before_the_record_is_durable() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    mine = await left_behind(world, me)
    me.audit.asked.clear()
    me.audit.held = asyncio.Event()
    acting = asyncio.create_task(me.releases.release(order(mine)))
    await me.audit.asked.wait()
    assert world.states() == {GPU: ["Releasing"]}
    acting.cancel()
    me.audit.held.set()
    with pytest.raises(asyncio.CancelledError):
        await acting

    async def ended() -> bool | None:
        return bool(me.sink.orders) or None

    await eventually(ended, "the order is carried out")
    assert world.states() == {}
    record = me.audit.granted[-1]
    assert (record.kind, record.actor, record.subject, record.decision) == (
        RecordKind.RESERVATION_OPERATOR,
        WHO,
        "pod/team-a/train-0",
        "released",
    )
    assert record.refs == {
        "reason": "burnt down, ticket 7",
        "uid": "uid-train-0",
        "node": NODE,
        "reservation": mine,
        "gpus": [GPU],
        "evidence": None,
    }


async def test_without_its_record_it_is_not_done() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    mine = await left_behind(world, me)
    me.audit.broken = True
    found = await me.releases.release(order(mine))
    assert code(found) is ReasonCode.AUDIT_UNAVAILABLE
    assert world.states() == {GPU: ["Releasing"]}
    assert me.sink.orders == [ReasonCode.AUDIT_UNAVAILABLE]


async def test_a_node_that_shows_the_pod_is_not_contradicted() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    mine = await left_behind(world, me, silent=False)
    world.report(GpuProcess(GPU, 7, "uid-train-0"))
    found = await me.releases.release(order(mine))
    assert found == Refusal(
        ReasonCode.RESERVATION_IN_USE, f"{NODE} shows a process of the pod on {GPU}"
    )
    assert world.states() == {GPU: ["Releasing"]}
    record = me.audit.noted[-1]
    assert (record.kind, record.decision, record.codes) == (
        RecordKind.RESERVATION_OPERATOR,
        "refused",
        ("RESERVATION_IN_USE",),
    )
    assert record.refs["detail"] == f"{NODE} shows a process of the pod on {GPU}"
    world.clock.advance(LEASE_S)
    assert code(await me.releases.release(order(mine))) is None
    assert world.states() == {}


async def test_a_wrong_manual_override_is_noticed_once_the_node_reports_again() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    mine = await left_behind(world, me)
    assert code(await me.releases.release(order(mine))) is None
    world.report(GpuProcess(GPU, 7, "uid-train-0"))
    world.pod("next")
    assert [x.code for x in (await me.bind("next")).refusals] == [ReasonCode.GPU_BUSY]


async def test_the_evidence_that_does_not_contradict_is_named() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    mine = await left_behind(world, me, silent=False)
    assert code(await me.releases.release(order(mine))) is None
    view = world.fleet.nodes[NODE]
    assert view.acceptance is not None
    assert me.audit.granted[-1].refs["evidence"] == view.acceptance.evidence_digest


async def test_a_pod_that_lives_keeps_its_gpu_and_so_while_nobody_can_say() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    assert world.lands(world.pod("train-0"), await me.bind("train-0"))
    pod = world.pods.stored["train-0"]
    mine = await left_behind(world, me)
    world.pods.put(pod)
    assert code(await me.releases.release(order(mine))) is ReasonCode.RESERVATION_IN_FORCE
    del world.pods.stored["train-0"]
    world.pods.down = True
    assert code(await me.releases.release(order(mine))) is ReasonCode.LEDGER_UNAVAILABLE
    assert world.states() == {GPU: ["Releasing"]}


async def test_a_controller_that_has_not_heard_every_node_yet_releases_nothing() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    mine = await left_behind(world, me)
    me.not_ready = "first round"
    found = await me.releases.release(order(mine))
    assert found == Refusal(ReasonCode.CONTROLLER_NOT_READY, "first round")
    assert world.states() == {GPU: ["Releasing"]}


async def test_twice_is_once() -> None:
    world = BindingWorld(1)
    me, other = await world.replica(), await world.replica("b")
    mine = await left_behind(world, me)
    found = await asyncio.gather(
        me.releases.release(order(mine)), other.releases.release(order(mine))
    )
    assert ReleaseDone(NODE, "team-a", "train-0") in found
    assert ReleaseDone(already=True) in found
    assert await me.releases.release(order(mine)) == ReleaseDone(already=True)
    changes = [x for x in (*me.sink.changes, *other.sink.changes) if x.state.is_end]
    assert len(changes) == 1
    assert {*me.sink.orders, *other.sink.orders} == {None}


class Changing(MemoryLedgerStore):
    """Somebody else is faster, so many times; or a write has no answer."""

    faster = 0
    away = False

    async def compare_and_set(self, old: Entry | None, new: GpuRecord) -> bool:
        if self.away:
            raise LedgerUnavailableError("gone")
        if self.faster:
            self.faster -= 1
            return False
        return await super().compare_and_set(old, new)


@pytest.mark.parametrize(
    ("faster", "expected"), [(7, None), (8, ReasonCode.LEDGER_CONFLICT)], ids=["in time", "never"]
)
async def test_who_was_overtaken_decides_again(faster: int, expected: ReasonCode | None) -> None:
    store = Changing()
    world = BindingWorld(1, store=store)
    me = await world.replica()
    mine = await left_behind(world, me)
    store.faster = faster
    assert code(await me.releases.release(order(mine))) is expected
    assert me.sink.writes.count("overtaken") == faster


async def test_a_pod_that_is_there_again_when_the_record_is_durable_keeps_its_gpu() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    assert world.lands(world.pod("train-0"), await me.bind("train-0"))
    pod = world.pods.stored["train-0"]
    mine = await left_behind(world, me)
    me.audit.asked.clear()
    me.audit.held = asyncio.Event()
    acting = asyncio.create_task(me.releases.release(order(mine)))
    await me.audit.asked.wait()
    world.pods.put(pod)
    me.audit.held.set()
    assert code(await acting) is ReasonCode.RESERVATION_IN_FORCE
    assert world.states() == {GPU: ["Releasing"]}


async def test_a_write_without_an_answer_may_be_done() -> None:
    store = Changing()
    world = BindingWorld(1, store=store)
    me = await world.replica()
    mine = await left_behind(world, me)
    store.away = True
    found = await me.releases.release(order(mine))
    assert found == Refusal(ReasonCode.LEDGER_UNAVAILABLE, "gone; ask again, it may be done")
    assert me.sink.writes[-1] == "failed"


async def test_after_a_restart_it_is_not_restored_from_the_log() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    mine = await left_behind(world, me)
    assert code(await me.releases.release(order(mine))) is None
    log = [*me.audit.granted, *me.sink.log]

    async def read() -> Grants:
        return open_grants(logged(*log))

    again = Replica(world, world.store, "b", log_replay=read)
    await again.stand()
    assert again.reconciliation.is_firm
    assert world.states() == {}


async def test_nor_by_a_replica_that_had_only_read_its_log() -> None:
    """It remembers what its log has; the release comes before it has compared everything."""
    world = BindingWorld(1)
    me = await world.replica()
    mine = await left_behind(world, me)
    log = [*me.audit.granted, *me.sink.log]

    async def read() -> Grants:
        return open_grants(logged(*log))

    late = Replica(world, world.store, "b", log_replay=read)
    await late.reconciler.round()
    before = late.reconciliation.is_firm
    assert code(await me.releases.release(order(mine))) is None
    await late.stand()
    assert (before, late.reconciliation.is_firm) == (False, True)
    assert world.states() == {}


async def test_an_attempt_s_end_is_none_of_what_the_log_has_as_bound() -> None:
    """The store was put back to before the pod was bound, and the attempt was taken away."""
    world = BindingWorld(1)
    me = await world.replica()
    await left_behind(world, me)
    log = [*me.audit.granted, *me.sink.log]
    copy = world.store.snapshot().get(GPU)
    assert copy is not None
    held = copy.record.holders[0]
    old = MemoryLedgerStore()
    attempt = GpuRecord(copy.record.gpu, NODE, (replace(held, state=HolderState.PROPOSED),))
    assert await old.compare_and_set(None, attempt)

    async def read() -> Grants:
        return open_grants(logged(*log))

    late = Replica(world, old, "b", log_replay=read)
    await late.reconciler.round()
    entry = await old.read(GPU)
    assert entry is not None
    await old.compare_and_set(entry, attempt.moved(held.reservation, HolderState.EXPIRED))
    await late.stand()
    found = await old.read(GPU)
    assert found is not None
    assert [x.state for x in found.record.holders] == [HolderState.RELEASING]
