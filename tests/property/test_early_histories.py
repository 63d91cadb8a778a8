"""Two pods never run on one GPU, also where GPUs are reserved before pods are there.

Webhooks, binding webhooks, claims and reconcilers of two replicas over one store, whose answers
take as long as Hypothesis wants; a creation may be refused after our webhooks, or be stored late.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders.admitted_pods import Document
from tests.fakes.binding_world import BindingWorld
from tests.fakes.ledger_store import MemoryLedgerStore
from tests.fakes.pod_creation import Creation, early_pod, owned
from tests.property.test_binding_webhook import NODES, Run, SlowStore

REQUIREMENT = {"gpuwarden.dev/gpu-selector": "memory>=1Gi"}
KINDS = 4
LATEST_S = 60
"""How late a request may be stored after its last webhook."""


def document(kind: int) -> Document:
    """A pod without an owner, one that names its node, pods of two ReplicaSets."""
    match kind:
        case 0:
            return early_pod()
        case 1:
            return early_pod(REQUIREMENT, nodeName=NODES[0])
        case 2:
            return owned(early_pod(), "owner-a")
        case _:
            return owned(early_pod(REQUIREMENT, nodeName=NODES[0]), "owner-b")


@dataclass
class EarlyRun(Run):
    """One history."""

    reserved: list["asyncio.Task[Document | None]"] = field(default_factory=list)
    judged: list["asyncio.Task[Document | None]"] = field(default_factory=list)
    landing: list[tuple[int, Document]] = field(default_factory=list)
    """Pods that our webhooks have let in, and when."""
    names: list[str] = field(default_factory=list)

    async def do(self, name: str, *numbers: int) -> None:
        await super().do(name, *numbers)
        self._collect_judged()
        now_ns = self.world.clock.boottime_ns()
        oldest = now_ns - LATEST_S * 10**9
        self.landing = [(at, pod) for at, pod in self.landing if at >= oldest]

    def do_reserve(self, replica: int, kind: int) -> None:
        api = self._api(replica)
        self.reserved.append(asyncio.ensure_future(api.mutated(document(kind))))

    def do_validate(self, replica: int, which: int) -> None:
        done = [x for x in self.reserved if x.done()]
        if not done:
            return
        task = done[which % len(done)]
        self.reserved.remove(task)
        pod = task.result()
        if pod is not None:
            name = f"early-{len(self.names)}"
            self.names.append(name)
            judging = self._api(replica).validated(pod, name)
            self.judged.append(asyncio.ensure_future(judging))

    def do_store(self, which: int) -> None:
        if self.landing:
            _, pod = self.landing.pop(which % len(self.landing))
            self.world.pods.put(pod)
            self._is_there(pod)

    async def do_twins(self, replica: int, kind: int) -> None:
        """Two pods that look alike come together."""
        for step in (self.do_reserve, self.do_validate):
            for twin in range(2):
                step((replica + twin) % 2, kind)
            await self.do_wait(40)
        self._collect_judged()
        for _ in range(2):
            self.do_store(0)

    async def do_round_of_news(self) -> None:
        """Much is heard of the nodes within a short time."""
        for _ in range(4):
            for replica in self.replicas:
                await replica.reconciler.round()
            self.do_report(1)

    def do_hang(self, which: int) -> None:
        """Nobody waits for the answer of a webhook any more."""
        if self.reserved:
            self.reserved.pop(which % len(self.reserved)).cancel()

    def do_bind_early(self, replica: int, which: int, node: int) -> None:
        names = [x for x in self.names if x in self.world.pods.stored]
        if names:
            name = names[which % len(names)]
            asking = self.replicas[replica].bind(name, NODES[node])
            self.asked.append((name, NODES[node], asyncio.ensure_future(asking)))

    def do_delete_early(self, which: int) -> None:
        """By force: its containers run on."""
        names = [x for x in self.names if x in self.world.pods.stored]
        if names:
            found = self.world.pods.stored.pop(names[which % len(names)])
            self.world.pods.catch_up()
            self._tell(found["metadata"]["uid"], gone=True)

    def _api(self, replica: int) -> Creation:
        return Creation(self.world, self.replicas[replica], self.replicas[replica])

    def _collect_judged(self) -> None:
        now_ns = self.world.clock.boottime_ns()
        for task in [x for x in self.judged if x.done()]:
            self.judged.remove(task)
            pod = task.result()
            if pod is not None:
                self.landing.append((now_ns, pod))

    def _is_there(self, pod: Document) -> None:
        if node := pod["spec"].get("nodeName"):
            gpus = pod["metadata"]["annotations"]["gpuwarden.dev/gpu-uuids-assigned"]
            self.running[pod["metadata"]["uid"]] = (node, tuple(gpus.split(",")))

    async def end(self) -> None:
        """What is under way comes to its end."""
        for task in (*self.reserved, *(x for _, _, x in self.asked)):
            task.cancel()
        await asyncio.gather(*self.reserved, *(x for _, _, x in self.asked), return_exceptions=True)
        await asyncio.gather(*self.judged)
        for replica in self.replicas:
            while replica.granting.tasks:
                await asyncio.gather(*replica.granting.tasks, return_exceptions=True)
        self.demand_one_pod_per_gpu()


NUMBER, REPLICA, NODE = st.integers(0, 7), st.integers(0, 1), st.integers(0, 1)
STEP = st.one_of(
    st.tuples(st.just("reserve"), REPLICA, st.integers(0, KINDS - 1)),
    st.tuples(st.just("validate"), REPLICA, NUMBER),
    st.tuples(st.just("store"), NUMBER),
    st.tuples(st.just("bind_early"), REPLICA, NUMBER, NODE),
    st.tuples(st.just("twins"), REPLICA, st.integers(0, KINDS - 1)),
    st.tuples(st.sampled_from(["settle", "round_of_news"])),
    st.tuples(st.just("wait"), st.integers(0, 30)),
    st.tuples(st.just("land"), NUMBER),
    st.tuples(st.just("round"), REPLICA),
    st.tuples(st.just("report"), st.sampled_from([1, 25, 125])),
    st.tuples(st.sampled_from(["hang", "stop", "delete_early"]), NUMBER),
    st.tuples(st.sampled_from(["lag", "catch_up"])),
)


@pytest.mark.timeout(600)  # a limit for hangs, on a busy machine too
@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 44), min_size=10, max_size=40),
    st.lists(STEP, min_size=10, max_size=60),
)
def test_no_gpu_has_two_pods_at_any_time(delays: list[int], steps: list[tuple[Any, ...]]) -> None:
    async def check() -> None:
        store = MemoryLedgerStore()
        world = BindingWorld(2, 1, store=store)
        replicas = [await world.replica(name, SlowStore(store, delays)) for name in "ab"]
        run = EarlyRun(world, replicas)
        for step in steps:
            await run.do(*step)
        await run.end()
        await _at_rest(run)

    asyncio.run(check())


async def _at_rest(run: EarlyRun) -> None:
    """When all pods are over and their containers have ended, nothing is lost forever."""
    run.world.pods.stored.clear()
    run.world.pods.catch_up()
    run.running.clear()
    for _ in range(8):
        run.world.report(after_s=125)
        for replica in run.replicas:
            for _ in range(4):
                await replica.reconciler.round()
    assert run.world.states() == {}
