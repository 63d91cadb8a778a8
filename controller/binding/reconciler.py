"""Keeps the ledger right: restores lost records after a start, and carries reservations on.

`StartupReconciler` reads and restores. `ReservationReconciler` does what `reconciliation.Followup`
decides. The steps of a restore, in order, and why a grant is refused until each is done:

1. Read all records and all pods: CONTROLLER_NOT_READY until both were read.
2. Read the audit log from before the start: CONTROLLER_NOT_READY until it was read.
3. Give live pods without a record theirs again: CONTROLLER_NOT_READY on their nodes until then.
4. Hold what only the log or the memory of this replica has: GPU_BUSY for these GPUs.
5. Hear the node about use: CONTROLLER_NOT_READY for the node; GPU_BUSY for a GPU in unreserved
   use.

Must not decide what becomes of a reservation.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

from controller.binding.asked_rounds import AskedRounds
from controller.binding.reconciliation import (
    Action,
    Around,
    Followup,
    LookFor,
    RequeuePod,
    Rewrite,
    TryAgain,
)
from controller.binding.records import ReservationSink
from controller.binding.request import PodStates, PodsUnavailableError
from controller.binding.turns import LostTurns, RecentDenials
from controller.fleet.view import FleetSnapshot
from controller.ledger.occupancy import (
    Known,
    ReconciliationState,
    grant_refusal,
    rolled_back,
    uncertainty,
)
from controller.ledger.record import (
    HolderState,
    PodGone,
    PodRef,
    PodSeen,
    PodSight,
    RecordInvalidError,
    key_of,
)
from controller.ledger.release import (
    ClusterState,
    Drift,
    NodeGone,
    UseReport,
    find_drift,
    unrecorded_nodes,
)
from controller.ledger.reservation_id import ReservationIds, ReservationSubject
from controller.ledger.restore import (
    Elsewhere,
    Grants,
    LivePod,
    LoggedGrant,
    granted_to,
    grants_of,
    lost_grants,
    restored_as_releasing,
    restored_for_pod,
)
from controller.ledger.store import Entry, LedgerSnapshot, LedgerStore, LedgerUnavailableError
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode, Refusal

# --- startup reconciliation


@dataclass(eq=False, kw_only=True)
class StartupReconciler:
    """One per process; used from one event loop."""

    store: LedgerStore
    pods: PodStates
    ids: ReservationIds | None
    fleet: Callable[[], FleetSnapshot]
    report: Callable[[str], UseReport | None]
    sink: ReservationSink
    boottime_ns: Callable[[], int]
    draw_call: Callable[[], str]
    """Hex digits, unlike any other's."""
    holding: Callable[[str], tuple[LivePod, ...]]
    """Those of the live pods that say that they hold a GPU."""
    log_replay: Callable[[], Awaitable[Grants]] | None = None
    """What the audit log has from before this start; raises OSError. None without one."""
    take_replaced: Callable[[], tuple[Entry, ...]] = tuple
    """Records whose place another took, without their end having been seen, since the last call."""
    listed_ns: int | None = field(init=False, default=None)
    """When the last list of all pods was asked for."""
    _reconciliation: ReconciliationState = field(init=False)
    _remembered: Grants = field(init=False, default_factory=dict)
    """Grants to restore, until the ledger has them on their own node."""
    _known: LedgerSnapshot = field(init=False, default_factory=LedgerSnapshot)
    _authentic: dict[LivePod, bool] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._reconciliation = ReconciliationState(
            self.boottime_ns(), log_replayed=self.log_replay is None
        )

    def refusal(self, node: str, gpus: tuple[str, ...]) -> Refusal | None:
        """What is against granting GPUs of a node now, besides their records."""
        known = Known(self.store.snapshot(), self.report(node), self.boottime_ns())
        refusal = grant_refusal(self._reconciliation, node, gpus, known)
        return refusal or self._held_by_pods(gpus)

    def _held_by_pods(self, gpus: tuple[str, ...]) -> Refusal | None:
        """Live pods keep their GPUs, whatever was done to their records."""
        snapshot = self.store.snapshot()
        for gpu in gpus:
            entry = snapshot.get(gpu)
            unrecorded = (
                x
                for x in self.holding(gpu)
                if entry is None or entry.record.holder(x.reservation) is None
            )
            if any(self._is_authentic(x) for x in unrecorded):
                return Refusal(ReasonCode.GPU_BUSY, f"a live pod without a record holds {gpu}")
        return None

    @property
    def is_firm(self) -> bool:
        """Whether startup reconciliation is complete: all was read and compared."""
        found, reads = (
            self._reconciliation,
            (self._reconciliation.ledger_read_ns, self._reconciliation.pods_read_ns),
        )
        read = all(x is not None and x >= found.since_ns for x in reads)
        return found.log_replayed and read

    @property
    def uncertainty(self) -> str | None:
        """What nothing is granted before, anywhere or on some nodes; for people."""
        return uncertainty(self._reconciliation)

    def pods_listed(self, asked_ns: int) -> None:
        """All pods were listed, asked for then; they count once they were compared."""
        self.listed_ns = asked_ns

    def ledger_read(self, asked_ns: int) -> None:
        """All records were read, asked for then."""
        snapshot = self.store.snapshot()
        before = _changed(self._known, snapshot)
        back, replaced = rolled_back(before, snapshot), grants_of(self.take_replaced())
        self._known = snapshot
        gone = lost_grants(grants_of(before.entries.values()), snapshot, ())
        unseen = [x for x in gone if back or (key_of(x.gpu), x.reservation) in replaced]
        ended = tuple(x for x in gone if x not in unseen)
        self._remembered = {**_without(self._remembered, ended), **_by_key(unseen)}
        self.sink.ended_elsewhere(ended)
        if back:
            self._reconciliation = replace(
                ReconciliationState(self.boottime_ns()),
                log_replayed=self._reconciliation.log_replayed,
            )
            self.pods.reread()
            self.sink.rollback_detected(back)
        self._reconciliation = replace(self._reconciliation, ledger_read_ns=asked_ns)

    async def reconcile(self, live: Iterable[LivePod], listed_ns: int | None) -> None:
        """Find drift and restore records.

        `live` was known before the ledger was last read, from a cache that was last listed at
        `listed_ns`: so each of them has its records in the ledger, if ever it had them. Whether
        they live still is looked up afterwards: many end while the ledger is read.
        """
        await self._replay_log()
        snapshot, fleet = self.store.snapshot(), self.fleet()
        still = frozenset(x.pod.uid for x in self.pods.live())
        drifts, lost = await asyncio.to_thread(self._compared, tuple(live), still, snapshot, fleet)
        missing = _by_key(x for drift in drifts for x in _grants_of(drift))
        self._remembered = {**self._remembered, **missing}
        self._reconciliation = replace(self._reconciliation, pods_read_ns=listed_ns)
        self._block_nodes(drifts, (*lost, *missing.values()))
        self.sink.drifts(Counter(x.kind for x in drifts))
        for drift in drifts:
            await self._restore(drift)
        if self.is_firm:
            restored = _by_key([x for x in lost if await self._hold(x)])
            lacking = lost_grants(self._remembered, self.store.snapshot(), ())
            self._remembered = {k: x for k, x in _by_key(lacking).items() if k not in restored}
            self._block_nodes(drifts, self._remembered.values())

    def _block_nodes(self, drifts: tuple[Drift, ...], lacking: Collection[LoggedGrant]) -> None:
        """Nothing is granted where the ledger still lacks something."""
        nodes = unrecorded_nodes(drifts) | {x.node for x in lacking}
        owed = frozenset(key_of(x.gpu) for x in lacking)
        self._reconciliation = replace(self._reconciliation, unrecorded=nodes, owed=owed)

    async def _replay_log(self) -> None:
        """Read the log from before the start, once."""
        if self._reconciliation.log_replayed or self.log_replay is None:
            return
        try:
            grants = await self.log_replay()
        except OSError:
            return  # whoever reads it has said so; the next comparison tries again
        self.sink.log_replayed(grants)
        self._remembered = {**grants, **self._remembered}
        self._reconciliation = replace(self._reconciliation, log_replayed=True)

    def _compared(
        self,
        live: tuple[LivePod, ...],
        still: frozenset[str | None],
        snapshot: LedgerSnapshot,
        fleet: FleetSnapshot,
    ) -> tuple[tuple[Drift, ...], tuple[LoggedGrant, ...]]:
        """On a thread: of a large cluster it takes a while. `still`: UIDs of pods that live now."""
        live = tuple(x for x in live if self._is_authentic(x))
        self._authentic = dict.fromkeys(live, True)
        pods = _seen(x for x in live if x.pod.uid in still)
        drifts = find_drift(snapshot, ClusterState(pods, live, _gpu_nodes(snapshot, fleet)))
        return drifts, lost_grants(self._remembered, snapshot, live)

    async def _hold(self, grant: LoggedGrant) -> bool:
        """Whether nothing is left to be done about it, since its GPU is held.

        Not while the GPU is recorded on another node. A pod that waits is requeued first: a Binding
        of it that was let through under this reservation may be on its way. One that runs without
        an id got its GPUs from kubelet, and has its record again from its node's next report.
        """
        try:
            sight = await self.pods.look(grant.pod)
            if isinstance(sight, PodSeen) and _is_kubelets(sight):
                return True
            entry = await self.store.read(grant.gpu)
            record = restored_as_releasing(
                None if entry is None else entry.record, grant, self.draw_call()
            )
            if record is None or isinstance(record, Elsewhere):
                return record is None
            if isinstance(sight, PodSeen) and not sight.node:
                await self.pods.requeue(grant.pod)
            if not await self.store.compare_and_set(entry, record):
                return False
        except RecordInvalidError:
            return True  # as many hold it as there may be
        except (PodsUnavailableError, LedgerUnavailableError):
            return False
        self.sink.kept(grant)
        return True

    async def _restore(self, drift: Drift) -> None:
        live = drift.restore
        if live is None:
            return
        try:
            if not _is_unchanged(await self.pods.look(live.pod), live):
                return
            entry = await self.store.read(drift.gpu)
            record = restored_for_pod(
                None if entry is None else entry.record, live, drift.gpu, self.draw_call()
            )
            if record is not None and await self.store.compare_and_set(entry, record):
                self.sink.restored(live, drift.gpu)
        except (PodsUnavailableError, LedgerUnavailableError, RecordInvalidError):
            return  # the node waits, and so it does for another node's record to end

    def _is_authentic(self, live: LivePod) -> bool:
        ids = self.ids
        if ids is None or self._authentic.get(live, False):
            return ids is not None
        subject = ReservationSubject(live.pod.namespace, live.node, live.gpus, live.pod.uid)
        return ids.is_authentic(live.reservation, subject)


def _gpu_nodes(snapshot: LedgerSnapshot, fleet: FleetSnapshot) -> dict[str, str]:
    """Which nodes show the GPUs that the ledger places on them, or not."""
    nodes = fleet.nodes
    reserved = {x.record.node for x in snapshot.entries.values()}
    accepted = ((x, view.acceptance) for x in reserved if (view := nodes.get(x)) is not None)
    return {
        key_of(gpu.uuid): node
        for node, acceptance in accepted
        if acceptance is not None
        for gpu in acceptance.gpus
    }


def _changed(known: LedgerSnapshot, now: LedgerSnapshot) -> LedgerSnapshot:
    """What was known of those records that are others now."""
    before = (known.entries.get(key) for key in now.entries.differences(known.entries))
    return LedgerSnapshot.of(x for x in before if x is not None)


def _grants_of(drift: Drift) -> tuple[LoggedGrant, ...]:
    """What a live pod lacks: its containers run on if it has gone before its record is restored."""
    return () if drift.restore is None else (granted_to(drift.restore, drift.gpu),)


def _without(remembered: Grants, ended: tuple[LoggedGrant, ...]) -> Grants:
    """What is to be remembered after ends that were seen: an operator's node shows none again.

    An attempt's end is none of what a log has as bound: the store may have been put back.
    """
    gone = _by_key(ended)

    def stays(key: tuple[str, str], grant: LoggedGrant) -> bool:
        end = gone.get(key)
        return end is None or end.node != grant.node or (grant.bound and not end.bound)

    return {key: grant for key, grant in remembered.items() if stays(key, grant)}


def _by_key(grants: Iterable[LoggedGrant]) -> Grants:
    return {(key_of(x.gpu), x.reservation): x for x in grants}


def _seen(live: Iterable[LivePod]) -> dict[str, PodSeen]:
    return {
        x.pod.uid: PodSeen(x.pod.uid, x.node, x.reservation, has_ended=False)
        for x in live
        if x.pod.uid is not None
    }


def _is_kubelets(pod: PodSeen) -> bool:
    return bool(pod.node) and pod.reservation is None and not pod.has_ended


def _is_unchanged(pod: PodSeen | PodGone, live: LivePod) -> bool:
    return (
        isinstance(pod, PodSeen)
        and not pod.has_ended
        and (pod.node, pod.reservation) == (live.node, live.reservation)
    )


# --- the reconciler of reservations
# It reads the ledger each second, and sooner when the watch shows a change of a pod with a
# reservation, or when a node has answered that a release waits for. What fails is tried again in
# the next round.

ROUND_SECONDS: Final = 1.0
BREATH_SECONDS: Final = 0.1
"""Between two rounds, whatever happens."""
_AT_ONCE: Final = 16
"""Calls to API server and store that are on their way together."""
_ROUNDS_PER_RECONCILE: Final = 10
"""Every so many rounds the whole ledger is compared with the pods."""


@dataclass(eq=False, kw_only=True)
class ReservationReconciler:
    """One per process; used from one event loop."""

    store: LedgerStore
    pods: PodStates
    report: Callable[[str], UseReport | None]
    gone: Callable[[str], NodeGone | None]
    denials: RecentDenials
    turns: LostTurns
    reconciliation: StartupReconciler
    sink: ReservationSink
    wake: Callable[[Iterable[str]], None]
    """Have pods tried again that these nodes may take now."""
    boottime_ns: Callable[[], int]
    followup: Followup
    is_connected: Callable[[str], bool]
    """Whether the agent of a node has a stream to this replica."""
    ask: Callable[[str], None]
    """Challenge a node at once, or as soon as its open challenge is answered."""
    _asked: AskedRounds = field(init=False, default_factory=AskedRounds)
    _gone: set[str] = field(init=False, default_factory=set)
    """UIDs of pods that were proven to be gone, while the ledger names them."""
    _changed: set[str] = field(init=False, default_factory=set)
    _news: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _rounds: int = field(init=False, default=0)

    def releases_on(self, node: str) -> bool:
        """Whether something is being released on a node."""
        return node in self.followup.releasing_nodes

    def pod_changed(self, uid: str, *, gone: bool) -> None:
        """The watch says that a pod has changed, or was deleted; returns at once."""
        if uid not in self.store.snapshot().by_pod:
            return
        if gone:
            self._gone.add(uid)
        self._changed.add(uid)
        self._news.set()

    def heard(self, node: str) -> None:
        """Evidence of a node was accepted; returns at once."""
        if node in self.followup.awaited:
            self._news.set()

    async def follow(self, seconds: float = ROUND_SECONDS) -> NoReturn:
        """Go on forever; ends by cancellation only."""
        loop = asyncio.get_running_loop()
        while True:
            await self.round()
            due = loop.time() + seconds
            while await self._is_woken_before(due):
                await self.round(is_whole=False)

    async def _is_woken_before(self, due: float) -> bool:
        """Whether, a breath from now, something is to be done before `due` (the loop's time)."""
        await asyncio.sleep(BREATH_SECONDS)
        loop, until = asyncio.get_running_loop(), due
        if self._asked.next_ns is not None:
            left_s = (self._asked.next_ns - self.boottime_ns()) / NS_PER_S
            until = min(due, loop.time() + left_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._news.wait()
        self._news.clear()
        return loop.time() < due

    async def round(self, *, is_whole: bool = True) -> None:
        """Read the ledger and do what is due.

        `is_whole`: look at confirmed reservations in turn, and compare the ledger with the pods.
        """
        again = [TryAgain(pod) for pod in self.denials.forget_ended(self.boottime_ns())]
        await self._do(tuple(again))
        live, listed_ns = self.pods.live(), self.reconciliation.listed_ns
        if not await self._read_ledger():
            return
        snapshot = self.store.snapshot()
        self._gone = {uid for uid in self._gone if uid in snapshot.by_pod}
        is_due = not self.reconciliation.is_firm or self._rounds % _ROUNDS_PER_RECONCILE == 0
        self._rounds += is_whole
        changed, self._changed = self._changed, set()
        around = Around(snapshot, self._sight, self.report, self.gone, self.boottime_ns())
        actions = (
            *self.followup.steps(around, changed, in_turn=is_whole),
            *self._turns(around),
        )
        self._ask_nodes(around.now_ns)
        await self._do(actions)
        if is_due and is_whole:
            await self.reconciliation.reconcile(live, listed_ns)

    def _ask_nodes(self, now_ns: int) -> None:
        """Those whose reports a release waits for, in their turn."""
        awaited = {k: x for k, x in self.followup.awaited.items() if self.is_connected(k)}
        for node in self._asked.due(awaited, now_ns):
            self.ask(node)

    def _turns(self, around: Around) -> Iterable[Action]:
        """Who has lost its turn, and whose turn it is again."""
        turns, now_ns = self.turns, around.now_ns
        for pod in self.followup.run_out:
            if pod.uid is not None:
                turns.lose(pod, now_ns)
        turns.keep(lambda pod: _waits(around.sight(pod)), now_ns)
        return [TryAgain(pod) for pod in turns.take_back(now_ns)]

    async def _read_ledger(self) -> bool:
        asked_ns = self.boottime_ns()
        try:
            await self.store.load()
        except LedgerUnavailableError as error:
            self.sink.ledger_read(str(error) or "the ledger's store does not answer")
            return False
        self.reconciliation.ledger_read(asked_ns)
        self.sink.ledger_read("")
        return True

    def _sight(self, pod: PodRef) -> PodSight:
        """The cache beats an older proof: the API server may have been restored from a backup."""
        sight = self.pods.sight(pod)
        return PodGone() if sight is None and pod.uid in self._gone else sight

    async def _do(self, actions: tuple[Action, ...]) -> None:
        few = asyncio.Semaphore(_AT_ONCE)

        async def one(action: Action) -> None:
            async with few:
                await self._carry_out(action)

        await asyncio.gather(*map(one, actions))

    async def _carry_out(self, action: Action) -> None:
        match action:
            case LookFor(pod):
                await self._look_for(pod)
            case RequeuePod(reservation, pod):
                asked_ns = self.boottime_ns()
                answer = await _ask(self.pods.requeue(pod))
                if answer is not None:
                    self.followup.requeued(reservation, answer, asked_ns)
                    self._news.set()
            case TryAgain(pod):
                await _ask(self.pods.requeue(pod))
            case Rewrite():
                await self._rewrite(action)

    async def _look_for(self, pod: PodRef) -> None:
        answer = await _ask(self.pods.look(pod))
        if isinstance(answer, PodGone) and pod.uid is not None:
            self.pod_changed(pod.uid, gone=True)

    async def _rewrite(self, rewrite: Rewrite) -> None:
        done = []
        for entry, successor in rewrite.entries:
            try:
                written = await self.store.compare_and_set(entry, successor)
            except LedgerUnavailableError:
                self.sink.wrote("failed")
                continue
            self.sink.wrote("written" if written else "overtaken")
            if written:
                done.append(successor.gpu)
        if not done:
            return
        change = rewrite.change.of(tuple(done))
        self.sink.changed(change)
        if change.state is HolderState.RELEASING:
            self._news.set()
        if rewrite.ended_ns is not None:
            self.sink.freed((self.boottime_ns() - rewrite.ended_ns) / NS_PER_S)
        if change.state.is_end:
            self.wake((change.node,))


def _waits(pod: PodSight) -> bool:
    return isinstance(pod, PodSeen) and not pod.node and not pod.has_ended


async def _ask(
    question: Awaitable[PodSeen | PodGone],
) -> PodSeen | PodGone | None:
    try:
        return await question
    except PodsUnavailableError:
        return None
