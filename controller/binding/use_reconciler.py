"""Records kubelet's allocations, reports mismatches with the ledger, and evicts pods.

Each accepted evidence of a node is looked at once. A GPU that kubelet has given to a managed pod
gets its record. A mismatch is reported when it begins and when it ends; on a silent node it ends
with its pod. Where the policy says so, one replica evicts. When a GPU without a record is free
again, waiting pods are requeued. What fails is tried again with the next report. Must not decide
or release anything.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NoReturn, Protocol

from controller.binding.idle import (
    ACCOUNTED_NS,
    Account,
    IdleChanges,
    IdleGpu,
    IdleWatch,
)
from controller.binding.reconciliation import KubeletAllocations, Showing
from controller.binding.request import BoundPod, BoundPods
from controller.binding.use import (
    Evictions,
    FaultChanges,
    FaultWatch,
    UseCase,
    UseFault,
    UseFaultKind,
    use_faults,
    without_early,
)
from controller.binding.use_records import RememberedUse
from controller.fleet.view import Acceptance, FleetSnapshot, NodeView
from controller.ledger.occupancy import Holders
from controller.ledger.record import GpuRecord, PodRef, RecordInvalidError
from controller.ledger.release import GivenGpu, UseReport, allocation_recorded
from controller.ledger.reservation_id import ReservationIds, ReservationSubject
from controller.ledger.store import LedgerStore, LedgerUnavailableError, Written, change_record
from controller.placement.devices import DevicePool, taken_without_record
from controller.policy import NodeMode
from gpuwarden.reasons import Refusal

ROUND_SECONDS: Final = 1.0
_BREATH: Final = 256
"""Nodes that are looked at before others get their turn."""


class UseSink(Protocol):
    """Takes what was found and done; never waits, never raises."""

    def allocation_recorded(self, given: GivenGpu, reservation: str, evidence: str) -> None:
        """This replica recorded kubelet's allocation of a GPU, by evidence of that digest."""

    def wrote(self, result: str) -> None:
        """One write: written, overtaken or failed."""

    def compared(self, changes: FaultChanges, counts: Mapping[UseFaultKind, int]) -> None:
        """Disagreements began, ended or went on after a restart; `counts` is of all that exist."""

    def idled(self, changes: IdleChanges, standing: int) -> None:
        """GPUs began or ceased to be idle, or are after a restart; `standing`: how many are now."""

    def accounted(self, accounts: Mapping[str, Account]) -> None:
        """GPU time of namespaces since this was told last."""

    def evicted(self, pod: PodRef, error: str) -> None:
        """A pod was evicted, or `error` says why not."""


class Evictor(Protocol):
    """Evicts pods as `policy/v1` Eviction."""

    async def evict(self, pod: PodRef) -> str:
        """Evict the pod of that UID; empty where that was done or it is gone, else why not."""


@dataclass(frozen=True, slots=True)
class UseNow:
    """What nodes show of use at one moment, for people and metrics."""

    faults: tuple[UseFault, ...] = ()
    idle: tuple[IdleGpu, ...] = ()
    """The longest idle first."""
    accounts: Mapping[str, Account] = field(default_factory=dict)
    """By namespace."""
    since: str = ""
    """RFC 3339, from when on the accounts count; empty where only since the start."""


@dataclass(eq=False, kw_only=True)
class UseReconciler:
    """One per process; used from one event loop."""

    store: LedgerStore
    pods: BoundPods
    ids: ReservationIds | None
    """None where `admission.idKeys` is not set: then no allocation is recorded."""
    fleet: Callable[[], FleetSnapshot]
    report: Callable[[str], UseReport | None]
    fits: Callable[[BoundPod, str], bool]
    """Whether a GPU of the pod's node is one that it has asked for."""
    is_firm: Callable[[], bool]
    """Whether ledger and pods were read, and compared with each other."""
    may_evict: Callable[[], bool]
    """Whether the policy says so and this replica leads."""
    evictor: Evictor
    wake: Callable[[Iterable[str]], None]
    """Have pods tried again that these nodes may take now."""
    sink: UseSink
    boottime_ns: Callable[[], int]
    draw_call: Callable[[], str]
    """Hex digits, unlike any other's."""
    recall: Callable[[], Awaitable[RememberedUse]]
    """What the audit log has of use from before the start; raises OSError."""
    _idle: IdleWatch = field(init=False, default_factory=IdleWatch)
    _is_recalled: bool = field(init=False, default=False)
    _accounted_ns: int | None = field(init=False, default=None)
    _allocations: KubeletAllocations = field(init=False, default_factory=KubeletAllocations)
    _faults: FaultWatch = field(init=False, default_factory=FaultWatch)
    _evictions: Evictions = field(init=False, default_factory=Evictions)
    _looked_at: dict[str, Acceptance] = field(init=False, default_factory=dict)
    _taken: dict[str, frozenset[str]] = field(init=False, default_factory=dict)
    """By `env` node: devices that pods have there without a record."""
    _fleet: FleetSnapshot | None = field(init=False, default=None)

    async def follow(self, seconds: float = ROUND_SECONDS) -> NoReturn:
        """Go on forever; ends by cancellation only."""
        try:
            while True:
                await self.round()
                await asyncio.sleep(seconds)
        finally:
            self.sink.accounted(self._idle.take_accounts())

    async def round(self) -> None:
        """Look at what nodes have reported since the last round."""
        if not self.is_firm():
            return
        await self._recall()
        for position, (node, acceptance) in enumerate(self._take_news()):
            await self._compare(node, acceptance)
            if position % _BREATH == 0:
                await asyncio.sleep(0)
        self._end_of_silent_nodes()
        self._account()
        if self.may_evict():
            await self._evict()

    def now(self) -> UseNow:
        """What nodes show, as of the last round."""
        faults = sorted(self._faults.standing(), key=lambda x: (x.since_wall_ns, x.node, x.gpu))
        return UseNow(
            tuple(faults), self._idle.standing(), self._idle.accounts(), self._idle.accounted_since
        )

    async def _recall(self) -> None:
        """Once; a log that cannot be read costs the time before this start, and nothing else."""
        if self._is_recalled:
            return
        self._is_recalled = True
        with suppress(OSError):
            found = await self.recall()
            self._idle.remember(found.idle)
            self._faults.remember(found.faults)

    def _account(self) -> None:
        """Tell the accounts now and then."""
        now_ns = self.boottime_ns()
        if self._accounted_ns is None:
            self._accounted_ns = now_ns
        if now_ns - self._accounted_ns >= ACCOUNTED_NS:
            self._accounted_ns = now_ns
            self.sink.accounted(self._idle.take_accounts())

    def _report_idle(self, changes: IdleChanges) -> None:
        if changes:
            self.sink.idled(changes, len(self._idle.standing()))

    def _take_news(self) -> Iterator[tuple[NodeView, Acceptance]]:
        fleet = self.fleet()
        if fleet is self._fleet:
            return
        self._fleet, nodes = fleet, fleet.nodes
        for gone in self._looked_at.keys() - nodes.keys():
            del self._looked_at[gone]
            self._allocations.forget(gone)
            self._taken.pop(gone, None)
            self._report_changes(self._faults.reported(gone, ()))
            self._report_idle(self._idle.forget(gone))
        now_ns = self.boottime_ns()
        for name, node in nodes.items():
            found = node.acceptance
            if found is None or found is self._looked_at.get(name):
                continue
            self._looked_at[name] = found
            if now_ns < found.fresh_until_ns:
                yield node, found

    def _end_of_silent_nodes(self) -> None:
        """No report of theirs ends anything: what depends on a pod or record ends with it."""
        now_ns, ledger = self.boottime_ns(), self.store.snapshot()
        for node, last in self._looked_at.items():
            if now_ns >= last.fresh_until_ns:
                self._report_changes(self._faults.without_report(node, self.pods))
                self._report_idle(self._idle.without_report(node, ledger))

    async def _compare(self, node: NodeView, acceptance: Acceptance) -> None:
        report = self.report(node.name)
        if report is None:
            return
        self._wake_waiting(node, acceptance)
        if not await self._record_allocations(node, acceptance, report):
            return
        case = UseCase(
            node.name,
            node.mode,
            acceptance,
            report,
            self.store.snapshot(),
            self.pods,
            self.fits,
        )
        whole = report.given is not None and report.users is not None
        awaited = frozenset[GivenGpu]()
        if self.ids is not None:
            awaited = self._allocations.awaited(node.name, report)
        sure, early = without_early(use_faults(case), awaited)
        self._report_changes(self._faults.reported(node.name, sure, early=early, whole=whole))
        idle = self._idle.reported(node.name, acceptance, report, case.ledger, self._uid_of)
        self._report_idle(idle)

    def _uid_of(self, uid: str) -> str | None:
        found = self.pods.with_uid(uid)
        return None if found is None else found.pod.uid

    def _wake_waiting(self, node: NodeView, acceptance: Acceptance) -> None:
        """What ends without a record is followed by no release that would wake anybody."""
        before = self._taken.pop(node.name, frozenset())
        if node.mode is not NodeMode.ENV:
            return
        holders = Holders(self.store.snapshot().entries)
        now = taken_without_record(DevicePool(acceptance), holders, ())
        if now:
            self._taken[node.name] = now
        if before - now:
            self.wake((node.name,))

    def _report_changes(self, changes: FaultChanges) -> None:
        if changes:
            self.sink.compared(changes, self._faults.counts())

    async def _record_allocations(
        self, node: NodeView, acceptance: Acceptance, report: UseReport
    ) -> bool:
        """Record what is due; False where a write failed: then nothing is compared yet."""
        if node.mode is not NodeMode.PLUGIN:
            self._allocations.forget(node.name)
            return True
        showing = Showing.of(node.name, acceptance)
        due = self._allocations.due(showing, report, self.pods, self.boottime_ns())
        if self.ids is None:
            return True
        return all([await self._record_allocation(given, report, self.ids) for given in due])

    async def _record_allocation(
        self, given: GivenGpu, report: UseReport, ids: ReservationIds
    ) -> bool:
        subject = ReservationSubject(given.pod.namespace, given.node, (given.gpu,), given.pod.uid)
        reservation, call = ids.make(subject), self.draw_call()

        async def decide(record: GpuRecord | None) -> GpuRecord | None:
            return allocation_recorded(record, given, reservation, call, report)

        try:
            found = await change_record(self.store, given.gpu, decide, self.sink.wrote)
        except LedgerUnavailableError:
            return False
        except RecordInvalidError:
            self.sink.wrote("failed")
            return False
        if isinstance(found, Written):
            self.sink.allocation_recorded(given, reservation, report.evidence)
        return not isinstance(found, Refusal)

    async def _evict(self) -> None:
        for pod in self._evictions.due(self._faults.standing(), self.boottime_ns(), self.pods):
            error = await self.evictor.evict(pod)
            self._evictions.asked(pod, done=not error, now_ns=self.boottime_ns())
            self.sink.evicted(pod, error)
