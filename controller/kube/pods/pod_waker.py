"""Has kube-scheduler try waiting pods again once they can be placed.

It looks at a pod that an extender rejected again only after an event that may help it. Better
evidence, or a GPU that has become free, is none. A change of the pod itself is one, for this very
pod; a change of a node would be one for all. Nobody reads the annotation, and nothing trusts it.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from controller.binding.request import PodsUnavailableError
from controller.binding.waking import Chosen, Room
from controller.fleet.trust import ChangeKind, TrustChange
from controller.kube.pods.pods import ClusterPods
from controller.ledger.record import PodRef
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

LOOK_SECONDS: Final = 0.5
KEPT_NS: Final = 15 * NS_PER_S
"""How long a node is remembered while no pod waits: the cache of the pods may be behind."""
WAVE_NS: Final = 3 * NS_PER_S
"""What was woken and is not placed by then gives way to others: it may lack something else."""
SETTLES_NS: Final = 2 * NS_PER_S
"""The caches of pods and ledger may be behind for so long."""
AGAIN_NS: Final = NS_PER_S
WAKES_PER_SECOND: Final = 50.0
BURST: Final = 100.0
MOST_AT_ONCE: Final = 64
"""Nodes and namespaces of one look."""
_HELPS: Final = frozenset(
    {
        ChangeKind.FIRST_ACCEPTED,
        ChangeKind.RESTORED,
        ChangeKind.FACTS_CHANGED,
        ChangeKind.GPU_BACK,
    }
)
_EVERYWHERE: Final = Room(everywhere=True)


@dataclass(frozen=True, slots=True)
class _Due:
    since_ns: int
    next_ns: int
    woken: frozenset[str] = frozenset()
    """UIDs of the pods that were woken for it."""


class WakeQueue:
    """Where there is room again, until no further pod can be placed there. Pure."""

    def __init__(self) -> None:
        self._due: dict[Room, _Due] = {}
        self._looked: tuple[Room, ...] = ()
        self._tokens = BURST
        self._filled_ns = 0

    def __len__(self) -> int:
        return len(self._due)

    def add(self, changes: Iterable[TrustChange], now_ns: int) -> None:
        """Take the nodes that may pass now for a pod that was rejected before."""
        self.add_nodes((change.node for change in changes if change.kind in _HELPS), now_ns)

    def add_nodes(self, nodes: Iterable[str], now_ns: int) -> None:
        """Take nodes that have room again."""
        for node in nodes:
            self._add(Room(nodes=frozenset({node})), now_ns)

    def add_namespaces(self, namespaces: Iterable[str], now_ns: int) -> None:
        """Take namespaces whose quota has room again."""
        for namespace in namespaces:
            self._add(Room(namespaces=frozenset({namespace})), now_ns)

    def add_everything(self, now_ns: int) -> None:
        """Any pod may pass anywhere now."""
        self._add(_EVERYWHERE, now_ns)

    def due(self, now_ns: int, *, pods_wait: bool) -> tuple[Room, frozenset[str]] | None:
        """Where to look now, the oldest first, and whom not to wake for it again."""
        self._fill(now_ns)
        if not pods_wait:
            self._due = {k: x for k, x in self._due.items() if now_ns - x.since_ns < KEPT_NS}
            return None
        found = {k: x for k, x in self._due.items() if x.next_ns <= now_ns}
        self._looked = tuple(found)[:MOST_AT_ONCE]
        if not self._looked:
            return None
        room = Room(
            frozenset().union(*(x.nodes for x in self._looked)),
            frozenset().union(*(x.namespaces for x in self._looked)),
            everywhere=_EVERYWHERE in self._looked,
        )
        return room, frozenset().union(*(found[x].woken for x in self._looked))

    def take(self, count: int) -> int:
        """How many of `count` pods may be woken now."""
        taken = min(count, int(self._tokens))
        self._tokens -= taken
        return taken

    def chose(self, choice: Chosen, now_ns: int) -> None:
        """Who was chosen where it was looked last; elsewhere of it there is nobody else."""
        for room in self._looked:
            due = self._due[room]
            anywhere = room.everywhere or bool(room.namespaces)
            pods = [pod for pod, node in choice.pods if anywhere or node in room.nodes]
            if pods:
                woken = due.woken | {x.uid or "" for x in pods}
                self._due[room] = replace(due, next_ns=now_ns + WAVE_NS, woken=woken)
            elif choice.is_unsure or now_ns - due.since_ns < SETTLES_NS:
                self._due[room] = replace(due, next_ns=now_ns + AGAIN_NS)
            else:
                del self._due[room]

    def _add(self, room: Room, now_ns: int) -> None:
        self._due.pop(room, None)
        self._due[room] = _Due(now_ns, now_ns)

    def _fill(self, now_ns: int) -> None:
        elapsed_s = max(0, now_ns - self._filled_ns) / NS_PER_S
        self._tokens = min(BURST, self._tokens + elapsed_s * WAKES_PER_SECOND)
        self._filled_ns = now_ns


Choose = Callable[[Room, frozenset[str]], Chosen]
"""The waiting pods that could all be placed in a room now, without those of these UIDs."""


def nobody(_room: Room, _without: frozenset[str]) -> Chosen:
    """Before it is known who decides."""
    return Chosen()


class PodWaker:
    """Changes waiting pods that can be placed, so that the scheduler tries them again.

    Every replica does so for what it has verified itself: whichever the scheduler asks next may
    have been the last to know. Used from one event loop.
    """

    def __init__(
        self,
        pods: ClusterPods,
        *,
        pods_wait: Callable[[], bool],
        clock: Clock,
        instruments: Instruments,
    ) -> None:
        """`pods_wait`: whether there is a managed pod that is not bound."""
        self._pods = pods
        self._pods_wait = pods_wait
        self._clock = clock
        self._queue = WakeQueue()
        self._count = instruments.counter(names.KUBE_REQUEUES)
        self._log = logger("kube")
        self._reported = False
        self.choose: Choose = nobody
        self.freed: Callable[[], Iterable[str]] = tuple
        """Namespaces that hold less of their quota than at the last call."""

    def wake(self, changes: Iterable[TrustChange]) -> None:
        """Remember what may help a waiting pod; returns at once."""
        self._queue.add(changes, self._clock.boottime_ns())

    def wake_nodes(self, nodes: Iterable[str]) -> None:
        """The same for nodes that have room again; returns at once."""
        self._queue.add_nodes(nodes, self._clock.boottime_ns())

    def wake_everything(self) -> None:
        """The same where any pod may pass now; returns at once."""
        self._queue.add_everything(self._clock.boottime_ns())

    async def follow(self, seconds: float = LOOK_SECONDS) -> NoReturn:
        """Wake who is due, forever; ends by cancellation only."""
        while True:
            await asyncio.sleep(seconds)
            await self.reconcile()

    async def reconcile(self) -> None:
        """Wake who is due now; one failure is enough for a while."""
        now_ns, queue = self._clock.boottime_ns(), self._queue
        queue.add_namespaces(self.freed(), now_ns)
        found = queue.due(now_ns, pods_wait=self._pods_wait())
        if found is None:
            return
        choice = self.choose(*found)
        few = replace(choice, pods=choice.pods[: queue.take(len(choice.pods))])
        if choice.pods and not few.pods:
            return
        queue.chose(few, now_ns)
        for pod, node in few.pods:
            if not await self._wake(pod):
                queue.add_nodes((node,), now_ns)
                return

    async def _wake(self, pod: PodRef) -> bool:
        try:
            await self._pods.requeue(pod)
        except PodsUnavailableError as error:
            self._count.labels("failed").inc()
            if not self._reported:
                self._log.warning(Event.KUBE_REQUEUE_FAILED, reason=str(error))
            self._reported = True
            return False
        self._count.labels("requeued").inc()
        self._reported = False
        return True
