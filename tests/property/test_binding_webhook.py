"""Two pods never run on one GPU, whatever replicas, scheduler, kubelet and time do.

Everything between the API server's question and the ledger is the product's: binding webhooks,
claims and
reconcilers of two replicas over one store, whose answers take as long as Hypothesis wants.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.admission.review import Verdict
from controller.ledger.record import GpuRecord
from controller.ledger.store import Entry, LedgerSnapshot, LedgerUnavailableError
from gpuwarden.evidence.model import GpuProcess
from tests.fakes.binding_world import BindingWorld, Replica
from tests.fakes.ledger_store import MemoryLedgerStore

PODS = tuple(f"train-{n}" for n in range(4))
NODES = ("gpu-1", "gpu-2")


class SlowStore:
    """One ledger as one replica reaches it: answers take a while, some get lost."""

    def __init__(self, store: MemoryLedgerStore, delays: list[int]) -> None:
        self._store = store
        self._delays = delays

    async def load(self) -> LedgerSnapshot:
        return await self._store.load()

    def snapshot(self) -> LedgerSnapshot:
        return self._store.snapshot()

    async def read(self, gpu: str) -> Entry | None:
        await self._wait()
        return await self._store.read(gpu)

    async def compare_and_set(self, old: Entry | None, new: GpuRecord) -> bool:
        lost = await self._wait()
        done = await self._store.compare_and_set(old, new)
        if lost:
            raise LedgerUnavailableError("the answer was lost")
        return done

    async def _wait(self) -> bool:
        delay = self._delays.pop(0) if self._delays else 0
        for _ in range(delay % 8):
            await asyncio.sleep(0)
        return delay >= 40


@dataclass
class Run:
    """One history."""

    world: BindingWorld
    replicas: list[Replica]
    asked: list[tuple[str, str, "asyncio.Task[Verdict]"]] = field(default_factory=list)
    answers: list[tuple[str, str, Verdict]] = field(default_factory=list)
    running: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    """Pods whose containers run, by UID: their node and GPUs."""

    async def do(self, name: str, *numbers: int) -> None:
        """One step; most take one number."""
        done = getattr(self, f"do_{name}")(*numbers)
        if done is not None:
            await done
        self.demand_one_pod_per_gpu()

    def do_bind(self, replica: int, pod: int, node: int) -> None:
        if PODS[pod] in self.world.pods.stored:
            asking = self.replicas[replica].bind(PODS[pod], NODES[node])
            self.asked.append((PODS[pod], NODES[node], asyncio.ensure_future(asking)))

    def do_race(self, pod: int, other: int, node: int) -> None:
        """Both replicas are asked at the same moment."""
        self.do_bind(0, pod, node)
        self.do_bind(1, other, node)

    async def do_settle(self) -> None:
        """Everything that is under way comes to an end."""
        await self.do_wait(40)
        self._collect()
        while self.answers:
            self.do_land(0)

    async def do_wait(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    def do_cancel(self, which: int) -> None:
        if self.asked:
            self.asked.pop(which % len(self.asked))[2].cancel()

    def do_land(self, which: int) -> None:
        self._collect()
        if self.answers:
            self._land(*self.answers.pop(which % len(self.answers)))

    async def do_round(self, replica: int) -> None:
        await self.replicas[replica].reconciler.round()

    def do_report(self, seconds: int) -> None:
        self.world.report(*self._processes(), after_s=seconds)

    def do_lag(self) -> None:
        self.world.pods.copy = {}

    def do_catch_up(self) -> None:
        self.world.pods.catch_up()

    def do_end(self, pod: int) -> None:
        found = self.world.pods.stored.get(PODS[pod])
        if found is not None and found["spec"].get("nodeName"):
            self.world.pods.put(found | {"status": {"phase": "Failed"}})
            self._tell(found["metadata"]["uid"], gone=False)

    def do_delete(self, pod: int) -> None:
        """By force: its containers run on. One of the same name comes in its place."""
        found = self.world.pods.stored.pop(PODS[pod], None)
        if found is None:
            return
        self.world.pods.catch_up()
        self._tell(found["metadata"]["uid"], gone=True)
        again = self.world.pods.version
        self.world.pod(PODS[pod])
        made = self.world.pods.stored[PODS[pod]]
        made["metadata"]["uid"] = f"uid-{PODS[pod]}-{again}"
        self.world.pods.put(made)

    def do_stop(self, which: int) -> None:
        """The containers of a pod that is over end at last."""
        if not self.running:
            return
        uid = sorted(self.running)[which % len(self.running)]
        alive = {
            x["metadata"]["uid"]
            for x in self.world.pods.stored.values()
            if x.get("status", {}).get("phase") != "Failed"
        }
        if uid not in alive:
            del self.running[uid]

    def demand_one_pod_per_gpu(self) -> None:
        users: dict[str, str] = {}
        for uid, (_, gpus) in self.running.items():
            for gpu in gpus:
                assert gpu not in users, f"{uid} and {users[gpu]} run on {gpu}"
                users[gpu] = uid
        snapshot = self.world.store.snapshot()
        for gpu, uid in users.items():
            entry = snapshot.get(gpu)
            assert entry is not None, f"{gpu} is free while {uid} runs on it"
            assert entry.record.of_pod(uid) is not None, f"{gpu} is another's while {uid} runs"

    def _collect(self) -> None:
        for pod, node, task in tuple(self.asked):
            if task.done():
                self.asked.remove((pod, node, task))
                if not task.cancelled():
                    self.answers.append((pod, node, task.result()))

    def _land(self, pod: str, node: str, verdict: Verdict) -> None:
        if self.world.lands(pod, verdict, node):
            uid = self.world.pods.stored[pod]["metadata"]["uid"]
            self.running[uid] = (node, self.world.assigned()[pod])

    def _tell(self, uid: str, *, gone: bool) -> None:
        for replica in self.replicas:
            replica.reconciler.pod_changed(uid, gone=gone)

    def _processes(self) -> list[GpuProcess]:
        return [GpuProcess(gpu, 7, uid) for uid, (_, gpus) in self.running.items() for gpu in gpus]


NUMBER = st.integers(0, 7)
REPLICA, POD, NODE = st.integers(0, 1), st.integers(0, 3), st.integers(0, 1)
STEP = st.one_of(
    st.tuples(st.just("bind"), REPLICA, POD, NODE),
    st.tuples(st.just("race"), POD, POD, NODE),
    st.tuples(st.just("settle")),
    st.tuples(st.just("wait"), st.integers(0, 30)),
    st.tuples(st.just("land"), NUMBER),
    st.tuples(st.just("round"), REPLICA),
    st.tuples(st.just("report"), st.sampled_from([1, 30, 95])),
    st.tuples(st.sampled_from(["cancel", "stop"]), NUMBER),
    st.tuples(st.sampled_from(["end", "delete"]), POD),
    st.tuples(st.sampled_from(["lag", "catch_up"])),
)


async def history(requirements: list[int], delays: list[int], steps: list[tuple[Any, ...]]) -> Run:
    store = MemoryLedgerStore()
    world = BindingWorld(2, 1, store=store)
    replicas = [await world.replica(name, SlowStore(store, delays)) for name in "ab"]
    for name, count in zip(PODS, requirements, strict=True):
        world.pod(name, annotations={"gpuwarden.dev/gpu-count": str(count)})
    run = Run(world, replicas)
    for step in steps:
        await run.do(*step)
    for _, _, task in run.asked:
        task.cancel()
    await asyncio.gather(*(x for _, _, x in run.asked), return_exceptions=True)
    for replica in replicas:
        while replica.granting.tasks:
            await asyncio.gather(*replica.granting.tasks, return_exceptions=True)
    return run


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 2), min_size=4, max_size=4),
    st.lists(st.integers(0, 44), min_size=10, max_size=40),
    st.lists(STEP, min_size=10, max_size=60),
)
def test_no_gpu_has_two_pods_at_any_time(
    requirements: list[int], delays: list[int], steps: list[tuple[Any, ...]]
) -> None:
    async def check() -> None:
        run = await history(requirements, delays, steps)
        run.demand_one_pod_per_gpu()
        await at_rest(run)

    asyncio.run(check())


async def at_rest(run: Run) -> None:
    """When all pods are over and their containers have ended, nothing is lost forever."""
    for pod in PODS:
        run.world.pods.stored.pop(pod, None)
    run.world.pods.catch_up()
    run.running.clear()
    for _ in range(4):
        run.world.report(after_s=95)
        for replica in run.replicas:
            for _ in range(11):
                await replica.reconciler.round()
    assert run.world.states() == {}
