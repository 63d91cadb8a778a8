"""Two hundred pods for eight GPUs, two replicas, one of them killed at every step in turn.

No GPU is in two containers at any moment, and in the end all are free again.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from controller.admission.review import Verdict
from gpuwarden.evidence.model import GpuProcess
from tests.builders.bindings import NODE, REQUIREMENT
from tests.fakes.binding_world import BindingWorld
from tests.fakes.clock import FakeClock
from tests.fakes.mortal_replica import MortalReplica
from tests.fakes.shared_ledger import KINDS, OpenLedger, shared_ledger

PODS: Final = 200
GPUS: Final = frozenset(f"GPU-{NODE}-{number}" for number in range(8))
MOST_TURNS: Final = 400
"""Until something has come about; it takes a few, or some ten."""
STEPS: Final = (
    "binding webhook called",
    "pod read",
    *(f"proposed {x}" for x in ("1 of 1 asked", "1 of 1 done", "1 of 2 asked", "1 of 2 done")),
    *("proposed 2 of 2 asked", "proposed 2 of 2 done"),
    *("audit asked", "audit durable", "answer given", "binding written"),
    *("load", "pod looked for", "requeue asked", "requeue done"),
    *(
        f"{state} {place} {moment}"
        for state in ("confirmed", "releasing", "released", "expired")
        for place in ("1 of 1", "1 of 2", "2 of 2")
        for moment in ("asked", "done")
    ),
    *("revoked 1 of 2 asked", "revoked 1 of 2 done"),
)
"""All of them, as `tests.fakes.mortal_replica` names them."""
MOST_STORMS: Final = 8
"""Until each step has killed: one or two, where threads come in between."""


class Storm:
    """The cluster's side: pods come and go, Bindings are sent, late, twice; containers run."""

    def __init__(self, world: BindingWorld, open_store: OpenLedger, draw: random.Random) -> None:
        self.world = world
        self.draw = draw
        self.waiting = [self._pod(f"p{number}", number) for number in range(PODS)]
        self.running: dict[str, tuple[str, ...]] = {}
        """What containers use, also of pods that are gone."""
        self.outliving: set[str] = set()
        """Pods that are gone, with containers that are not."""
        self.seen: set[str] = set()
        """GPUs that were ever used."""
        self.late: list[tuple[str, Verdict, MortalReplica]] = []
        self.replicas: list[MortalReplica] = []
        self.dead: list[MortalReplica] = []
        self._deadly: set[str] = set()
        """Steps at which replicas die: each kills once."""
        self._open = open_store
        self._made = 0

    async def start(self) -> None:
        for _ in range(2):
            await self.add_replica()

    async def add_replica(self) -> None:
        self._made += 1
        made = MortalReplica(self.world, self._open(), f"{self._made:04x}", self.draw)
        await made.stand()
        self.replicas.append(made)

    async def rage(self, left: set[str]) -> None:
        """Until no pod waits: a replica dies where it takes one of `left`, and is replaced."""
        self._deadly = left
        await self.until("no pod waits", lambda: not self.waiting, turns=10 * MOST_TURNS)
        self._deadly = set()

    async def until(
        self, what: str, is_so: Callable[[], bool], *, calm: bool = False, turns: int = MOST_TURNS
    ) -> None:
        for _ in range(turns):
            if is_so():
                return
            await self.turn(calm=calm)
            await self._replace_the_dead()
        raise AssertionError(f"never: {what}; {self.world.states()}, {self.running}")

    async def turn(self, *, calm: bool) -> None:
        """Some seconds."""
        for replica in self.replicas:
            replica.life.dies_at = self._deadly
        self._pass_time()
        for replica in self.draw.sample(self.replicas, len(self.replicas)):
            await replica.look_after()
        if self.draw.random() < 0.5:
            self._land_late()
        await self._schedule(calm=calm)
        if not calm:
            self._end_some()
        await self.world.store.load()

    def is_full(self) -> bool:
        """All GPUs are confirmed, in containers of pods that are there."""
        states = self.world.states()
        used = [x for name in self._living() for x in self.running[name]]
        return sorted(used) == sorted(GPUS) == sorted(states) and all(
            x == ["Confirmed"] for x in states.values()
        )

    def is_over(self) -> bool:
        return not self.running and not self.world.states()

    def end_all(self) -> None:
        """Every pod goes; nothing runs."""
        for name in tuple(self.waiting):
            self._delete(name)
        for name in self._living():
            self._delete(name)
        self.waiting.clear()
        self.running.clear()
        self.outliving.clear()
        self.late.clear()

    async def close(self) -> None:
        for replica in (*self.replicas, *self.dead):
            await replica.buried()

    async def _replace_the_dead(self) -> None:
        for replica in tuple(self.replicas):
            if replica.life.is_over:
                self._deadly.discard(replica.life.last)
                self.replicas.remove(replica)
                self.dead.append(replica)
                await self.add_replica()

    def _pod(self, name: str, number: int) -> str:
        more = {"gpuwarden.dev/gpu-count": "2"} if number % 5 == 0 else {}
        return self.world.pod(name, annotations={**REQUIREMENT, **more})

    def _living(self) -> list[str]:
        return [name for name in self.running if name not in self.outliving]

    def _pass_time(self) -> None:
        """Some containers that outlived their pods end; now and then the node's agent reports."""
        for name in sorted(self.outliving):
            if self.draw.random() < 0.3:
                self.outliving.remove(name)
                del self.running[name]
        seconds = self.draw.choice((1, 5, 20))
        if self.draw.random() < 0.6:
            self.world.clock.advance(seconds)
            return
        processes = (
            GpuProcess(gpu, 1, f"uid-{name}") for name in self.running for gpu in self.running[name]
        )
        self.world.report(*processes, after_s=seconds)

    async def _schedule(self, *, calm: bool) -> None:
        """Some Bindings side by side; now and then one by both replicas, or refused later on."""
        count = min(len(self.waiting), self.draw.randint(1, 5))
        calls: list[Awaitable[None]] = []
        for name in self.draw.sample(self.waiting, count):
            twice = self.draw.random() < 0.2 and not calm
            chosen = self.replicas if twice else (self.draw.choice(self.replicas),)
            calls += [self._bind(name, replica, calm=calm) for replica in chosen]
        await asyncio.gather(*calls)

    async def _bind(self, name: str, replica: MortalReplica, *, calm: bool) -> None:
        verdict = await replica.answer(name)
        if verdict is None or verdict.refusals:
            return
        fate = 1.0 if calm else self.draw.random()
        if fate < 0.2:
            self.late.append((name, verdict, replica))
        elif fate > 0.3:
            self._land(name, verdict, replica)

    def _land_late(self) -> None:
        late, self.late = self.late, []
        for each in late:
            self._land(*each)

    def _land(self, name: str, verdict: Verdict, replica: MortalReplica) -> None:
        if not self.world.lands(name, verdict):
            return
        gpus = self.world.assigned()[name]
        used = {x: name for name, has in self.running.items() for x in has}
        assert not used.keys() & set(gpus), f"{name} gets {gpus} of {used}"
        self.running[name] = gpus
        self.seen |= set(gpus)
        self.waiting.remove(name)
        replica.life.take("binding written")

    def _end_some(self) -> None:
        for name in self._living():
            match self.draw.randrange(12):
                case 0:
                    ended = {"status": {"phase": "Succeeded"}}
                    self.world.pods.put(self.world.pods.stored[name] | ended)
                    self._tell(name, gone=False)
                    del self.running[name]
                case 1:
                    self._delete(name)
                    del self.running[name]
                case 2:
                    self._delete(name)
                    self.outliving.add(name)
        if self.waiting and self.draw.random() < 0.1:
            name = self.draw.choice(self.waiting)
            self.waiting.remove(name)
            self._delete(name)

    def _delete(self, name: str) -> None:
        del self.world.pods.stored[name]
        self.world.pods.catch_up()
        self._tell(name, gone=True)

    def _tell(self, name: str, *, gone: bool) -> None:
        """The watches say so; of a deletion, one that begins again does not."""
        for replica in self.replicas:
            if self.draw.random() < 0.7:
                replica.reconciler.pod_changed(f"uid-{name}", gone=gone)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=KINDS)
def open_store(request: pytest.FixtureRequest) -> OpenLedger:
    return shared_ledger(request.param)


@pytest.mark.timeout(600)  # 45 s of CPU: a limit for hangs, on a busy machine too
async def test_one_gpu_to_one_pod_whoever_dies_when(
    open_store: OpenLedger, clock: FakeClock
) -> None:
    left, taken = set(STEPS), set[str]()
    for seed in range(MOST_STORMS):
        world = BindingWorld(len(GPUS), store=open_store(), clock=clock)
        storm = Storm(world, open_store, random.Random(seed))  # noqa: S311 - repeatable on purpose
        try:
            await storm.start()
            await storm.until("all GPUs are in use", storm.is_full, calm=True)
            await storm.rage(left)
            await _all_is_free(storm)
        finally:
            await storm.close()
        taken |= {x for one in (*storm.replicas, *storm.dead) for x in one.life.taken}
        if not left:
            break
    assert left == set()
    assert taken - set(STEPS) == set()


async def _all_is_free(storm: Storm) -> None:
    """After the last pod has ended: nothing is held, and every GPU is given again."""
    assert storm.seen == GPUS
    storm.end_all()
    await storm.until("all is given back", storm.is_over)
    storm.waiting = [storm.world.pod(f"again-{number}") for number in range(len(GPUS))]
    await storm.until("all GPUs are in use again", storm.is_full, calm=True)
    storm.end_all()
    await storm.until("all is given back again", storm.is_over)
