import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from controller.fleet.enrollment import (
    AUTOMATIC,
    EnrollmentRecord,
    EnrollmentSnapshot,
    EnrollmentUnavailableError,
    MemoryEnrollmentStore,
    QuarantineEntry,
    write,
)
from controller.fleet.quarantine import QuarantineEntries, QuarantineFate
from controller.fleet.registry import FleetRegistry
from controller.fleet.trust import ChangeKind
from controller.fleet.view import NodeState, NodeView
from controller.operations.operator_service import Changes
from controller.operations.quarantine_reconciler import (
    LogReplayer,
    QuarantineReconciler,
    code_of,
    reason_of,
)
from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry import names
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.fakes.clock import FakeClock
from tests.hang import HANG_S

# --- What the store says about denials is what the fleet does, and only that lets a node try agai

SWAPPED = QuarantineEntry("INVENTORY_CHANGED", "a card was swapped", AUTOMATIC, 1)
OPERATORS = QuarantineEntry("NODE_DENIED", "smells", "spiffe://x/operator/o", 2)


class Store(MemoryEnrollmentStore):
    gone = False
    refuses = False
    """Whether it can be read only."""

    def restore(self, records: Iterable[EnrollmentRecord]) -> None:
        self._snapshot = EnrollmentSnapshot.of(records)

    between: Callable[[], Awaitable[object]] | None = None
    """Happens while an answer is on its way."""

    async def load(self) -> EnrollmentSnapshot:
        if self.gone:
            raise EnrollmentUnavailableError("gone")
        answer = await super().load()
        between, self.between = self.between, None
        if between is not None:
            await between()
        return answer

    async def create_if_absent(self, record: EnrollmentRecord) -> bool:
        if self.gone or self.refuses:
            raise EnrollmentUnavailableError("gone")
        return await super().create_if_absent(record)


@dataclass
class Told:
    kinds: list[ChangeKind] = field(default_factory=list)
    fates: list[tuple[str, QuarantineEntry, QuarantineFate]] = field(default_factory=list)

    def changed(self, changes: Changes, actor: str) -> None:
        assert actor == AUTOMATIC
        self.kinds.extend(x.kind for x in changes)

    def denial(self, node: str, denial: QuarantineEntry, fate: QuarantineFate) -> None:
        self.fates.append((node, denial, fate))


class World:
    def __init__(self, *records: EnrollmentRecord, log_replay: LogReplayer | None = None) -> None:
        self.store = Store(records)
        self.noted: list[tuple[str, QuarantineEntry]] = []
        self.denials = QuarantineEntries(
            self.store, lambda node, denial: self.noted.append((node, denial))
        )
        self.fleet = FleetRegistry()
        self.told = Told()
        self.clock = FakeClock()
        self.instruments = Instruments(Process.CONTROLLER, "0")
        self.reconciler = self.followed(log_replay)

    def followed(self, log_replay: LogReplayer | None) -> QuarantineReconciler:
        """A reconciler."""
        return QuarantineReconciler(
            self.store,
            self.denials,
            self.fleet,
            clock=self.clock,
            observer=self.told,
            instruments=self.instruments,
            log_replay=log_replay,
        )

    async def stands(self, node: str, denial: QuarantineEntry) -> None:
        """Another replica denies."""
        old = self.store.snapshot().records.get(node)
        assert await write(self.store, old, (old or EnrollmentRecord(node)).denied(denial))

    async def lifted(self, node: str = "gpu-1") -> None:
        """An operator releases the node at another replica."""
        old = self.store.snapshot().records[node]
        assert await write(self.store, old, old.lifted(old.denial, "ann"))

    def now(self, node: str = "gpu-1") -> QuarantineEntry | None:
        """What the store says."""
        return self.store.snapshot().records[node].denial

    async def we_deny(self, node: str = "gpu-1") -> None:
        """As evidence or an operator of this replica does."""
        times = {"now_ns": self.clock.boottime_ns(), "wall_ns": 1}
        self.fleet.quarantine(node, code=ReasonCode.NODE_DENIED, reason="ours", **times)
        assert await self.denials.deny(node, SWAPPED)

    def view(self, node: str = "gpu-1") -> NodeView:
        return self.fleet.snapshot().nodes[node]

    def state(self, node: str = "gpu-1") -> NodeState:
        return self.view(node).state(self.clock.boottime_ns())

    def gauge(self, metric: names.Metric) -> float:
        text = self.instruments.render().decode()
        return float(next(x for x in text.splitlines() if x.startswith(f"{metric.name} "))[-3:])


async def test_a_denial_from_before_the_start_quarantines_with_its_cause() -> None:
    world = World(EnrollmentRecord("gpu-1", denial=SWAPPED), EnrollmentRecord("gpu-2"))
    await world.reconciler.begin()
    assert world.state() is NodeState.QUARANTINED
    blocked = world.view().blocked
    assert blocked is not None
    assert (blocked.code, blocked.detail) == (ReasonCode.INVENTORY_CHANGED, "a card was swapped")
    assert "gpu-2" not in world.fleet.snapshot().nodes
    assert world.gauge(names.NODES_QUARANTINED) == 1
    assert world.gauge(names.STORE_AVAILABLE) == 1


async def test_a_store_that_cannot_be_read_at_the_start_is_an_error() -> None:
    world = World()
    world.store.gone = True
    with pytest.raises(EnrollmentUnavailableError):
        await world.reconciler.begin()


async def test_a_denial_of_another_replica_takes_out_once() -> None:
    world = World()
    await world.reconciler.begin()
    await world.stands("gpu-1", OPERATORS)
    await world.reconciler.reconcile()
    await world.reconciler.reconcile()
    assert world.state() is NodeState.QUARANTINED
    assert world.told.kinds == [ChangeKind.QUARANTINED]
    blocked = world.view().blocked
    assert blocked is not None
    assert blocked.detail == "quarantined by spiffe://x/operator/o: smells"


async def test_a_denial_that_is_gone_lets_it_try_again() -> None:
    world = World(EnrollmentRecord("gpu-1", denial=SWAPPED))
    await world.reconciler.begin()
    await world.lifted()
    await world.reconciler.reconcile()
    assert world.state() is NodeState.REFUSED
    assert world.told.kinds[-1] is ChangeKind.RELEASED


async def test_a_quarantine_of_our_own_is_not_lifted_for_lack_of_a_denial() -> None:
    world = World(EnrollmentRecord("gpu-1"))
    await world.reconciler.begin()
    world.fleet.quarantine(
        "gpu-1", code=ReasonCode.DUPLICATE_AGENT, reason="two", now_ns=1, wall_ns=1
    )
    await world.reconciler.reconcile()
    assert world.state() is NodeState.QUARANTINED


async def test_a_release_by_another_replica_between_two_reads_lets_the_node_try() -> None:
    world = World(EnrollmentRecord("gpu-1"))
    await world.reconciler.begin()
    await world.we_deny()
    await world.lifted()
    await world.reconciler.reconcile()
    assert world.state() is NodeState.REFUSED
    assert world.told.kinds == [ChangeKind.RELEASED]
    await world.reconciler.reconcile()
    assert world.told.kinds == [ChangeKind.RELEASED]


@pytest.mark.parametrize("before", [None, SWAPPED])
async def test_an_answer_from_before_our_denial_lifts_nothing(
    before: QuarantineEntry | None,
) -> None:
    world = World(EnrollmentRecord("gpu-1", denial=before))
    await world.reconciler.begin()
    await world.lifted()
    world.store.between = world.we_deny
    await world.reconciler.reconcile()
    assert world.state() is NodeState.QUARANTINED
    await world.reconciler.reconcile()
    assert world.state() is NodeState.QUARANTINED
    await world.lifted()
    await world.reconciler.reconcile()
    assert world.state() is NodeState.REFUSED


async def test_a_newer_denial_that_could_not_be_written_keeps_it_out() -> None:
    world = World(EnrollmentRecord("gpu-1", denial=SWAPPED))
    await world.reconciler.begin()
    await world.lifted()
    world.denials._unwritten["gpu-1"] = OPERATORS
    await world.reconciler.reconcile()
    assert world.state() is NodeState.QUARANTINED
    assert world.store.snapshot().records["gpu-1"].denial == OPERATORS


@pytest.mark.parametrize(
    "older",
    [
        EnrollmentRecord("gpu-1"),
        EnrollmentRecord("gpu-1", lifted_ns=0),
        EnrollmentRecord("gpu-2"),
    ],
    ids=["never denied", "another denial lifted", "no record"],
)
async def test_a_denial_that_nobody_lifted_was_lost_and_is_written_again(
    older: EnrollmentRecord,
) -> None:
    world = World(EnrollmentRecord("gpu-1", denial=SWAPPED))
    await world.reconciler.begin()
    world.store.restore([older])
    await world.reconciler.reconcile()
    assert world.state() is NodeState.QUARANTINED
    assert world.now() == SWAPPED
    await world.reconciler.reconcile()
    assert world.told.kinds == [ChangeKind.QUARANTINED]
    assert [x for _, _, x in world.told.fates] == [QuarantineFate.EXISTS, QuarantineFate.LOST]
    await world.lifted()
    await world.reconciler.reconcile()
    assert world.state() is NodeState.REFUSED
    assert world.told.fates[-1] == ("gpu-1", SWAPPED, QuarantineFate.LIFTED)


async def test_a_denial_of_ours_that_is_lost_before_it_was_seen_is_written_again() -> None:
    world = World(EnrollmentRecord("gpu-1"))
    await world.reconciler.begin()
    await world.we_deny()
    world.store.restore([EnrollmentRecord("gpu-1")])
    await world.reconciler.reconcile()
    assert world.state() is NodeState.QUARANTINED
    assert world.now() == SWAPPED


async def test_a_lost_denial_that_cannot_be_written_keeps_the_node_out() -> None:
    world = World(EnrollmentRecord("gpu-1", denial=SWAPPED))
    await world.reconciler.begin()
    world.store.restore([])
    world.store.refuses = True
    for _ in range(3):
        await world.reconciler.reconcile()
    assert dict(world.store.snapshot().records) == {}
    assert world.state() is NodeState.QUARANTINED
    world.store.refuses = False
    await world.reconciler.reconcile()
    assert world.now() == SWAPPED


async def test_a_denial_of_ours_is_noted_at_once_and_once() -> None:
    world = World()
    await world.reconciler.begin()
    world.store.gone = True
    assert not await world.denials.deny("gpu-1", OPERATORS)
    assert world.noted == [("gpu-1", OPERATORS)]
    world.store.gone = False
    await world.reconciler.reconcile()
    assert await world.denials.deny("gpu-1", SWAPPED)
    await world.reconciler.reconcile()
    assert world.now() == OPERATORS
    assert world.noted == [("gpu-1", OPERATORS)]
    assert world.told.fates == []
    await world.lifted()
    await world.reconciler.reconcile()
    assert await world.denials.deny("gpu-1", SWAPPED)
    assert world.noted[1:] == [("gpu-1", replace(SWAPPED, wall_ns=OPERATORS.wall_ns + 1))]


async def test_of_two_quarantine_entries_the_one_that_is_kept_is_noted() -> None:
    world = World(EnrollmentRecord("gpu-1", denial=SWAPPED))
    await world.denials.deny("gpu-1", OPERATORS)
    assert world.noted == [("gpu-1", SWAPPED)]


async def test_the_log_knows_of_a_denial_that_the_store_has_lost() -> None:
    async def log_replay() -> Mapping[str, QuarantineEntry]:
        return {"gpu-1": OPERATORS, "gpu-2": SWAPPED}

    lifted = EnrollmentRecord("gpu-2", lifted_ns=SWAPPED.wall_ns)
    world = World(EnrollmentRecord("gpu-1"), lifted, log_replay=log_replay)
    await world.reconciler.begin()
    assert world.state() is NodeState.QUARANTINED
    assert world.now() == OPERATORS
    assert world.now("gpu-2") is None
    assert "gpu-2" not in world.fleet.snapshot().nodes


async def test_a_log_that_can_be_read_only_later_is_asked_again() -> None:
    answers: list[Mapping[str, QuarantineEntry] | OSError] = [OSError("away"), {"gpu-1": OPERATORS}]

    async def log_replay() -> Mapping[str, QuarantineEntry]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    world = World(EnrollmentRecord("gpu-1"), EnrollmentRecord("gpu-2", denial=SWAPPED))
    world.reconciler = world.followed(log_replay)
    await world.reconciler.begin()
    assert world.state("gpu-2") is NodeState.QUARANTINED
    assert "gpu-1" not in world.fleet.snapshot().nodes
    for _ in range(2):
        await world.reconciler.reconcile()
    assert world.state() is NodeState.QUARANTINED
    assert world.now() == OPERATORS


async def test_denials_of_a_node_have_an_order_whatever_the_clock_says() -> None:
    world = World(EnrollmentRecord("gpu-1", lifted_ns=100))
    await world.reconciler.begin()
    await world.stands("gpu-1", SWAPPED)
    await world.reconciler.reconcile()
    world.store.restore([EnrollmentRecord("gpu-1", lifted_ns=100)])
    await world.reconciler.reconcile()
    assert world.state() is NodeState.QUARANTINED
    assert world.now() == replace(SWAPPED, wall_ns=101)


async def test_a_node_that_was_forgotten_is_taken_out_again() -> None:
    world = World(EnrollmentRecord("gpu-1", denial=SWAPPED))
    await world.reconciler.begin()
    world.fleet.forget("gpu-1")
    await world.reconciler.reconcile()
    assert world.state() is NodeState.QUARANTINED


async def test_an_unreadable_store_changes_nothing_and_is_reported_once_each_way() -> None:
    world = World(EnrollmentRecord("gpu-1", denial=SWAPPED))
    await world.reconciler.begin()
    world.store.gone = True
    await world.reconciler.reconcile()
    await world.reconciler.reconcile()
    assert world.state() is NodeState.QUARANTINED
    assert world.gauge(names.STORE_AVAILABLE) == 0
    world.store.gone = False
    await world.reconciler.reconcile()
    assert world.gauge(names.STORE_AVAILABLE) == 1


async def test_what_could_not_be_written_is_written_later() -> None:
    world = World()
    world.store.gone = True
    assert not await world.denials.deny("gpu-1", SWAPPED)
    world.store.gone = False
    await world.reconciler.reconcile()
    await world.reconciler.reconcile()
    assert world.store.snapshot().records["gpu-1"].denial == SWAPPED
    assert world.state() is NodeState.QUARANTINED


async def test_it_looks_for_ever() -> None:
    world = World()
    await world.reconciler.begin()
    task = asyncio.create_task(world.reconciler.follow(0.001))
    await world.stands("gpu-1", SWAPPED)
    async with asyncio.timeout(HANG_S):
        while "gpu-1" not in world.fleet.snapshot().nodes:  # noqa: ASYNC110 - the task looks
            await asyncio.sleep(0.001)
    task.cancel()


def test_a_code_that_is_none_of_ours_is_shown_as_a_denial() -> None:
    assert code_of(replace(SWAPPED, code="SMELL")) is ReasonCode.NODE_DENIED
    assert code_of(SWAPPED) is ReasonCode.INVENTORY_CHANGED
    assert reason_of(SWAPPED) == "a card was swapped"
