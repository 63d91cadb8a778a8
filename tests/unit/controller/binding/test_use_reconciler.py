"""Replicas that compare reports with one ledger: what they write, tell, and have evicted."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from controller.binding.idle import Account, IdleChanges, Remembered
from controller.binding.use import FaultChanges, UseFault, UseFaultKind, UseReports
from controller.binding.use_reconciler import UseReconciler
from controller.binding.use_records import RememberedUse
from controller.fleet.view import FleetSnapshot, NodeView
from controller.ledger.record import HolderState, Origin, PodRef
from controller.ledger.release import GivenGpu
from controller.ledger.reservation_id import ReservationSubject
from controller.ledger.store import MOST_LOST, LedgerStore
from controller.policy import NodeMode
from tests.builders.bindings import IDS
from tests.builders.fleet_views import fleet
from tests.builders.ledger import CALL, OTHER_POD, holder, record
from tests.builders.node_use import NODE, SomeBoundPods, bound, device, node_with, ref
from tests.fakes.clock import FakeClock
from tests.fakes.ledger_store import FaultyLedgerStore, MemoryLedgerStore

S = 1_000_000_000


@dataclass
class Sink:
    settled_: list[GivenGpu] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    counts: Mapping[UseFaultKind, int] = field(default_factory=dict)
    evictions: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    idle_count: int = -1
    accounts: list[Mapping[str, Account]] = field(default_factory=list)

    def allocation_recorded(self, given: GivenGpu, reservation: str, evidence: str) -> None:
        subject = ReservationSubject(given.pod.namespace, given.node, (given.gpu,), given.pod.uid)
        assert IDS.is_authentic(reservation, subject)
        self.settled_.append(given)
        self.evidence.append(evidence)

    def wrote(self, result: str) -> None:
        self.writes.append(result)

    def compared(self, changes: FaultChanges, counts: Mapping[UseFaultKind, int]) -> None:
        self.begun += [f"{x.kind} {x.gpu}" for x in changes.begun]
        self.ended += [f"{x.kind} {x.gpu}" for x in changes.ended]
        self.counts = counts

    def idled(self, changes: IdleChanges, standing: int) -> None:
        self.idle += [f"idle {x.holding.gpu}" for x in changes.begun]
        self.idle += [f"ended {x.holding.gpu}" for x in changes.ended]
        self.idle_count = standing

    def accounted(self, accounts: Mapping[str, Account]) -> None:
        self.accounts.append(accounts)

    def evicted(self, pod: PodRef, error: str) -> None:
        self.evictions.append(f"{pod.name}: {error or 'evicted'}")


@dataclass
class Evictor:
    errors: list[str] = field(default_factory=list)
    asked: list[PodRef] = field(default_factory=list)

    async def evict(self, pod: PodRef) -> str:
        self.asked.append(pod)
        return self.errors.pop(0) if self.errors else ""


class World:
    """One node, its pods, and replicas around one store."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.fleet: FleetSnapshot = fleet()
        self.pods = SomeBoundPods([bound()])
        self.store = MemoryLedgerStore()
        self.evictor = Evictor()
        self.woken: list[str] = []
        self.firm = self.evicts = self.fits = True
        self.remembered = RememberedUse()
        self.log_is_broken = False

    def replica(
        self, store: LedgerStore | None = None, *, keys: bool = True
    ) -> tuple[UseReconciler, Sink]:
        sink = Sink()
        reports = UseReports(lambda: self.fleet)
        reconciler = UseReconciler(
            store=store or self.store,
            pods=self.pods,
            ids=IDS if keys else None,
            fleet=lambda: self.fleet,
            report=reports.of,
            fits=lambda _pod, _gpu: self.fits,
            is_firm=lambda: self.firm,
            may_evict=lambda: self.evicts,
            evictor=self.evictor,
            wake=self.woken.extend,
            sink=sink,
            boottime_ns=self.clock.boottime_ns,
            draw_call=lambda: CALL,
            recall=self.recall,
        )
        return reconciler, sink

    async def recall(self) -> RememberedUse:
        if self.log_is_broken:
            raise OSError("no log")
        return self.remembered

    def says(
        self,
        *devices: str,
        users: dict[str, set[str | None]] | None = None,
        mode: NodeMode = NodeMode.PLUGIN,
    ) -> None:
        """New evidence of the node: train-0 has these devices."""
        self.clock.advance(25)
        given = [device(gpu=x) for x in devices]
        made = node_with(*given, users=users, asked_ns=self.clock.boottime_ns(), mode=mode)
        self.show(made)
        self.clock.advance(1)

    def show(self, *nodes: NodeView) -> None:
        self.fleet = fleet(*nodes)

    async def rounds(self, use_reconciler: UseReconciler, *devices: str, count: int = 2) -> None:
        for _ in range(count):
            self.says(*devices)
            await use_reconciler.round()

    def held(self) -> dict[str, list[str | None]]:
        entries = self.store.snapshot().entries.values()
        return {x.record.gpu: [y.pod.uid for y in x.record.holders] for x in entries}


async def test_what_kubelet_gave_is_what_the_ledger_says() -> None:
    world = World()
    use_reconciler, sink = world.replica()
    await world.rounds(use_reconciler, "GPU-b", "GPU-a", count=1)
    assert world.held() == {}
    await world.rounds(use_reconciler, "GPU-b", "GPU-a")
    assert world.held() == {"GPU-a": ["uid-train-0"], "GPU-b": ["uid-train-0"]}
    assert sink.settled_ == [GivenGpu(ref(), NODE, x) for x in ("GPU-a", "GPU-b")]
    assert sink.evidence == ["e" * 64] * 2
    assert sink.writes == ["written", "written"]
    assert (sink.begun, sink.ended) == ([], [])
    (entry, *_) = world.store.snapshot().entries.values()
    assert entry.record.holders[0].state is HolderState.CONFIRMED


async def test_the_same_evidence_is_looked_at_once() -> None:
    world = World()
    use_reconciler, _ = world.replica()
    world.says("GPU-a")
    for _ in range(3):
        await use_reconciler.round()
    assert world.held() == {}


async def test_a_report_that_says_more_only_adds() -> None:
    world = World()
    use_reconciler, _ = world.replica()
    await world.rounds(use_reconciler, "GPU-a")
    await world.rounds(use_reconciler, "GPU-a", "GPU-b")
    await world.rounds(use_reconciler, "GPU-b")
    assert world.held() == {"GPU-a": ["uid-train-0"], "GPU-b": ["uid-train-0"]}


async def test_two_replicas_write_one_record() -> None:
    world = World()
    (one, told), (other, heard) = world.replica(), world.replica()
    for _ in range(3):
        world.says("GPU-a")
        await one.round()
        await other.round()
    assert world.held() == {"GPU-a": ["uid-train-0"]}
    assert (len(told.settled_), len(heard.settled_)) == (1, 0)


class Overtaken(MemoryLedgerStore):
    """The other replica writes between a decision and its write."""

    async def compare_and_set(self, old: object, new: object) -> bool:
        if self._snapshot.get("GPU-a") is None:
            await super().compare_and_set(None, record(holder(pod=OTHER_POD)))
        return await super().compare_and_set(old, new)  # type: ignore[arg-type] # handed on


async def test_who_is_overtaken_decides_again() -> None:
    world = World()
    world.store = Overtaken()
    use_reconciler, sink = world.replica()
    await world.rounds(use_reconciler, "GPU-a")
    assert sink.writes == ["overtaken", "written"]
    assert world.held() == {"GPU-a": ["uid-1", "uid-train-0"]}
    for entry in world.store.snapshot().entries.values():
        entry.record.demand_valid()


async def test_a_store_that_is_away_is_no_fault_of_the_node() -> None:
    world = World()
    lost = 3 * (MOST_LOST + 1)
    use_reconciler, sink = world.replica(FaultyLedgerStore(world.store, *["before"] * lost))
    await world.rounds(use_reconciler, "GPU-a", count=4)
    assert sink.writes == ["failed"] * lost
    assert (world.held(), sink.begun) == ({}, [])
    await world.rounds(use_reconciler, "GPU-a", count=1)
    assert world.held() == {"GPU-a": ["uid-train-0"]}


async def test_a_lost_answer_writes_no_second_record() -> None:
    world = World()
    use_reconciler, sink = world.replica(FaultyLedgerStore(world.store, "after"))
    await world.rounds(use_reconciler, "GPU-a", count=3)
    assert world.held() == {"GPU-a": ["uid-train-0"]}
    assert sink.writes == ["failed"]


async def test_without_keys_no_allocation_is_recorded_and_it_is_reported() -> None:
    world = World()
    use_reconciler, sink = world.replica(keys=False)
    await world.rounds(use_reconciler, "GPU-a", count=3)
    assert world.held() == {}
    assert sink.begun == ["unreserved_use GPU-a"]


async def test_a_pod_that_follows_another_on_a_gpu_is_no_unreserved_use() -> None:
    """While the pod before is released, its node is asked twice within the second of a round."""
    world = World()
    ending = holder(pod=ref("job-a"), origin=Origin.KUBELET, state=HolderState.RELEASING)
    assert await world.store.compare_and_set(None, record(replace(ending, restored=True)))
    use_reconciler, sink = world.replica()
    begin_ns, now_ns = world.clock.boottime_ns(), 0
    for asked_ms, looked_at_ms in ((0, 700), (500, 1_700), (25_500, 26_700)):
        world.show(node_with(device(), asked_ns=begin_ns + asked_ms * 1_000_000))
        world.clock.advance((looked_at_ms - now_ns) / 1000)
        now_ns = looked_at_ms
        await use_reconciler.round()
        assert sink.begun == []
    assert world.held() == {"GPU-a": ["uid-job-a", "uid-train-0"]}


async def test_what_cannot_be_recorded_is_reported_all_the_same() -> None:
    world = World()
    elsewhere = replace(record(holder(pod=OTHER_POD)), node="gpu-2")
    assert await world.store.compare_and_set(None, elsewhere)
    use_reconciler, sink = world.replica()
    await world.rounds(use_reconciler, "GPU-a")
    assert sink.begun == []
    await world.rounds(use_reconciler, "GPU-a", count=1)
    assert sink.begun == ["unreserved_use GPU-a"]


async def test_nothing_is_done_before_ledger_and_pods_were_read() -> None:
    world = World()
    world.firm = False
    use_reconciler, sink = world.replica()
    await world.rounds(use_reconciler, "GPU-a", count=4)
    assert (world.held(), sink.begun) == ({}, [])


async def test_evidence_that_is_too_old_says_nothing() -> None:
    world = World()
    use_reconciler, _ = world.replica()
    await world.rounds(use_reconciler, "GPU-a", count=1)
    world.says("GPU-a")
    world.clock.advance(90)
    await use_reconciler.round()
    assert world.held() == {}


async def test_on_an_env_node_no_allocation_is_recorded() -> None:
    world = World()
    use_reconciler, sink = world.replica()
    for _ in range(3):
        world.says("GPU-a", mode=NodeMode.ENV)
        await use_reconciler.round()
    assert world.held() == {}
    assert sorted(sink.begun) == ["unreserved ", "unreserved_use GPU-a"]


async def test_a_disagreement_is_reported_once_and_its_end_too() -> None:
    world = World()
    world.pods.pods.clear()
    use_reconciler, sink = world.replica()
    await world.rounds(use_reconciler, "GPU-a", count=5)
    assert sink.begun == ["unreserved_use GPU-a"]
    assert sink.counts == {UseFaultKind.UNRESERVED_USE: 1}
    await world.rounds(use_reconciler, count=4)
    assert (sink.ended, sink.counts) == (["unreserved_use GPU-a"], {})


async def test_a_node_that_is_gone_ends_what_stood() -> None:
    world = World()
    world.pods.pods.clear()
    use_reconciler, sink = world.replica()
    await world.rounds(use_reconciler, "GPU-a")
    world.show()
    await use_reconciler.round()
    assert sink.ended == ["unreserved_use GPU-a"]


async def test_a_fault_of_a_silent_node_ends_when_its_pod_is_gone() -> None:
    world = World()
    world.fits = world.evicts = False
    use_reconciler, sink = world.replica()
    await world.rounds(use_reconciler, "GPU-a", count=4)
    assert sink.begun == ["unfit_gpu GPU-a"]
    (pod,) = world.pods.pods
    world.pods.pods.clear()
    await use_reconciler.round()
    assert sink.ended == []  # its next report tells
    world.pods.pods.append(pod)
    world.clock.advance(3600)
    await use_reconciler.round()
    assert sink.ended == []
    world.pods.pods[:] = [bound(uid="another")]
    await use_reconciler.round()
    assert (sink.ended, sink.counts) == (["unfit_gpu GPU-a"], {})
    assert use_reconciler.now().faults == ()
    await use_reconciler.round()
    assert sink.ended == ["unfit_gpu GPU-a"]


async def test_a_fault_of_a_silent_node_without_a_known_pod_stays() -> None:
    world = World()
    world.pods.pods.clear()
    use_reconciler, sink = world.replica()
    for _ in range(2):
        world.says("GPU-a", users={"GPU-b": {"uid-x", None}})
        await use_reconciler.round()
    assert len(sink.begun) == 3
    world.clock.advance(3600)
    await use_reconciler.round()
    assert (sink.ended, len(use_reconciler.now().faults)) == ([], 3)


async def test_a_pod_with_a_gpu_that_it_must_not_have_is_evicted_where_the_policy_says_so() -> None:
    world = World()
    world.fits = world.evicts = False
    world.evictor.errors = ["a disruption budget is against it"]
    use_reconciler, sink = world.replica()
    await world.rounds(use_reconciler, "GPU-a", count=4)
    assert sink.begun == ["unfit_gpu GPU-a"]
    assert world.evictor.asked == []
    world.evicts = True
    await use_reconciler.round()
    await use_reconciler.round()
    assert sink.evictions == ["train-0: a disruption budget is against it"]
    await world.rounds(use_reconciler, "GPU-a", count=6)
    assert sink.evictions[1:] == ["train-0: evicted"]
    assert world.evictor.asked == [ref(), ref()]


async def test_pods_are_tried_again_where_what_had_no_record_has_ended() -> None:
    world = World()
    use_reconciler, _ = world.replica()
    world.says(users={"GPU-a": {"uid-x"}}, mode=NodeMode.ENV)
    await use_reconciler.round()
    world.says(users={"GPU-a": {"uid-x"}, "GPU-b": {"uid-x"}}, mode=NodeMode.ENV)
    await use_reconciler.round()
    assert world.woken == []
    world.says(users={"GPU-b": {"uid-x"}}, mode=NodeMode.ENV)
    await use_reconciler.round()
    assert world.woken == [NODE]
    world.says("GPU-b", mode=NodeMode.ENV)
    await use_reconciler.round()
    assert world.woken == [NODE]
    world.says(mode=NodeMode.ENV)
    await use_reconciler.round()
    assert world.woken == [NODE, NODE]


async def test_what_had_a_record_or_was_kubelets_to_count_wakes_nobody() -> None:
    world = World()
    use_reconciler, _ = world.replica()
    part = record(holder("GPU-a"), gpu="GPU-a")
    assert await world.store.compare_and_set(None, part)
    world.says(users={"GPU-a": {"uid-0"}}, mode=NodeMode.ENV)
    await use_reconciler.round()
    world.says(mode=NodeMode.ENV)
    await use_reconciler.round()
    world.says(users={"GPU-b": {"uid-x"}})
    await use_reconciler.round()
    world.says()
    await use_reconciler.round()
    assert world.woken == []


async def test_of_a_node_that_is_gone_nothing_is_remembered() -> None:
    world = World()
    use_reconciler, _ = world.replica()
    world.says(users={"GPU-a": {"uid-x"}}, mode=NodeMode.ENV)
    await use_reconciler.round()
    world.show()
    await use_reconciler.round()
    world.says(mode=NodeMode.ENV)
    await use_reconciler.round()
    assert world.woken == []


# --- idle reservations


async def reserved(world: World, gpu: str = "GPU-a") -> None:
    part = record(holder(gpu, state=HolderState.CONFIRMED), gpu=gpu)
    assert await world.store.compare_and_set(None, part)


async def idle_for(world: World, use_reconciler: UseReconciler, rounds: int) -> None:
    """Each round is 26 s after the one before."""
    for _ in range(rounds):
        world.says(mode=NodeMode.ENV)
        await use_reconciler.round()


async def test_a_reserved_gpu_that_nobody_uses_is_told_after_a_while_and_when_it_ends() -> None:
    world = World()
    use_reconciler, sink = world.replica()
    await reserved(world)
    await idle_for(world, use_reconciler, 35)
    assert (sink.idle, use_reconciler.now().idle) == ([], ())
    await idle_for(world, use_reconciler, 1)
    assert (sink.idle, sink.idle_count) == (["idle GPU-a"], 1)
    (idle,) = use_reconciler.now().idle
    assert (idle.holding.pod.name, idle.holding.node) == ("train-0", NODE)
    assert use_reconciler.now().accounts == {"team-a": Account(35 * 26 * S, 35 * 26 * S)}
    world.says(users={"GPU-a": {"uid-0"}}, mode=NodeMode.ENV)
    await use_reconciler.round()
    assert (sink.idle, sink.idle_count) == (["idle GPU-a", "ended GPU-a"], 0)


async def test_a_static_pod_is_known_by_the_uid_that_its_node_has_of_it() -> None:
    world = World()
    use_reconciler, _ = world.replica()
    world.pods.static["0" * 32] = bound(uid="uid-0")
    await reserved(world)
    for _ in range(40):
        world.says(users={"GPU-a": {"0" * 32}}, mode=NodeMode.ENV)
        await use_reconciler.round()
    assert use_reconciler.now().idle == ()


async def test_idle_gpus_of_a_node_that_is_gone_are_told_as_ended() -> None:
    world = World()
    use_reconciler, sink = world.replica()
    await reserved(world)
    await idle_for(world, use_reconciler, 36)
    world.show()
    await use_reconciler.round()
    assert sink.idle == ["idle GPU-a", "ended GPU-a"]


@pytest.mark.parametrize("state", [HolderState.RELEASING, HolderState.RELEASED])
async def test_an_idle_gpu_of_a_silent_node_ends_with_its_reservation(state: HolderState) -> None:
    world = World()
    use_reconciler, sink = world.replica()
    await reserved(world)
    await idle_for(world, use_reconciler, 36)
    world.clock.advance(3600)
    await use_reconciler.round()
    assert (sink.idle, len(use_reconciler.now().idle)) == (["idle GPU-a"], 1)
    old = world.store.snapshot().get("GPU-a")
    assert old is not None
    (held,) = old.record.holders
    new = replace(old.record, holders=(replace(held, state=state),), version=9)
    assert await world.store.compare_and_set(old, new)
    await use_reconciler.round()
    assert (sink.idle, sink.idle_count) == (["idle GPU-a", "ended GPU-a"], 0)
    assert use_reconciler.now().idle == ()


async def test_accounts_are_told_now_and_then_and_at_the_end() -> None:
    world = World()
    use_reconciler, sink = world.replica()
    await reserved(world)
    await idle_for(world, use_reconciler, 36)
    assert sink.accounts == [{"team-a": Account(35 * 26 * S, 35 * 26 * S)}]
    await idle_for(world, use_reconciler, 1)
    following = asyncio.create_task(use_reconciler.follow())
    await asyncio.sleep(0)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert sink.accounts[1:] == [{"team-a": Account(26 * S, 26 * S)}]


async def test_what_the_log_remembers_goes_on() -> None:
    world = World()
    key = ("gpu-a", holder().reservation)
    before = Remembered({"team-b": Account(5, 4)}, {key: 77}, "2026-01-01T00:00:00Z")
    world.remembered = RememberedUse(before)
    use_reconciler, sink = world.replica()
    await reserved(world)
    await idle_for(world, use_reconciler, 1)
    now = use_reconciler.now()
    assert [x.since_wall_ns for x in now.idle] == [77]
    assert (sink.idle, sink.idle_count) == ([], 1)
    assert (now.accounts, now.since) == ({"team-b": Account(5, 4)}, "2026-01-01T00:00:00Z")


async def test_what_the_log_remembers_of_faults_goes_on() -> None:
    world = World()
    old = UseFault(UseFaultKind.UNRESERVED_USE, NODE, "GPU-a", None, "uid-x", since_wall_ns=77)
    world.remembered = RememberedUse(faults=(old,))
    use_reconciler, sink = world.replica()
    world.says(users={"GPU-a": {"uid-x"}}, mode=NodeMode.ENV)
    await use_reconciler.round()
    assert [(x, x.since_wall_ns) for x in use_reconciler.now().faults] == [(old, 77)]
    assert (sink.begun, sink.counts) == ([], {UseFaultKind.UNRESERVED_USE: 1})


async def test_without_a_readable_log_it_begins_from_zero() -> None:
    world = World()
    world.log_is_broken = True
    use_reconciler, _ = world.replica()
    await reserved(world)
    await idle_for(world, use_reconciler, 2)
    assert use_reconciler.now().accounts == {"team-a": Account(26 * S, 26 * S)}


async def test_standing_faults_have_the_time_of_the_first_report_that_shows_them() -> None:
    world = World()
    use_reconciler, _ = world.replica()
    for _ in range(3):
        world.says(users={"GPU-a": {"uid-x"}}, mode=NodeMode.ENV)
        await use_reconciler.round()
    first, *_ = use_reconciler.now().faults
    assert first.since_wall_ns == world.fleet.nodes[NODE].acceptance.accepted_wall_ns  # type: ignore[union-attr]
