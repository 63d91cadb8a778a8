"""Keeps the fleet of this controller and the store of one mind about who is denied.

The store is read again and again: a denial that another replica, an operator or an earlier
process wrote takes the node out here within a second. Only an operator's act lets it try
again, and the record says which denial that act has ended. A denial that is gone without such
a word was lost (a store that was put back to an old copy, an edit by hand): it stands here,
and is written again. So is one that the audit log of this replica knows from before its
start. An unreadable store changes nothing here and goes stale by itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from controller.fleet.denials import DenialFate, Denials
from controller.fleet.enrollment import (
    AUTOMATIC,
    Denial,
    EnrollmentSnapshot,
    EnrollmentStore,
    EnrollmentUnavailableError,
)
from controller.fleet.node_trust import TrustChange
from controller.fleet.view import FleetSnapshot, NodeState
from gpuwarden.clock import Clock
from gpuwarden.reasons import ReasonCode
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

Changes = tuple[TrustChange, ...]
Recall = Callable[[], Awaitable[Mapping[str, Denial]]]
"""Denials that stood when this replica last knew, by node; raises OSError."""
LOOK_SECONDS: Final = 0.5


class DeniableFleet(Protocol):
    """The fleet, as denials change it."""

    def snapshot(self) -> FleetSnapshot:
        """The fleet now."""

    def quarantine(
        self, node: str, *, code: ReasonCode, reason: str, now_ns: int, wall_ns: int
    ) -> Changes:
        """Take the node out until it is released."""

    def release(self, node: str, *, reason: str, now_ns: int, wall_ns: int) -> Changes:
        """Let a quarantined node try again."""


class ChangeObserver(Protocol):
    """Is told what followed. Must return at once."""

    def changed(self, changes: Changes, actor: str) -> None:
        """`actor` caused `changes`."""

    def denial(self, node: str, denial: Denial, fate: DenialFate) -> None:
        """What the store says has become of a denial."""


class DenialFollower:
    """One for the process."""

    def __init__(
        self,
        store: EnrollmentStore,
        denials: Denials,
        fleet: DeniableFleet,
        *,
        clock: Clock,
        observer: ChangeObserver,
        instruments: Instruments,
        recall: Recall | None = None,
    ) -> None:
        """`recall`: what the audit log knows from before this start."""
        self._recall = recall
        self._store = store
        self._denials = denials
        self._fleet = fleet
        self._clock = clock
        self._observer = observer
        self._available = instruments.gauge(names.STORE_AVAILABLE)
        self._nodes = instruments.gauge(names.NODES_DENIED)
        self._log = logger("store")
        self._denied: Mapping[str, Denial] = {}
        """Denials that are in force here: seen in the store, or lost by it."""
        self._stand: Mapping[str, Denial] = {}
        """Those that the store had at the last look."""
        self._settled: dict[str, int] = {}
        """Of our own denials, how many a look has found to be in the store or lifted."""
        self._read: EnrollmentSnapshot | None = None
        self._trouble = ""

    async def begin(self) -> None:
        """Read the store for the first time; raises EnrollmentUnavailableError."""
        await self._remember()
        self._sync(await self._store.load(), self._denials.counts)
        self._available.set(1)
        await self._denials.retry()

    async def look(self) -> None:
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

    async def follow(self, seconds: float = LOOK_SECONDS) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(seconds)
            await self.look()

    async def _remember(self) -> None:
        """What the log knows counts as seen before; tried again until the log can be read."""
        if self._recall is None:
            return
        try:
            logged = await self._recall()
        except OSError:
            return  # whoever reads it has said so
        self._recall = None
        self._denied = {**logged, **self._denied}

    def _sync(self, snapshot: EnrollmentSnapshot, counts: Mapping[str, int]) -> None:
        """`counts` of our own denials, as they were before the store was asked."""
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
        """Nodes that we denied since the last look, all of it written before this one."""
        return {
            node
            for node, count in counts.items()
            if count != self._settled.get(node, 0) and self._may_be_lifted(node, counts)
        }

    def _may_be_lifted(self, node: str, counts: Mapping[str, int]) -> bool:
        """Whether the store's answer is newer than all that we have denied."""
        is_written = node not in self._denials.unwritten
        return is_written and self._denials.counts.get(node, 0) == counts.get(node, 0)

    def _take_out(self, denied: Mapping[str, Denial]) -> None:
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

    def _last(self, node: str, ours: set[str]) -> Denial:
        """The denial that stood last, as far as it is known here."""
        written = self._denials.written.get(node) if node in ours else None
        known = (self._denied.get(node), written)
        return max((x for x in known if x is not None), key=lambda x: x.wall_ns)

    def _tell_of(self, denied: Mapping[str, Denial], lost: Mapping[str, Denial]) -> None:
        for node, denial in denied.items():
            if denial not in {self._stand.get(node), self._denials.written.get(node)}:
                self._observer.denial(node, denial, DenialFate.STANDS)
        for node, denial in lost.items():
            self._observer.denial(node, denial, DenialFate.LOST)

    def _let_try(self, node: str, ended: Denial) -> None:
        self._observer.denial(node, ended, DenialFate.LIFTED)
        now_ns, wall_ns = self._times()
        changes = self._fleet.release(
            node, reason="its denial was lifted in the store", now_ns=now_ns, wall_ns=wall_ns
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


def code_of(denial: Denial) -> ReasonCode:
    """The reason code that people see; NODE_DENIED where the denial has none of ours."""
    return ReasonCode.__members__.get(denial.code, ReasonCode.NODE_DENIED)


def reason_of(denial: Denial) -> str:
    """The cause, and whose decision it was unless evidence decided."""
    if denial.actor == AUTOMATIC:
        return denial.reason
    return f"denied by {denial.actor}: {denial.reason}"
