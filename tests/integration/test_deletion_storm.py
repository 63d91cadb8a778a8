"""A thousand pods end at once: no reservation outlives them, and nobody is asked more than once."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import pytest

from controller.ledger.claim import Claim, Claimant
from controller.ledger.record import Origin, PodRef
from controller.ledger.release import NodeGone
from controller.ledger.reservation_id import ReservationSubject
from controller.placement.keys import RESERVATION_ID
from tests.builders.bindings import IDS, env_pod
from tests.fakes.binding_world import BindingWorld, Replica
from tests.fakes.clock import FakeClock
from tests.fakes.shared_ledger import KINDS, OpenLedger, shared_ledger

NODES: Final = 125
GPUS: Final = 8
"""Per node; each is one pod's."""
MOST_ROUNDS: Final = 20


@dataclass
class Cluster:
    """Two replicas, and a pod on every GPU."""

    world: BindingWorld
    open_store: OpenLedger
    replicas: list[Replica]

    def end_all(self, status: dict[str, str] | None) -> None:
        """All pods at once: with this status, or none is there any more."""
        pods = self.world.pods
        for name, pod in tuple(pods.stored.items()):
            if status is None:
                del pods.stored[name]
            else:
                pods.stored[name] = pod | {"status": status}
        pods.catch_up()

    def tell(self, *, gone: bool) -> None:
        """The watches of both replicas bring it."""
        for replica in self.replicas:
            for uid in tuple(replica.store.snapshot().by_pod):
                replica.reconciler.pod_changed(uid, gone=gone)

    def held(self) -> int:
        return len(self.world.states())

    async def fill(self) -> None:
        """Every pod is bound and claims its GPU; the watch confirms it."""
        claimant = Claimant(self.replicas[0].store)
        claims = [self._bound(f"pod-{number}", number) for number in range(NODES * GPUS)]
        await asyncio.gather(*map(claimant.claim, claims))
        self.world.pods.catch_up()
        await self.rounds(1)
        assert set(map(tuple, self.world.states().values())) == {("Confirmed",)}
        assert self.held() == NODES * GPUS

    def _bound(self, name: str, number: int) -> Claim:
        """As the binding webhook and the API server leave it."""
        node = f"gpu-{number % NODES + 1}"
        pod = PodRef("team-a", name, f"uid-{name}")
        gpus = (f"GPU-{node}-{number // NODES}",)
        reservation = IDS.make(ReservationSubject(pod.namespace, node, gpus, f"uid-{name}"))
        told = {RESERVATION_ID: reservation, "gpuwarden.dev/gpu-uuids-assigned": gpus[0]}
        document = env_pod(told, name=name, uid=f"uid-{name}")
        document["spec"]["nodeName"] = node
        self.world.pods.stored[name] = document
        return Claim(reservation, pod, node, gpus, Origin.BINDING_WEBHOOK, f"{number:08x}")

    async def rounds(self, count: int, *, reported: bool = True) -> None:
        """Of both, side by side, each after a report of every node."""
        for _ in range(count):
            if reported:
                self.world.report()
            await asyncio.gather(*(x.reconciler.round() for x in self.replicas))
        await self.world.store.load()

    async def all_is_free(self) -> None:
        for _ in range(MOST_ROUNDS):
            await self.rounds(1)
            if not self.world.states():
                break
        assert self.world.states() == {}
        for replica in self.replicas:
            assert replica.store.snapshot().by_pod == {}


async def deleted(cluster: Cluster) -> None:
    cluster.end_all(None)
    cluster.tell(gone=True)
    await cluster.all_is_free()
    assert cluster.world.pods.reads == []


async def completed(cluster: Cluster) -> None:
    cluster.end_all({"phase": "Succeeded"})
    cluster.tell(gone=False)
    await cluster.all_is_free()
    assert cluster.world.pods.reads == []


async def unseen(cluster: Cluster) -> None:
    """The watches begin again meanwhile: that the copy lacks a pod proves nothing."""
    cluster.end_all(None)
    await cluster.all_is_free()
    asked = Counter(cluster.world.pods.reads)
    assert set(asked.values()) <= {1, len(cluster.replicas)}


async def while_all_were_down(cluster: Cluster) -> None:
    """Whoever starts then finds a thousand records of pods that nobody remembers."""
    cluster.replicas.clear()
    cluster.end_all(None)
    for name in "cd":
        cluster.replicas.append(await cluster.world.replica(name, cluster.open_store()))
    await cluster.all_is_free()


async def while_the_api_server_was_away(cluster: Cluster) -> None:
    """Nobody is believed to be gone whom only the copy lacks."""
    pods = cluster.world.pods
    pods.down, pods.copy = True, {}
    await cluster.rounds(3)
    assert set(map(tuple, cluster.world.states().values())) == {("Confirmed",)}
    cluster.end_all(None)
    await cluster.rounds(3)
    assert cluster.held() == NODES * GPUS
    cluster.world.pods.down = False
    await cluster.all_is_free()


async def with_their_nodes(cluster: Cluster) -> None:
    """What ran on deleted nodes is waited for, as long as the nodes are silent."""
    world = cluster.world
    gone = NodeGone(world.clock.boottime_ns())
    world.gone |= {f"gpu-{number}": gone for number in range(1, NODES + 1)}
    cluster.end_all(None)
    for _ in range(9):
        world.clock.advance(30)
        await cluster.rounds(1, reported=False)
        assert cluster.held() == NODES * GPUS
    world.clock.advance(60)
    await cluster.rounds(1, reported=False)
    assert cluster.held() == 0


WAYS: Final = (
    deleted,
    completed,
    unseen,
    while_all_were_down,
    while_the_api_server_was_away,
    with_their_nodes,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=KINDS)
def open_store(request: pytest.FixtureRequest) -> OpenLedger:
    return shared_ledger(request.param)


@pytest.mark.parametrize("end", WAYS, ids=lambda x: x.__name__)
async def test_no_reservation_outlives_its_pod(
    open_store: OpenLedger, clock: FakeClock, end: Callable[[Cluster], Awaitable[None]]
) -> None:
    world = BindingWorld(*[GPUS] * NODES, store=open_store(), clock=clock)
    cluster = Cluster(world, open_store, [])
    for name in "ab":
        cluster.replicas.append(await world.replica(name, open_store()))
    await cluster.fill()
    await end(cluster)
    await world.store.load()
    assert world.states() == {}
