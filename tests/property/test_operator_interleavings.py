"""Two replicas on one store, in any order of evidence, operators, outages and looks.

What must hold: a denial ends only by an act that saw it, also where the store is put back;
enrolled GPUs change only to what the act was shown; a replica that has looked agrees with the
store; nothing else in a record is lost.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from controller.fleet.enrollment import (
    AUTOMATIC,
    Candidate,
    EnrolledGpu,
    EnrollmentRecord,
    EnrollmentSnapshot,
    EnrollmentUnavailableError,
    MemoryEnrollmentStore,
    QuarantineEntry,
)
from controller.fleet.quarantine import QuarantineEntries, QuarantineFate, Shown
from controller.fleet.registry import FleetRegistry
from controller.fleet.trust import TrustChange
from controller.fleet.view import NodeState
from controller.operations.operator_service import Act, Done, OperatorService, Order
from controller.operations.quarantine_reconciler import QuarantineReconciler
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.fakes.clock import FakeClock
from tests.fakes.recording_audit import RecordingAudit

NODE = "gpu-1"
CARDS = [EnrolledGpu(f"GPU-{n}", str(n)) for n in range(3)]
WHICH = st.integers(0, 1)

T = TypeVar("T")


class ReplicaStore:
    """A replica's view of the shared store: what it knows is as old as its last question."""

    def __init__(self, shared: MemoryEnrollmentStore) -> None:
        self.shared = shared
        self.up = True
        self._known = EnrollmentSnapshot()

    async def load(self) -> EnrollmentSnapshot:
        self._ask()
        return self._known

    def snapshot(self) -> EnrollmentSnapshot:
        return self._known

    async def create_if_absent(self, record: EnrollmentRecord) -> bool:
        self._ask()
        done = await self.shared.create_if_absent(record)
        self._ask()
        return done

    async def compare_and_set(self, old: EnrollmentRecord, new: EnrollmentRecord) -> bool:
        self._ask()
        done = await self.shared.compare_and_set(old, new)
        self._ask()
        return done

    def _ask(self) -> None:
        if not self.up:
            raise EnrollmentUnavailableError("down")
        self._known = self.shared.snapshot()


class Unobserved:
    def acted(self, act: Act, order: Order, refusal: Refusal | None) -> None:
        del act, order, refusal

    def changed(self, changes: tuple[TrustChange, ...], actor: str) -> None:
        del changes, actor

    def denial(self, node: str, denial: QuarantineEntry, fate: QuarantineFate) -> None:
        del node, denial, fate


class Replica:
    def __init__(self, shared: MemoryEnrollmentStore, clock: FakeClock) -> None:
        self.store = ReplicaStore(shared)
        self.denials = QuarantineEntries(self.store)
        self.fleet = FleetRegistry()
        self.clock = clock
        self.operator_service = OperatorService(
            self.store,
            self.denials,
            self.fleet,
            knows=lambda _: True,
            audit=RecordingAudit(),
            clock=clock,
            observer=Unobserved(),
        )
        self.reconciler = QuarantineReconciler(
            self.store,
            self.denials,
            self.fleet,
            clock=clock,
            observer=Unobserved(),
            instruments=Instruments(Process.CONTROLLER, "0"),
        )

    @property
    def out(self) -> bool:
        view = self.fleet.snapshot().nodes.get(NODE)
        return view is not None and view.state(self.clock.boottime_ns()) is NodeState.QUARANTINED


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.shared = MemoryEnrollmentStore([EnrollmentRecord(NODE, gpus=(CARDS[0],))])
        self.clock = FakeClock()
        self.replicas = [Replica(self.shared, self.clock) for _ in range(2)]
        for replica in self.replicas:
            self.do(replica.reconciler.begin())
        self.enrolled_gpus: tuple[EnrolledGpu, ...] = (CARDS[0],)
        self.denied = False
        self.instance: str | None = None
        self.once: list[tuple[QuarantineEntry | None, int | None]] = []
        self.seen: list[Shown] = [x.operator_service.shown(NODE) for x in self.replicas]

    def teardown(self) -> None:
        self.loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        self.clock.advance(1)
        return self.loop.run_until_complete(work)

    @property
    def record(self) -> EnrollmentRecord:
        return self.shared.snapshot().records[NODE]

    @rule(which=WHICH, card=st.sampled_from(CARDS))
    def evidence_shows_other_hardware(self, which: int, card: EnrolledGpu) -> None:
        replica, now = self.replicas[which], self.clock
        code = ReasonCode.INVENTORY_CHANGED
        candidate = Candidate(code, None, None, (card,), "e" * 64)
        replica.fleet.quarantine(
            NODE, code=code, reason="swap", now_ns=now.boottime_ns(), wall_ns=now.wall_ns()
        )
        denial = QuarantineEntry(code, "swap", AUTOMATIC, now.wall_ns(), candidate)
        self.do(replica.denials.deny(NODE, denial))
        self.denied = True

    @rule(which=WHICH)
    def an_operator_looks(self, which: int) -> None:
        self.seen[which] = self.replicas[which].operator_service.shown(NODE)

    @rule(which=WHICH)
    def an_operator_accepts_what_was_seen(self, which: int) -> None:
        shown = self.seen[which]
        result = self.do(self.replicas[which].operator_service.accept(order(), shown.version))
        if isinstance(result, Done):
            assert shown.candidate is not None
            self.enrolled_gpus = tuple(replace(x, enrolled=True) for x in shown.candidate.gpus)
            self.lifted()

    @rule(which=WHICH)
    def an_operator_releases_what_was_seen(self, which: int) -> None:
        result = self.do(
            self.replicas[which].operator_service.release(order(), self.seen[which].version)
        )
        if isinstance(result, Done):
            assert self.seen[which].denial is not None
            self.lifted()

    @rule(which=WHICH)
    def an_operator_looks_and_releases(self, which: int) -> None:
        self.an_operator_looks(which)
        self.an_operator_releases_what_was_seen(which)

    def lifted(self) -> None:
        """A denial that the other replica could not write yet was not seen, so it stands."""
        self.denied = any(x.denials.unwritten for x in self.replicas)

    @rule(which=WHICH)
    def an_operator_quarantines(self, which: int) -> None:
        result = self.do(self.replicas[which].operator_service.quarantine(order()))
        assert isinstance(result, Done)
        assert self.replicas[which].out
        self.denied = True

    @rule(which=WHICH, digit=st.sampled_from("abc"))
    def another_agent_process_answers(self, which: int, digit: str) -> None:
        store = self.replicas[which].store
        old = store.snapshot().records.get(NODE)
        if not store.up or old is None:
            return
        if self.do(store.compare_and_set(old, old.answered_by(digit * 32))):
            self.instance = digit * 32

    @rule(which=WHICH, up=st.booleans())
    def the_store_comes_and_goes(self, which: int, up: bool) -> None:
        self.replicas[which].store.up = up

    @rule(which=WHICH)
    def a_replica_looks(self, which: int) -> None:
        replica = self.replicas[which]
        self.do(replica.reconciler.reconcile())
        if replica.store.up and self.record.denial is not None:
            assert replica.out

    @rule()
    def all_settles(self) -> None:
        for replica in self.replicas:
            replica.store.up = True
        for _ in range(2):
            for replica in self.replicas:
                self.do(replica.reconciler.reconcile())
        assert (self.record.denial is not None) == self.denied
        assert [x.out for x in self.replicas] == [self.denied] * 2
        assert all(not x.denials.unwritten for x in self.replicas)
        self.once.append((self.record.denial, self.record.lifted_ns))

    @rule(data=st.data())
    def the_store_is_put_back(self, data: st.DataObject) -> None:
        self.all_settles()
        denial, lifted_ns = data.draw(st.sampled_from(self.once))
        older = replace(self.record, denial=denial, lifted_ns=lifted_ns)
        now = self.record.denial
        self.shared._snapshot = EnrollmentSnapshot.of([older])
        was_lifted = now is None or (lifted_ns is not None and lifted_ns >= now.wall_ns)
        self.denied = denial is not None or not was_lifted
        self.all_settles()

    @invariant()
    def enrolled_gpus_are_what_an_operator_saw(self) -> None:
        assert self.record.gpus == self.enrolled_gpus

    @invariant()
    def a_denial_is_in_the_store_or_on_its_way(self) -> None:
        waiting = any(x.denials.unwritten for x in self.replicas)
        assert (self.record.denial is not None or waiting) == self.denied

    @invariant()
    def no_agent_process_is_forgotten(self) -> None:
        assert self.record.instance == self.instance


def order() -> Order:
    return Order(NODE, "because", "spiffe://example.org/gpuwarden/operator/ann")


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=100, stateful_step_count=30)
