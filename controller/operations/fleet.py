"""Fleet.

Holds: denial reconciler, operator operator_service.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from controller.fleet.enrollment import (
    AUTOMATIC,
    EnrollmentRecord,
    EnrollmentSnapshot,
    EnrollmentStore,
    EnrollmentUnavailableError,
    QuarantineEntry,
    write,
)
from controller.fleet.quarantine import (
    Change,
    PinChange,
    QuarantineEntries,
    QuarantineFate,
    Shown,
    accepted,
    pin_changes,
    pins_digest,
    released,
    show,
)
from controller.fleet.trust import TrustChange
from controller.fleet.view import FleetSnapshot, NodeState
from controller.record import AuditLog, AuditUnavailableError, Json, Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.clock import Clock
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

# --- denial reconciler
# Keeps the fleet of this controller and the store of one mind about who is denied.
#
# The store is read again and again: a denial that another replica, an operator or an earlier
# process wrote takes the node out here within a second. Only an operator's act lets it try
# again, and the record says which denial that act has ended. A denial that is gone without such
# a word was lost (a store that was put back to an old copy, an edit by hand): it stands here,
# and is written again. So is one that the audit log of this replica knows from before its
# start. An unreadable store changes nothing here and goes stale by itself.

Changes = tuple[TrustChange, ...]
LogReplayer = Callable[[], Awaitable[Mapping[str, QuarantineEntry]]]
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

    def denial(self, node: str, denial: QuarantineEntry, fate: QuarantineFate) -> None:
        """What the store says has become of a denial."""


class QuarantineReconciler:
    """One for the process."""

    def __init__(
        self,
        store: EnrollmentStore,
        denials: QuarantineEntries,
        fleet: DeniableFleet,
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
        """Denials that are in force here: seen in the store, or lost by it."""
        self._stand: Mapping[str, QuarantineEntry] = {}
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
        """Look forever."""
        while True:
            await asyncio.sleep(seconds)
            await self.look()

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
        """The denial that stood last, as far as it is known here."""
        written = self._denials.written.get(node) if node in ours else None
        known = (self._denied.get(node), written)
        return max((x for x in known if x is not None), key=lambda x: x.wall_ns)

    def _tell_of(
        self, denied: Mapping[str, QuarantineEntry], lost: Mapping[str, QuarantineEntry]
    ) -> None:
        for node, denial in denied.items():
            if denial not in {self._stand.get(node), self._denials.written.get(node)}:
                self._observer.denial(node, denial, QuarantineFate.STANDS)
        for node, denial in lost.items():
            self._observer.denial(node, denial, QuarantineFate.LOST)

    def _let_try(self, node: str, ended: QuarantineEntry) -> None:
        self._observer.denial(node, ended, QuarantineFate.LIFTED)
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


def code_of(denial: QuarantineEntry) -> ReasonCode:
    """The reason code that people see; NODE_DENIED where the denial has none of ours."""
    return ReasonCode.__members__.get(denial.code, ReasonCode.NODE_DENIED)


def reason_of(denial: QuarantineEntry) -> str:
    """The cause, and whose decision it was unless evidence decided."""
    if denial.actor == AUTOMATIC:
        return denial.reason
    return f"denied by {denial.actor}: {denial.reason}"


# --- operator operator_service
# Carries out what operators decide: accept, quarantine, release.
#
# Trust is let in only after its audit record is durable, and only by compare-and-set on
# what the operator was shown; it is taken away at once, and then recorded. An act goes on
# when its caller does not wait for the end. Must not know who may act, nor talk to callers.

_MAX_RACES: Final = 8

Decide = Callable[[Shown, EnrollmentSnapshot], EnrollmentRecord | Refusal]


class Act(StrEnum):
    """What operators do."""

    ACCEPT = "accept"
    QUARANTINE = "quarantine"
    RELEASE = "release"


_DECISION: Final = {
    Act.ACCEPT: "accepted",
    Act.QUARANTINE: "quarantined",
    Act.RELEASE: "released",
}


@dataclass(frozen=True, slots=True)
class Order:
    """One act on one node."""

    node: str
    reason: str
    actor: str
    """SPIFFE ID, or `local uid N`."""


@dataclass(frozen=True, slots=True)
class Done:
    """What came of it."""

    shown: Shown
    """The enrolment afterwards."""
    changes: tuple[PinChange, ...] = ()
    warnings: tuple[str, ...] = ()


class OperableFleet(Protocol):
    """The fleet, as operators change it."""

    def snapshot(self) -> FleetSnapshot:
        """The fleet now."""

    def quarantine(
        self, node: str, *, code: ReasonCode, reason: str, now_ns: int, wall_ns: int
    ) -> Changes:
        """Take the node out until it is released."""

    def release(self, node: str, *, reason: str, now_ns: int, wall_ns: int) -> Changes:
        """Let a quarantined node try again."""


class ActObserver(Protocol):
    """Is told about acts and what followed. Must return at once."""

    def acted(self, act: Act, order: Order, refusal: Refusal | None) -> None:
        """`refusal` is None where it was done."""

    def changed(self, changes: Changes, actor: str) -> None:
        """`actor` caused `changes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorServicePorts:
    """What the operator service works on."""

    store: EnrollmentStore
    denials: QuarantineEntries
    fleet: OperableFleet
    knows: Callable[[str], bool]
    """Whether the cluster has a node of this name."""
    audit: AuditLog
    clock: Clock
    observer: ActObserver


class OperatorService:
    """One for the process."""

    def __init__(self, ports: OperatorServicePorts) -> None:
        self._ports = ports
        self._running: set[asyncio.Task[Done | Refusal]] = set()

    async def accept(self, order: Order, expected: str) -> Done | Refusal:
        """Pin what the node has shown and end its denial, if `expected` is still what is shown."""
        return await self._run(
            Act.ACCEPT,
            order,
            self._let_in(Act.ACCEPT, order, lambda x, known: accepted(x, known, expected)),
        )

    async def release(self, order: Order, expected: str) -> Done | Refusal:
        """End the denial of the node, if `expected` is still what is shown."""
        return await self._run(
            Act.RELEASE,
            order,
            self._let_in(Act.RELEASE, order, lambda x, _: released(x, expected)),
        )

    async def quarantine(self, order: Order) -> Done | Refusal:
        """Take the node out, whatever else fails."""
        return await self._run(Act.QUARANTINE, order, self._take_out(order))

    async def _run(
        self, act: Act, order: Order, doing: Coroutine[Any, Any, Done | Refusal]
    ) -> Done | Refusal:
        """To its end, although the caller may go: an act must not stop half-way."""

        async def finish() -> Done | Refusal:
            result = await doing
            refusal = result if isinstance(result, Refusal) else None
            if refusal is not None:
                self._ports.audit.note(_refused(act, order, refusal))
            self._ports.observer.acted(act, order, refusal)
            return result

        task = asyncio.get_running_loop().create_task(finish())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _let_in(self, act: Act, order: Order, decide: Decide) -> Done | Refusal:
        """Decide, wait for the audit record, decide again on what stands then, write."""
        try:
            known = await self._ports.store.load()
            before = self.shown(order.node, known)
            decided = self._unknown(before) or decide(before, known)
            if isinstance(decided, Refusal):
                return decided
            await self._ports.audit.grant(_record(act, order, before, decided))
            written = await self._written(order.node, decide)
        except EnrollmentUnavailableError as error:
            return Refusal(ReasonCode.ENROLLMENT_STALE, str(error))
        except AuditUnavailableError as error:
            return Refusal(ReasonCode.AUDIT_UNAVAILABLE, str(error))
        if isinstance(written, Refusal):
            return written
        self._ports.denials.forget(order.node, written.unwritten)
        after = self.shown(order.node)
        if after.denial is None:
            self._let_try(act, order)
        return Done(after, pin_changes(written) if act is Act.ACCEPT else ())

    async def _written(self, node: str, decide: Decide) -> Shown | Refusal:
        """Compare-and-set; returns what was decided on.

        An update of the record that changes nothing of what was shown is no obstacle.
        """
        for _ in range(_MAX_RACES):
            known = self._ports.store.snapshot()
            shown = self.shown(node, known)
            decided = decide(shown, known)
            if isinstance(decided, Refusal):
                return decided
            if await write(self._ports.store, shown.record if shown.known else None, decided):
                return shown
        return Refusal(ReasonCode.ENROLLMENT_CONFLICT, f"the enrolment of {node} changes too fast")

    def _let_try(self, act: Act, order: Order) -> None:
        now_ns, wall_ns = self._times()
        reason = f"{_DECISION[act]} by {order.actor}: {order.reason}"
        changes = self._ports.fleet.release(
            order.node, reason=reason, now_ns=now_ns, wall_ns=wall_ns
        )
        self._ports.observer.changed(changes, order.actor)

    async def _take_out(self, order: Order) -> Done | Refusal:
        before = self.shown(order.node)
        if refusal := self._unknown(before):
            return refusal
        denial = QuarantineEntry(
            ReasonCode.NODE_DENIED, order.reason, order.actor, self._times()[1]
        )
        self._quarantine(order, denial)
        warnings = []
        if not await self._ports.denials.deny(order.node, denial):
            warnings.append("the denial is not in the store yet; it is tried again and again")
        stands = self.shown(order.node).denial
        if stands is not None and stands != denial:
            warnings.append(f"it was denied before, by {stands.actor}; that denial stands")
        record = _record(Act.QUARANTINE, order, before, before.record)
        try:
            await self._ports.audit.grant(record)
        except AuditUnavailableError as error:
            self._ports.audit.note(record)
            warnings.append(f"the audit record is not durable yet: {error}")
        return Done(self.shown(order.node), warnings=tuple(warnings))

    def _quarantine(self, order: Order, denial: QuarantineEntry) -> None:
        """At once; who is out already stays so for the first cause."""
        view = self._ports.fleet.snapshot().nodes.get(order.node)
        if view is not None and view.state(self._times()[0]) is NodeState.QUARANTINED:
            return
        changes = self._ports.fleet.quarantine(
            order.node,
            code=ReasonCode.NODE_DENIED,
            reason=f"denied by {order.actor}: {order.reason}",
            now_ns=self._times()[0],
            wall_ns=denial.wall_ns,
        )
        self._ports.observer.changed(changes, order.actor)

    def shown(self, node: str, known: EnrollmentSnapshot | None = None) -> Shown:
        """What an operator is shown of a node now, by `known` where it is given."""
        records = (known or self._ports.store.snapshot()).records
        return show(
            node,
            records.get(node),
            self._ports.fleet.snapshot().nodes.get(node),
            unwritten=self._ports.denials.unwritten.get(node),
            now_ns=self._times()[0],
        )

    def _unknown(self, shown: Shown) -> Refusal | None:
        node = shown.record.node
        if shown.known or node in self._ports.fleet.snapshot().nodes or self._ports.knows(node):
            return None
        return Refusal(ReasonCode.NODE_UNKNOWN, f"no node {node!a}")

    def _times(self) -> tuple[int, int]:
        return self._ports.clock.boottime_ns(), self._ports.clock.wall_ns()


def _record(act: Act, order: Order, before: Shown, after: EnrollmentRecord) -> Record:
    denial = before.denial
    lines: list[Json] = [
        f"{x.change} {x.subject} {x.pinned or '-'} {x.offered or '-'}"
        for x in pin_changes(before)
        if act is Act.ACCEPT and x.change is not Change.KEPT
    ]
    return Record(
        RecordKind.NODE_OPERATOR,
        actor=order.actor,
        subject=f"node/{order.node}",
        decision=_DECISION[act],
        codes=() if denial is None else (denial.code,),
        refs={
            "reason": order.reason,
            "denial": None if denial is None else f"{denial.actor}: {denial.reason}"[:300],
            "evidence": before.candidate.evidence_digest if before.candidate else None,
            "pinsBefore": pins_digest(before.record),
            "pinsAfter": pins_digest(after),
            "changes": lines,
        },
    )


def _refused(act: Act, order: Order, refusal: Refusal) -> Record:
    """Who tried what, and why it was not done."""
    return Record(
        RecordKind.NODE_OPERATOR,
        actor=order.actor,
        subject=f"node/{order.node}",
        decision="refused",
        codes=(refusal.code.value,),
        refs={"act": act.value, "reason": order.reason, "detail": refusal.detail[:300]},
    )
