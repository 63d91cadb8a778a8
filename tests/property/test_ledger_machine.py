"""Two replicas over one store, in any order of steps: what is held is what was granted.

The same steps on every store, with answers that get lost. What a claim was told is kept
beside the store and compared with it; the ledger's decisions are checked as a whole by
tests/model, this shows that the stores keep them.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from controller.kube.api.cache import Pace
from controller.kube.objects.reservations import KubernetesLedgerStore
from controller.ledger.claim import Claim, Claimant, Claimed
from controller.ledger.record import MOVES, HolderState, Origin, PodRef, ShareGroup
from controller.ledger.release import GivenGpu, UseReport, allocation_recorded
from controller.ledger.store import LedgerSnapshot, LedgerStore, LedgerUnavailableError
from gpuwarden.clock import SystemClock
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.kube_access import api_client, in_cluster
from tests.fakes.api_server import FakeApiServer
from tests.fakes.ledger_store import FaultyLedgerStore, MemoryLedgerStore, ReplicaLedgerStore
from tests.hang import HANG_S

T = TypeVar("T")

GPUS = ("GPU-A", "GPU-b", "MIG-c")
PODS = tuple(PodRef("ns", f"pod-{n}", f"uid-{n}", f"owner-{n % 2}") for n in range(4))
REPLICAS, OBSERVER = st.integers(0, 1), 2
"""The observer reads the store past any copy; the replicas know what they happen to know."""
REQUIREMENTS = st.sets(st.sampled_from(GPUS), min_size=1).map(
    lambda x: tuple(sorted(x, key=str.lower))
)
IDLE = UseReport("boot", 1, {}, frozenset())
FAULTS = st.lists(st.sampled_from(["ok", "before", "after"]), max_size=4)


@contextlib.asynccontextmanager
async def memory(_: Path) -> AsyncIterator[list[LedgerStore]]:
    store = MemoryLedgerStore()
    yield [store] * 3


@contextlib.asynccontextmanager
async def copies(_: Path) -> AsyncIterator[list[LedgerStore]]:
    shared = MemoryLedgerStore()
    yield [ReplicaLedgerStore(shared) for _ in range(3)]


@contextlib.asynccontextmanager
async def kubernetes(folder: Path) -> AsyncIterator[list[LedgerStore]]:
    server = FakeApiServer(folder)
    await server.start()
    async with contextlib.AsyncExitStack() as stack:
        stores: list[LedgerStore] = []
        for number in range(3):
            api, transport = api_client(in_cluster(folder / f"sa-{number}", server), SystemClock())
            stack.push_async_callback(transport.close)
            store = KubernetesLedgerStore(
                api,
                clock=SystemClock(),
                instruments=Instruments(Process.CONTROLLER, "test"),
                stale_after_ns=60_000_000_000,
                pace=Pace(watch_s=30, silence_s=20.0, pause_factor=0.02),
                jitter=lambda: 0.5,
                late_watch_s=HANG_S,
            )
            following = asyncio.create_task(store.watcher.follow())
            stack.callback(following.cancel)
            stores.append(store)
        yield stores
    await server.stop()


class LedgerMachine(RuleBasedStateMachine):
    opening: Any = staticmethod(memory)

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.granted: dict[str, Claim] = {}
        """Reservation -> the claim that was told so, and is not over."""
        self.ended: set[str] = set()
        """Reservations that are over, or were refused: some part of a torn one may be left."""
        self.calls = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def open(self) -> None:
        self.opened = type(self).opening(Path(self.folder.name))
        self.stores: list[LedgerStore] = self.run(self.opened.__aenter__())
        for store in self.stores:
            self.run(store.load())

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            self.run(self.opened.__aexit__(None, None, None))
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.cleanup()

    @rule(
        replica=REPLICAS,
        pod=st.sampled_from(PODS),
        gpus=REQUIREMENTS,
        shares=st.booleans(),
        faults=FAULTS,
    )
    def claim(
        self, replica: int, pod: PodRef, gpus: tuple[str, ...], shares: bool, faults: list[str]
    ) -> None:
        self.calls += 1
        share = ShareGroup("ns", str(pod.owner), "line") if shares else None
        name = f"v1.k.{pod.uid}-{'-'.join(x[-1].lower() for x in gpus)}-{int(shares)}"
        claim = Claim(name, pod, "gpu-1", gpus, Origin.BINDING_WEBHOOK, f"{self.calls:08x}", share)
        store = FaultyLedgerStore(self.stores[replica], *faults)
        answer = self.run(Claimant(store).claim(claim))
        if isinstance(answer, Claimed):
            self.granted[name] = claim
            self.ended.discard(name)
        elif name not in self.granted:
            self.ended.add(name)
            if "before" not in faults and "after" not in faults:
                assert not any(x.call == claim.call for x in self.parts())

    @rule(replica=REPLICAS, pod=st.sampled_from(PODS), gpu=st.sampled_from(GPUS))
    def record_allocation(self, replica: int, pod: PodRef, gpu: str) -> None:
        """Kubelet has given the pod a GPU, whoever holds it."""
        self.calls += 1
        name, call = f"v1.k.{pod.uid}-{gpu[-1].lower()}-given", f"{self.calls:08x}"
        store = self.stores[replica]
        entry = self.run(store.read(gpu))
        record = None if entry is None else entry.record
        made = allocation_recorded(record, GivenGpu(pod, "gpu-1", gpu), name, call, IDLE)
        if made is None:
            assert record is not None
            assert record.of_pod(str(pod.uid)) is not None
            return
        assert self.run(store.compare_and_set(entry, made))
        self.granted[name] = Claim(name, pod, "gpu-1", (gpu,), Origin.KUBELET, call)
        self.ended.discard(name)

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), replica=REPLICAS, to=st.sampled_from(HolderState), fails=st.booleans())
    def move(self, data: st.DataObject, replica: int, to: HolderState, fails: bool) -> None:
        """One GPU of a reservation goes on, as a replica decides by what it knows."""
        claim = self.granted[data.draw(st.sampled_from(sorted(self.granted)))]
        gpu = data.draw(st.sampled_from(claim.gpus))
        store = self.stores[replica]
        entry = self.run(store.read(gpu))
        part = None if entry is None else entry.record.holder(claim.reservation)
        if entry is None or part is None or (part.state, to) not in MOVES:
            return
        if to.is_end:
            self.granted.pop(claim.reservation)
            self.ended.add(claim.reservation)
        faulty = FaultyLedgerStore(store, *(["after"] if fails else []))
        with contextlib.suppress(LedgerUnavailableError):
            assert self.run(
                faulty.compare_and_set(entry, entry.record.moved(claim.reservation, to))
            )

    @rule(replica=REPLICAS)
    def load(self, replica: int) -> None:
        self.run(self.stores[replica].load())

    @rule(replica=REPLICAS, gpu=st.sampled_from(GPUS))
    def decide_on_something_old(self, replica: int, gpu: str) -> None:
        """A write by an entry that the other has replaced changes nothing."""
        here, there = self.stores[replica], self.stores[1 - replica]
        old = self.run(here.read(gpu))
        if old is None:
            return
        newest = self.run(there.read(gpu))
        assert newest == old
        part = old.record.holders[0]
        counted = old.record.with_holder(replace(part, answers=part.answers + 1))
        assert self.run(there.compare_and_set(old, counted))
        assert not self.run(here.compare_and_set(old, counted))
        found = here.snapshot().get(gpu)
        assert found is not None
        assert found.record == counted

    @invariant()
    def what_was_granted_is_held(self) -> None:
        if not hasattr(self, "stores"):
            return
        for gpu in GPUS:
            entry = self.run(self.stores[OBSERVER].read(gpu))
            record = None if entry is None else entry.record
            if record is not None:
                record.demand_valid()
                claimed = [x for x in record.holders if not x.restored]
                assert record.share is not None or len(claimed) <= 1
            held = set() if record is None else {x.reservation for x in record.holders}
            wanted = {x.reservation for x in self.granted.values() if gpu in x.gpus}
            assert wanted <= held
            assert held <= wanted | self.ended
        for store in self.stores:
            known = store.snapshot()
            again = LedgerSnapshot.of(known.entries.values())
            assert dict(known.by_reservation) == dict(again.by_reservation)
            assert dict(known.by_pod) == dict(again.by_pod)

    def parts(self) -> list[Any]:
        entries = (self.run(self.stores[OBSERVER].read(x)) for x in GPUS)
        return [y for x in entries if x is not None for y in x.record.holders]


@pytest.mark.parametrize(
    ("opening", "examples", "steps"),
    [(memory, 60, 30), (copies, 40, 20), (kubernetes, 6, 12)],
    ids=["memory", "copies", "kubernetes"],
)
def test_what_is_held_is_what_was_granted(opening: Any, examples: int, steps: int) -> None:
    machine = type("Machine", (LedgerMachine,), {"opening": staticmethod(opening)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            phases=[x for x in Phase if x is not Phase.shrink],  # it would take minutes
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
