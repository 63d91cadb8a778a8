"""A replica that dies at a step which it takes towards others: store, API server, audit log.

As of a process that was killed, nothing of it goes on from there: every later step waits for
ever. What it has written by then stands.
"""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any, TypeVar

from controller.admission.review import Verdict
from controller.binding.request import StoredPod
from controller.ledger.record import GpuRecord, PodGone, PodRef, PodSeen
from controller.ledger.store import Entry, LedgerSnapshot, LedgerStore
from controller.record import AuditLog, Record
from tests.builders.bindings import NODE
from tests.fakes.binding_world import BindingWorld, FakePods, Replica
from tests.fakes.recording_audit import RecordingAudit

T = TypeVar("T")
_LONGEST_STEP = 4
"""In turns of the event loop."""


class Life:
    """Goes on until one of `dies_at` is taken."""

    def __init__(self, draw: random.Random) -> None:
        """`draw`: how long each step takes."""
        self._draw = draw
        self.dies_at: set[str] = set()
        self.taken: set[str] = set()
        self.last = ""
        """The step that was taken last."""
        self._end = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def is_over(self) -> bool:
        return self._end.is_set()

    def take(self, step: str) -> None:
        """A step that nothing follows."""
        if self.is_over:
            return
        self.taken.add(step)
        self.last = step
        if step in self.dies_at:
            self._end.set()

    async def step(self, step: str) -> None:
        """Take a step, or never return."""
        self.take(step)
        for _ in range(self._draw.randrange(_LONGEST_STEP)):
            await asyncio.sleep(0)
        if self.is_over:
            await asyncio.get_running_loop().create_future()

    async def doing(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What comes of the work; None where the replica is or falls dead."""
        if self.is_over:
            work.close()
            return None
        task, end = asyncio.ensure_future(work), asyncio.ensure_future(self._end.wait())
        self._tasks.add(task)
        await asyncio.wait((task, end), return_when=asyncio.FIRST_COMPLETED)
        end.cancel()
        return task.result() if task.done() else None

    async def buried(self) -> None:
        """What it was doing is broken off."""
        self._end.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class SteppedStore:
    """Implements LedgerStore."""

    def __init__(self, store: LedgerStore, life: Life) -> None:
        self._store = store
        self._life = life

    async def load(self) -> LedgerSnapshot:
        await self._life.step("load")
        return await self._store.load()

    def snapshot(self) -> LedgerSnapshot:
        return self._store.snapshot()

    async def read(self, gpu: str) -> Entry | None:
        await self._life.step("record read")
        return await self._store.read(gpu)

    async def compare_and_set(self, old: Entry | None, new: GpuRecord) -> bool:
        write = _named(old, new)
        await self._life.step(f"{write} asked")
        done = await self._store.compare_and_set(old, new)
        if done:
            await self._life.step(f"{write} done")
        return done


class SteppedPods:
    """Implements PodPorts."""

    def __init__(self, pods: FakePods, life: Life) -> None:
        self._pods = pods
        self._life = life
        self.known, self.sight = pods.known, pods.sight
        self.live, self.reread = pods.live, pods.reread

    async def read(self, namespace: str, name: str) -> StoredPod | None:
        await self._life.step("pod read")
        return await self._pods.read(namespace, name)

    async def look(self, pod: PodRef) -> PodSeen | PodGone:
        await self._life.step("pod looked for")
        return await self._pods.look(pod)

    async def requeue(self, pod: PodRef) -> PodSeen | PodGone:
        await self._life.step("requeue asked")
        answer = await self._pods.requeue(pod)
        await self._life.step("requeue done")
        return answer


class SteppedAudit:
    """Implements AuditLog."""

    def __init__(self, audit: AuditLog, life: Life) -> None:
        self._audit = audit
        self._life = life

    async def grant(self, record: Record) -> None:
        await self._life.step("audit asked")
        await self._audit.grant(record)
        await self._life.step("audit durable")

    def note(self, record: Record) -> None:
        self._audit.note(record)


class MortalReplica(Replica):
    """A replica with a life."""

    def __init__(
        self, world: BindingWorld, store: LedgerStore, name: str, draw: random.Random
    ) -> None:
        self.life = Life(draw)
        super().__init__(
            world,
            SteppedStore(store, self.life),
            name,
            pods=SteppedPods(world.pods, self.life),
            audit=SteppedAudit(RecordingAudit(), self.life),
        )

    async def answer(self, name: str, node: str = NODE) -> Verdict | None:
        """What the API server hears about a Binding; None where it hears nothing."""
        return await self.life.doing(self._answered(name, node))

    async def look_after(self) -> None:
        """A round of its reconciler."""
        await self.life.doing(self.reconciler.round())

    async def buried(self) -> None:
        """Nothing of it is left in the event loop."""
        await self.life.buried()
        while tasks := tuple(self.granting.tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _answered(self, name: str, node: str) -> Verdict:
        await self.life.step("binding webhook called")
        verdict = await self.bind(name, node)
        if not verdict.refusals:
            await self.life.step("answer given")
        return verdict


def _named(old: Entry | None, new: GpuRecord) -> str:
    """Which state of which GPU of a reservation is written: `proposed 1 of 2`."""
    before = () if old is None else old.record.holders
    holder = next(x for x in new.holders if x not in before)
    place = [x.lower() for x in holder.gpus].index(new.key) + 1
    return f"{holder.state.value.lower()} {place} of {len(holder.gpus)}"
