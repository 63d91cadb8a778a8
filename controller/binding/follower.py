"""Sees reservations through: reads the ledger again and again, and does what `Followup` says.

One round a second; sooner where the watch shows a pod with a reservation change. What fails
is tried in the next round. Must not decide anything.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

from controller.binding.followup import Action, Around, Followup, LookFor, Rewrite, TouchPod
from controller.binding.footing_keeper import FootingKeeper
from controller.binding.recent_denials import RecentDenials
from controller.binding.records import ReservationChange
from controller.binding.stored_pod import PodsUnavailableError
from controller.ledger.adoption import LivePod
from controller.ledger.pods import PodGone, PodSeen, PodSight
from controller.ledger.record import PodRef
from controller.ledger.release import NodeGone, UseReport
from controller.ledger.store import LedgerStore, LedgerUnavailableError

ROUND_SECONDS: Final = 1.0
_AT_ONCE: Final = 16
"""Calls to API server and store that are on their way together."""
_ROUNDS_PER_SURVEY: Final = 10
"""Every so many rounds the whole ledger is compared with the pods."""


class PodSource(Protocol):
    """The pods of the cluster, by UID."""

    def sight(self, pod: PodRef) -> PodSight:
        """What the copy says; that it lacks a pod proves nothing."""

    def live(self) -> tuple[LivePod, ...]:
        """Bound pods that have not ended and say that they hold GPUs, from the copy."""

    async def look(self, pod: PodRef) -> PodSeen | PodGone:
        """Past the copy; raises PodsUnavailableError."""

    async def touch(self, pod: PodRef) -> PodSeen | PodGone:
        """Change the pod and give it as stored; raises PodsUnavailableError."""


class ChangeSink(Protocol):
    """Takes what becomes of reservations."""

    def changed(self, change: ReservationChange) -> None:
        """A change was written by this replica."""

    def wrote(self, result: str) -> None:
        """One write: written, overtaken or failed."""

    def ledger_read(self, error: str) -> None:
        """The ledger was read; `error` is empty, or says why not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerPorts:
    """What the follower asks and tells."""

    store: LedgerStore
    pods: PodSource
    report: Callable[[str], UseReport | None]
    gone: Callable[[str], NodeGone | None]
    denials: RecentDenials
    footing: FootingKeeper
    sink: ChangeSink
    wake: Callable[[Iterable[str]], None]
    """Have pods tried anew that these nodes may take now."""
    boottime_ns: Callable[[], int]


class ReservationFollower:
    """One per process; used from one event loop."""

    def __init__(self, ports: FollowerPorts, followup: Followup) -> None:
        self._ports = ports
        self._followup = followup
        self._gone: set[str] = set()
        """UIDs of pods that were proven to be gone, while the ledger names them."""
        self._changed: set[str] = set()
        self._news = asyncio.Event()
        self._rounds = 0

    def releases_on(self, node: str) -> bool:
        """Whether something is being released on a node."""
        return node in self._followup.releasing_nodes

    def pod_changed(self, uid: str, *, gone: bool) -> None:
        """The watch says that a pod has changed, or was deleted; returns at once."""
        if uid not in self._ports.store.snapshot().by_pod:
            return
        if gone:
            self._gone.add(uid)
        self._changed.add(uid)
        self._news.set()

    async def follow(self, seconds: float = ROUND_SECONDS) -> NoReturn:
        """Go on for ever; ends by cancellation only."""
        while True:
            await self.round()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            self._news.clear()

    async def round(self) -> None:
        """Read the ledger and do what is due."""
        ports = self._ports
        ports.wake(ports.denials.ended(ports.boottime_ns()))
        live, listed_ns = ports.pods.live(), ports.footing.listed_ns
        if not await self._read_ledger():
            return
        snapshot = ports.store.snapshot()
        self._gone = {uid for uid in self._gone if uid in snapshot.by_pod}
        surveys = not ports.footing.is_firm or self._rounds % _ROUNDS_PER_SURVEY == 0
        self._rounds += 1
        changed, self._changed = self._changed, set()
        around = Around(snapshot, self._sight, ports.report, ports.gone, ports.boottime_ns())
        await self._do(self._followup.steps(around, changed))
        if surveys:
            await ports.footing.survey(live, listed_ns)

    async def _read_ledger(self) -> bool:
        ports = self._ports
        asked_ns = ports.boottime_ns()
        try:
            await ports.store.load()
        except LedgerUnavailableError as error:
            ports.sink.ledger_read(str(error) or "the ledger's store does not answer")
            return False
        ports.footing.ledger_read(asked_ns)
        ports.sink.ledger_read("")
        return True

    def _sight(self, pod: PodRef) -> PodSight:
        """What the copy has beats an older proof: the API server may have been put back."""
        sight = self._ports.pods.sight(pod)
        return PodGone() if sight is None and pod.uid in self._gone else sight

    async def _do(self, actions: tuple[Action, ...]) -> None:
        few = asyncio.Semaphore(_AT_ONCE)

        async def one(action: Action) -> None:
            async with few:
                await self._done(action)

        await asyncio.gather(*map(one, actions))

    async def _done(self, action: Action) -> None:
        match action:
            case LookFor(pod):
                await self._looked_for(pod)
            case TouchPod(reservation, pod):
                asked_ns = self._ports.boottime_ns()
                answer = await _answered(self._ports.pods.touch(pod))
                if answer is not None:
                    self._followup.touched(reservation, answer, asked_ns)
                    self._news.set()
            case Rewrite():
                await self._rewritten(action)

    async def _looked_for(self, pod: PodRef) -> None:
        answer = await _answered(self._ports.pods.look(pod))
        if isinstance(answer, PodGone) and pod.uid is not None:
            self.pod_changed(pod.uid, gone=True)

    async def _rewritten(self, rewrite: Rewrite) -> None:
        ports, done = self._ports, []
        for entry, successor in rewrite.entries:
            try:
                written = await ports.store.compare_and_set(entry, successor)
            except LedgerUnavailableError:
                ports.sink.wrote("failed")
                continue
            ports.sink.wrote("written" if written else "overtaken")
            if written:
                done.append(successor.gpu)
        if not done:
            return
        change = rewrite.change.of(tuple(done))
        ports.sink.changed(change)
        if change.state.is_end:
            ports.wake((change.node,))


async def _answered(
    question: Awaitable[PodSeen | PodGone],
) -> PodSeen | PodGone | None:
    try:
        return await question
    except PodsUnavailableError:
        return None
