"""Keeps the fleet of this controller in step with the quarantine entries of the enrollment store.

Must not decide who is quarantined: it carries out what the store and the audit log hold.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from controller.fleet.enrollment import (
    AUTOMATIC,
    EnrollmentSnapshot,
    EnrollmentStore,
    EnrollmentUnavailableError,
    QuarantineEntry,
)
from controller.fleet.quarantine import (
    QuarantineEntries,
    QuarantineFate,
)
from controller.fleet.registry import FleetRegistry
from controller.fleet.trust import TrustChange
from controller.fleet.view import NodeState
from gpuwarden.clock import Clock
from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

Changes = tuple[TrustChange, ...]
LogReplayer = Callable[[], Awaitable[Mapping[str, QuarantineEntry]]]
"""Quarantine entries in force when this replica last knew, by node; raises OSError."""
RECONCILE_SECONDS: Final = 0.5


class ChangeObserver(Protocol):
    """Records what followed (`controller.recorders`). Must return at once."""

    def changed(self, changes: Changes, actor: str) -> None:
        """`actor` caused `changes`."""

    def denial(self, node: str, denial: QuarantineEntry, fate: QuarantineFate) -> None:
        """`denial` has become `fate` in the store."""


class QuarantineReconciler:
    """Reads the store again and again, and quarantines or releases nodes by it; one per process.

    1. An entry that another replica, an operator or an earlier process wrote takes the node out
       here within a second (the entry's code, else NODE_DENIED).
    2. Only an operator's act lets the node try again: the record says which entry it has ended.
    3. An entry that is gone without such an act was lost (a store that was put back to an old copy,
       an edit by hand): it stays in force here and is written again.
    4. So is an entry that the audit log of this replica knows from before its start.
    5. An unreadable store changes nothing here; it goes stale by itself (ENROLLMENT_STALE).
    """

    def __init__(
        self,
        store: EnrollmentStore,
        denials: QuarantineEntries,
        fleet: FleetRegistry,
        *,
        clock: Clock,
        observer: ChangeObserver,
        instruments: Instruments,
        log_replay: LogReplayer | None = None,
    ) -> None:
        """`log_replay`: what the audit log knows from before this start."""
        self._log_replay = log_replay
        self._store = store
        self._denials = denials
        self._fleet = fleet
        self._clock = clock
        self._observer = observer
        self._available = instruments.gauge(names.STORE_AVAILABLE)
        self._nodes = instruments.gauge(names.NODES_QUARANTINED)
        self._log = logger("store")
        self._denied: Mapping[str, QuarantineEntry] = {}
        """Quarantine entries that are in force here: seen in the store, or lost by it."""
        self._stand: Mapping[str, QuarantineEntry] = {}
        """Those that the store had at the last reconcile."""
        self._settled: dict[str, int] = {}
        """How many of our own entries a reconcile has found to be in the store or lifted."""
        self._read: EnrollmentSnapshot | None = None
        self._trouble = ""

    async def begin(self) -> None:
        """Read the store for the first time; raises EnrollmentUnavailableError."""
        await self._remember()
        self._sync(await self._store.load(), self._denials.counts)
        self._available.set(1)
        await self._denials.retry()

    async def reconcile(self) -> None:
        """Read what has changed, carry it out, and write what could not be written before."""
        await self._remember()
        counts = dict(self._denials.counts)
        try:
            snapshot = await self._store.load()
        except EnrollmentUnavailableError as error:
            self._tell(str(error))
            return
        self._tell("")
        self._available.set(1)
        self._sync(snapshot, counts)
        await self._denials.retry()

    async def follow(self, seconds: float = RECONCILE_SECONDS) -> None:
        """Reconcile forever."""
        while True:
            await asyncio.sleep(seconds)
            await self.reconcile()

    async def _remember(self) -> None:
        """What the log knows counts as seen before; tried again until the log can be read."""
        if self._log_replay is None:
            return
        try:
            logged = await self._log_replay()
        except OSError:
            return  # whoever reads it has said so
        self._log_replay = None
        self._denied = {**logged, **self._denied}

    def _sync(self, snapshot: EnrollmentSnapshot, counts: Mapping[str, int]) -> None:
        """`counts` of our own quarantine entries, as they were before the store was asked."""
        denied = self._stand
        if self._read is None or snapshot.records is not self._read.records:
            denied = {k: x.denial for k, x in snapshot.records.items() if x.denial is not None}
            self._nodes.set(len(denied))
        ours = self._ours(counts)
        lost = {}
        for node in (self._denied.keys() | ours) - denied.keys():
            if not self._may_be_lifted(node, counts):
                continue
            ended, record = self._last(node, ours), snapshot.records.get(node)
            if record is not None and record.has_lifted(ended):
                self._let_try(node, ended)
            else:
                lost[node] = ended
        self._tell_of(denied, lost)
        if denied or lost:
            self._take_out({**lost, **denied})
        for node, denial in lost.items():
            self._denials.again(node, denial)
        self._settled |= {node: counts[node] for node in ours}
        self._denied, self._stand, self._read = {**lost, **denied}, denied, snapshot

    def _ours(self, counts: Mapping[str, int]) -> set[str]:
        """Nodes that we quarantined since the last reconcile, all of it written before this one."""
        return {
            node
            for node, count in counts.items()
            if count != self._settled.get(node, 0) and self._may_be_lifted(node, counts)
        }

    def _may_be_lifted(self, node: str, counts: Mapping[str, int]) -> bool:
        """Whether the store's answer is newer than all that we have quarantined."""
        is_written = node not in self._denials.unwritten
        return is_written and self._denials.counts.get(node, 0) == counts.get(node, 0)

    def _take_out(self, denied: Mapping[str, QuarantineEntry]) -> None:
        views, now_ns, wall_ns = self._fleet.snapshot().nodes, *self._times()
        for node, denial in denied.items():
            view = views.get(node)
            if view is not None and view.state(now_ns) is NodeState.QUARANTINED:
                continue
            changes = self._fleet.quarantine(
                node,
                code=code_of(denial),
                reason=reason_of(denial),
                now_ns=now_ns,
                wall_ns=wall_ns,
            )
            self._observer.changed(changes, AUTOMATIC)

    def _last(self, node: str, ours: set[str]) -> QuarantineEntry:
        """The last quarantine entry in force, as far as it is known here."""
        written = self._denials.written.get(node) if node in ours else None
        known = (self._denied.get(node), written)
        return max((x for x in known if x is not None), key=lambda x: x.wall_ns)

    def _tell_of(
        self, denied: Mapping[str, QuarantineEntry], lost: Mapping[str, QuarantineEntry]
    ) -> None:
        for node, denial in denied.items():
            if denial not in {self._stand.get(node), self._denials.written.get(node)}:
                self._observer.denial(node, denial, QuarantineFate.EXISTS)
        for node, denial in lost.items():
            self._observer.denial(node, denial, QuarantineFate.LOST)

    def _let_try(self, node: str, ended: QuarantineEntry) -> None:
        self._observer.denial(node, ended, QuarantineFate.LIFTED)
        now_ns, wall_ns = self._times()
        changes = self._fleet.release(
            node,
            reason="an operator ended its quarantine, by the store",
            now_ns=now_ns,
            wall_ns=wall_ns,
        )
        self._observer.changed(changes, AUTOMATIC)

    def _times(self) -> tuple[int, int]:
        return self._clock.boottime_ns(), self._clock.wall_ns()

    def _tell(self, trouble: str) -> None:
        """Once per change."""
        if bool(trouble) is not bool(self._trouble):
            self._available.set(not trouble)
            if trouble:
                self._log.error(Event.STORE_UNAVAILABLE, reason=trouble)
            else:
                self._log.info(Event.STORE_AVAILABLE)
        self._trouble = trouble


def code_of(denial: QuarantineEntry) -> ReasonCode:
    """The reason code that people see; NODE_DENIED where the entry has none of ours."""
    return ReasonCode.__members__.get(denial.code, ReasonCode.NODE_DENIED)


def reason_of(denial: QuarantineEntry) -> str:
    """The cause, and whose decision it was unless evidence decided."""
    if denial.actor == AUTOMATIC:
        return denial.reason
    return f"quarantined by {denial.actor}: {denial.reason}"
