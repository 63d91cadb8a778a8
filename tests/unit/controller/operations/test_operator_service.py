"""Audit before trust, trust away before audit, and what races make of an act."""

import asyncio
from dataclasses import dataclass, field, replace

import pytest

from controller.fleet.enrollment import (
    AUTOMATIC,
    Candidate,
    EnrolledGpu,
    EnrollmentRecord,
    EnrollmentUnavailableError,
    MemoryEnrollmentStore,
    QuarantineEntry,
)
from controller.fleet.faults import Fault
from controller.fleet.quarantine import Change, QuarantineEntries, QuarantineFate
from controller.fleet.registry import FleetRegistry
from controller.fleet.trust import ChangeKind, TrustChange
from controller.fleet.view import NodeState
from controller.operations.operator_service import Act, Done, OperatorService, Order
from controller.operations.quarantine_reconciler import QuarantineReconciler
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.fakes.clock import FakeClock
from tests.fakes.recording_audit import RecordingAudit
from tests.hang import HANG_S

# --- Audit before trust, trust away before audit, and what races make of an act

WHO = "spiffe://example.org/gpuwarden/operator/ann"
ORDER = Order("gpu-1", "card replaced, ticket 7", WHO)
OLD, NEW = EnrolledGpu("GPU-old", "1"), EnrolledGpu("GPU-new", "2")
CANDIDATE = Candidate("INVENTORY_CHANGED", None, None, (NEW,), "e" * 64)
DENIAL = QuarantineEntry("INVENTORY_CHANGED", "swapped", AUTOMATIC, 7, CANDIDATE)
RECORD = EnrollmentRecord("gpu-1", gpus=(OLD,), instance="a" * 32, denial=DENIAL)


class RacingStore(MemoryEnrollmentStore):
    """Before a write, somebody else may write `first`; or it is gone."""

    gone = False
    first: EnrollmentRecord | None = None
    losses = 0
    follower: QuarantineReconciler | None = None
    """Sees what is written before the answer to the write is there."""

    async def create_if_absent(self, record: EnrollmentRecord) -> bool:
        self._fail()
        return await super().create_if_absent(record)

    async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
        self._fail()
        if self.first is not None:
            first, self.first = self.first, None
            assert await super().compare_and_set(old, first)
        if self.losses:
            self.losses -= 1
            return False
        written = await super().compare_and_set(old, new)
        if self.follower is not None:
            await self.follower.reconcile()
        return written

    def _fail(self) -> None:
        if self.gone:
            raise EnrollmentUnavailableError("gone")


@dataclass
class Observed:
    acts: list[tuple[Act, ReasonCode | None]] = field(default_factory=list)
    changes: list[tuple[ChangeKind, str]] = field(default_factory=list)
    details: list[tuple[str, ReasonCode | None, str]] = field(default_factory=list)

    def acted(self, act: Act, order: Order, refusal: Refusal | None) -> None:
        assert order.reason
        self.acts.append((act, refusal.code if refusal else None))

    def changed(self, changes: tuple[TrustChange, ...], actor: str) -> None:
        self.changes.extend((x.kind, actor) for x in changes)
        self.details.extend((x.node, x.code, x.detail) for x in changes)

    def denial(self, node: str, denial: QuarantineEntry, fate: QuarantineFate) -> None:
        """What the reconciler sees in the store."""


class OperatorWorld:
    def __init__(self, *records: EnrollmentRecord) -> None:
        self.store = RacingStore(records)
        self.denials = QuarantineEntries(self.store)
        self.fleet = FleetRegistry()
        self.audit = RecordingAudit()
        self.clock = FakeClock()
        self.observed = Observed()
        self.workbench = OperatorService(
            self.store,
            self.denials,
            self.fleet,
            knows=lambda name: name == "silent",
            audit=self.audit,
            clock=self.clock,
            observer=self.observed,
        )
        for record in records:
            if record.denial is not None:
                self.quarantined(record.node)

    def quarantined(self, node: str) -> None:
        self.fleet.quarantine(
            node, code=ReasonCode.INVENTORY_CHANGED, reason="swapped", now_ns=1, wall_ns=1
        )

    @property
    def version(self) -> str:
        return self.workbench.shown("gpu-1").version

    @property
    def record(self) -> EnrollmentRecord:
        return self.store.snapshot().records["gpu-1"]

    def state(self, node: str = "gpu-1") -> NodeState:
        return self.fleet.snapshot().nodes[node].state(self.clock.boottime_ns())


def done(result: Done | Refusal) -> Done:
    assert isinstance(result, Done), result
    return result


def refused(result: Done | Refusal) -> ReasonCode:
    assert isinstance(result, Refusal), result
    return result.code


class TestAccept:
    async def test_enrolled_gpus_change_and_the_node_waits_for_evidence(self) -> None:
        world = OperatorWorld(RECORD)
        result = done(await world.workbench.accept(ORDER, world.version))
        assert world.record == replace(
            RECORD,
            gpus=(replace(NEW, enrolled=True),),
            denial=None,
            lifted_ns=DENIAL.wall_ns,
            lifted_by=WHO,
        )
        assert world.state() is NodeState.REFUSED
        assert [x.change for x in result.changes] == [Change.REMOVED, Change.ADDED]
        assert result.shown.denial is None
        assert world.observed.acts == [(Act.ACCEPT, None)]
        assert world.observed.changes == [(ChangeKind.RELEASED, WHO)]
        blocked = world.fleet.snapshot().nodes["gpu-1"].blocked
        assert blocked is not None
        assert blocked.detail.endswith(f"accepted by {WHO}: card replaced, ticket 7")

    async def test_the_record_says_who_what_and_why(self) -> None:
        world = OperatorWorld(RECORD)
        await world.workbench.accept(ORDER, world.version)
        [record] = world.audit.granted
        assert (record.kind, record.actor, record.subject, record.decision) == (
            RecordKind.NODE_OPERATOR,
            WHO,
            "node/gpu-1",
            "accepted",
        )
        assert record.codes == ("INVENTORY_CHANGED",)
        assert record.refs["reason"] == "card replaced, ticket 7"
        assert record.refs["changes"] == ["removed GPU-old 1 -", "added GPU-new - 2"]
        assert record.refs["denial"] == "controller: swapped"
        assert record.refs["evidence"] == "e" * 64
        assert record.refs["pinsBefore"] != record.refs["pinsAfter"]

    async def test_nothing_happens_before_the_record_is_durable(self) -> None:
        world = OperatorWorld(RECORD)
        world.audit.held = asyncio.Event()
        acting = asyncio.create_task(world.workbench.accept(ORDER, world.version))
        await world.audit.asked.wait()
        assert world.record == RECORD
        assert world.state() is NodeState.QUARANTINED
        world.audit.held.set()
        done(await acting)

    async def test_a_log_that_cannot_keep_it_refuses_it(self) -> None:
        world = OperatorWorld(RECORD)
        world.audit.broken = True
        assert refused(await world.workbench.accept(ORDER, world.version)) is (
            ReasonCode.AUDIT_UNAVAILABLE
        )
        assert world.record == RECORD
        assert world.state() is NodeState.QUARANTINED

    async def test_a_caller_that_leaves_does_not_stop_it_half_way(self) -> None:
        world = OperatorWorld(RECORD)
        world.audit.held = asyncio.Event()
        acting = asyncio.create_task(world.workbench.accept(ORDER, world.version))
        await world.audit.asked.wait()
        acting.cancel()
        await asyncio.wait({acting})
        world.audit.held.set()
        async with asyncio.timeout(HANG_S):
            while not world.observed.acts:  # noqa: ASYNC110 - the act goes on by itself
                await asyncio.sleep(0)
        assert world.record.denial is None
        assert world.state() is NodeState.REFUSED

    async def test_another_version_is_a_conflict_and_noted(self) -> None:
        world = OperatorWorld(RECORD)
        assert refused(await world.workbench.accept(ORDER, "x")) is ReasonCode.ENROLLMENT_CONFLICT
        assert world.record == RECORD
        [note] = world.audit.noted
        assert (note.kind, note.decision, note.codes) == (
            RecordKind.NODE_OPERATOR,
            "refused",
            ("ENROLLMENT_CONFLICT",),
        )
        assert note.refs["act"] == "accept"
        assert world.audit.granted == []

    async def test_what_changed_while_the_record_was_written_is_a_conflict(self) -> None:
        world = OperatorWorld(RECORD)
        world.store.first = replace(RECORD, denial=replace(DENIAL, reason="investigating"))
        assert refused(await world.workbench.accept(ORDER, world.version)) is (
            ReasonCode.ENROLLMENT_CONFLICT
        )
        assert world.record.denial is not None
        assert world.record.denial.reason == "investigating"
        assert world.state() is NodeState.QUARANTINED

    async def test_a_new_agent_process_meanwhile_is_no_conflict(self) -> None:
        world = OperatorWorld(RECORD)
        world.store.first = replace(RECORD, instance="b" * 32, superseded=("a" * 32,))
        done(await world.workbench.accept(ORDER, world.version))
        assert world.record.instance == "b" * 32
        assert world.record.denial is None

    async def test_races_without_end_are_given_up(self) -> None:
        world = OperatorWorld(RECORD)
        world.store.losses = 100
        assert refused(await world.workbench.accept(ORDER, world.version)) is (
            ReasonCode.ENROLLMENT_CONFLICT
        )

    async def test_a_store_that_is_gone_refuses_it(self) -> None:
        world = OperatorWorld(RECORD)
        version, world.store.gone = world.version, True
        assert refused(await world.workbench.accept(ORDER, version)) is ReasonCode.ENROLLMENT_STALE

    async def test_a_node_that_never_was_accepted_gets_its_first_enrolled_gpus(self) -> None:
        world = OperatorWorld()
        world.quarantined("gpu-1")
        await world.denials.deny("gpu-1", DENIAL)
        done(await world.workbench.accept(ORDER, world.version))
        assert world.record.gpus == (replace(NEW, enrolled=True),)

    async def test_a_later_denial_is_not_lifted_with_the_accepted_one(self) -> None:
        """It comes in the moment in which the store has taken the act."""
        world = OperatorWorld(RECORD)
        later = QuarantineEntry("DUPLICATE_AGENT", "two", AUTOMATIC, 9)

        class Late(RacingStore):
            async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
                written = await super().compare_and_set(old, new)
                world.denials._unwritten["gpu-1"] = later
                return written

        world.store.__class__ = Late
        result = done(await world.workbench.accept(ORDER, world.version))
        assert result.shown.denial == later
        assert world.state() is NodeState.QUARANTINED


class TestRelease:
    async def test_the_enrolled_gpus_stay(self) -> None:
        world = OperatorWorld(RECORD)
        result = done(await world.workbench.release(ORDER, world.version))
        assert world.record == replace(RECORD, denial=None, lifted_ns=DENIAL.wall_ns, lifted_by=WHO)
        assert result.changes == ()
        assert world.state() is NodeState.REFUSED
        [record] = world.audit.granted
        assert (record.decision, record.refs["changes"]) == ("released", [])
        assert record.refs["pinsBefore"] == record.refs["pinsAfter"]

    async def test_a_denial_that_was_never_written_can_be_released(self) -> None:
        world = OperatorWorld(replace(RECORD, denial=None))
        world.quarantined("gpu-1")
        world.store.gone = True
        assert not await world.denials.deny("gpu-1", DENIAL)
        world.store.gone = False
        done(await world.workbench.release(ORDER, world.version))
        assert world.denials.unwritten == {}
        assert world.record.denial is None
        assert world.state() is NodeState.REFUSED

    async def test_a_release_of_a_node_that_is_not_quarantined_says_so(self) -> None:
        world = OperatorWorld(replace(RECORD, denial=None))
        assert (
            refused(await world.workbench.release(ORDER, world.version))
            is ReasonCode.QUARANTINE_UNKNOWN
        )


class TestWhoEndedIt:
    """The reconciler lets a node try too, and does not know whose act it was."""

    @pytest.mark.parametrize(
        ("act", "words"), [(Act.ACCEPT, "accepted"), (Act.RELEASE, "released")]
    )
    async def test_the_order_is_named_once_where_the_watch_is_faster(
        self, act: Act, words: str
    ) -> None:
        world, follower = self._followed()
        await follower.begin()
        world.store.follower = follower
        done(await getattr(world.workbench, act.value)(ORDER, world.version))
        assert world.state() is NodeState.REFUSED
        await follower.reconcile()
        assert world.observed.changes == [
            (ChangeKind.RELEASED, AUTOMATIC),
            (ChangeKind.RELEASED, WHO),
        ]
        assert world.observed.details[1] == (
            "gpu-1",
            ReasonCode.INVENTORY_CHANGED,
            f"{words} by {WHO}: card replaced, ticket 7",
        )

    async def test_and_once_where_the_watch_is_slower(self) -> None:
        world, follower = self._followed()
        await follower.begin()
        done(await world.workbench.release(ORDER, world.version))
        await follower.reconcile()
        assert world.observed.changes == [(ChangeKind.RELEASED, WHO)]

    async def test_nobody_where_another_order_was_first(self) -> None:
        world, follower = self._followed()
        await follower.begin()
        world.store.first = world.record.lifted(DENIAL, "bob")
        world.store.follower = follower
        assert refused(await world.workbench.release(ORDER, world.version)) is (
            ReasonCode.ENROLLMENT_CONFLICT
        )
        assert world.observed.changes == [(ChangeKind.RELEASED, AUTOMATIC)]

    async def test_nobody_where_only_faults_were_ended(self) -> None:
        fault = Fault(NEW.uuid, 79, "boot", 1, None)
        world = OperatorWorld(replace(RECORD, denial=None, faults=(fault,)))
        done(await world.workbench.release(ORDER, world.version))
        assert world.record.faults[0].ended
        assert world.observed.changes == []

    @staticmethod
    def _followed() -> tuple[OperatorWorld, QuarantineReconciler]:
        world = OperatorWorld(RECORD)
        follower = QuarantineReconciler(
            world.store,
            world.denials,
            world.fleet,
            clock=world.clock,
            observer=world.observed,
            instruments=Instruments(Process.CONTROLLER, "0"),
        )
        return world, follower


class TestQuarantine:
    async def test_it_is_out_at_once_and_then_recorded(self) -> None:
        world = OperatorWorld(replace(RECORD, denial=None))
        world.audit.held = asyncio.Event()
        acting = asyncio.create_task(world.workbench.quarantine(ORDER))
        await world.audit.asked.wait()
        assert world.state() is NodeState.QUARANTINED
        assert world.record.denial == QuarantineEntry(
            "NODE_DENIED", ORDER.reason, WHO, world.clock.wall_ns()
        )
        world.audit.held.set()
        assert done(await acting).warnings == ()
        assert [x.decision for x in world.audit.granted] == ["quarantined"]
        assert world.observed.changes == [(ChangeKind.QUARANTINED, WHO)]

    async def test_neither_store_nor_log_can_prevent_it(self) -> None:
        world = OperatorWorld(replace(RECORD, denial=None))
        world.store.gone = world.audit.broken = True
        result = done(await world.workbench.quarantine(ORDER))
        assert world.state() is NodeState.QUARANTINED
        assert [x.split(" ")[1] for x in result.warnings] == ["quarantine", "audit"]
        assert result.shown.denial is not None
        assert [x.decision for x in world.audit.noted] == ["quarantined"]
        assert "gpu-1" in world.denials.unwritten

    async def test_the_first_quarantine_entry_is_kept(self) -> None:
        world = OperatorWorld(RECORD)
        result = done(await world.workbench.quarantine(ORDER))
        assert world.record.denial == DENIAL
        assert "quarantined before, by controller" in result.warnings[0]
        assert world.observed.changes == []
        assert len(world.audit.granted) == 1

    async def test_a_node_that_nothing_was_heard_of_can_be_shut_out(self) -> None:
        world = OperatorWorld()
        done(await world.workbench.quarantine(replace(ORDER, node="silent")))
        assert world.state("silent") is NodeState.QUARANTINED

    @pytest.mark.parametrize("act", ["accept", "release", "quarantine"])
    async def test_a_node_that_nobody_knows_is_an_error(self, act: str) -> None:
        world = OperatorWorld()
        method = getattr(world.workbench, act)
        expected = () if act == "quarantine" else (world.version,)
        assert refused(await method(ORDER, *expected)) is ReasonCode.NODE_UNKNOWN
        assert world.audit.granted == []
