"""Carries out what operators decide about nodes: accept, quarantine, release.

Trust is given only after its audit record is durable, and only by compare-and-set on what the
operator was shown. Trust is taken away at once, and then recorded. An act goes on when its caller
does not wait for the end. Must not know who may act, nor talk to callers.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from controller.fleet.enrollment import (
    EnrollmentRecord,
    EnrollmentSnapshot,
    EnrollmentStore,
    EnrollmentUnavailableError,
    QuarantineEntry,
    write,
)
from controller.fleet.quarantine import (
    Change,
    EnrollmentChange,
    QuarantineEntries,
    Shown,
    accepted,
    enrollment_changes,
    enrollment_digest,
    released,
    show,
)
from controller.fleet.registry import FleetRegistry
from controller.fleet.trust import ChangeKind, TrustChange
from controller.fleet.view import NodeState
from controller.operations.quarantine_reconciler import code_of
from controller.record import AuditLog, AuditUnavailableError, Json, Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.clock import Clock
from gpuwarden.reasons import ReasonCode, Refusal

Changes = tuple[TrustChange, ...]
_MAX_RACES: Final = 8
_LISTED_FAULTS: Final = 16

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
    """SPIFFE ID, or `local uid N`; behind `claimed by` whom the caller has named."""


@dataclass(frozen=True, slots=True)
class Done:
    """What came of it."""

    shown: Shown
    """The enrolment afterwards."""
    changes: tuple[EnrollmentChange, ...] = ()
    warnings: tuple[str, ...] = ()


class ActObserver(Protocol):
    """Records acts and what followed (`controller.recorders`). Must return at once."""

    def acted(self, act: Act, order: Order, refusal: Refusal | None) -> None:
        """`refusal` is None where it was done."""

    def changed(self, changes: Changes, actor: str) -> None:
        """`actor` caused `changes`."""


class OperatorService:
    """One for the process."""

    def __init__(
        self,
        store: EnrollmentStore,
        denials: QuarantineEntries,
        fleet: FleetRegistry,
        *,
        knows: Callable[[str], bool],
        audit: AuditLog,
        clock: Clock,
        observer: ActObserver,
    ) -> None:
        """`knows`: whether the cluster has a node of this name."""
        self._store = store
        self._denials = denials
        self._fleet = fleet
        self._knows = knows
        self._audit = audit
        self._clock = clock
        self._observer = observer
        self._running: set[asyncio.Task[Done | Refusal]] = set()

    async def accept(self, order: Order, expected: str) -> Done | Refusal:
        """Enroll what the node has shown and end its quarantine, if `expected` is still shown."""
        return await self._run(
            Act.ACCEPT,
            order,
            self._give_trust(
                Act.ACCEPT,
                order,
                lambda x, known: accepted(x, known, expected, actor=order.actor),
            ),
        )

    async def release(self, order: Order, expected: str) -> Done | Refusal:
        """End the quarantine of the node, if `expected` is still what is shown.

        Where it is in none, end the faults of its GPUs.
        """
        return await self._run(
            Act.RELEASE,
            order,
            self._give_trust(
                Act.RELEASE, order, lambda x, _: released(x, expected, actor=order.actor)
            ),
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
                self._audit.note(_refused(act, order, refusal))
            self._observer.acted(act, order, refusal)
            return result

        task = asyncio.get_running_loop().create_task(finish())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _give_trust(self, act: Act, order: Order, decide: Decide) -> Done | Refusal:
        """Decide, wait for the audit record, decide again on what is known then, write."""
        try:
            known = await self._store.load()
            before = self.shown(order.node, known)
            decided = self._unknown(before) or decide(before, known)
            if isinstance(decided, Refusal):
                return decided
            await self._audit.grant(_record(act, order, before, decided))
            written = await self._write(order.node, decide)
        except EnrollmentUnavailableError as error:
            return Refusal(ReasonCode.ENROLLMENT_STALE, str(error))
        except AuditUnavailableError as error:
            return Refusal(ReasonCode.AUDIT_UNAVAILABLE, str(error))
        if isinstance(written, Refusal):
            return written
        self._denials.forget(order.node, written.unwritten)
        after = self.shown(order.node)
        if after.denial is None:
            self._let_try(act, order, written.denial)
        return Done(after, enrollment_changes(written) if act is Act.ACCEPT else ())

    async def _write(self, node: str, decide: Decide) -> Shown | Refusal:
        """Compare-and-set; returns what was decided on.

        An update of the record that changes nothing of what was shown is no obstacle.
        """
        for _ in range(_MAX_RACES):
            known = self._store.snapshot()
            shown = self.shown(node, known)
            decided = decide(shown, known)
            if isinstance(decided, Refusal):
                return decided
            if await write(self._store, shown.record if shown.known else None, decided):
                return shown
        return Refusal(ReasonCode.ENROLLMENT_CONFLICT, f"the enrolment of {node} changes too fast")

    def _let_try(self, act: Act, order: Order, ended: QuarantineEntry | None) -> None:
        """Report it for the order also where the store's watch was faster than its answer.

        Then the node has been let try already, without the name of who ended its quarantine.
        """
        now_ns, wall_ns = self._times()
        reason = f"{_DECISION[act]} by {order.actor}: {order.reason}"
        changes = self._fleet.release(order.node, reason=reason, now_ns=now_ns, wall_ns=wall_ns)
        if ended is not None and not changes:
            code = code_of(ended)
            changes = (TrustChange(order.node, ChangeKind.RELEASED, code, reason),)
        self._observer.changed(changes, order.actor)

    async def _take_out(self, order: Order) -> Done | Refusal:
        before = self.shown(order.node)
        if refusal := self._unknown(before):
            return refusal
        denial = QuarantineEntry(
            ReasonCode.NODE_DENIED, order.reason, order.actor, self._times()[1]
        )
        self._quarantine(order, denial)
        warnings = []
        if not await self._denials.deny(order.node, denial):
            warnings.append(
                "the quarantine entry is not in the store yet; it is tried again and again"
            )
        stands = self.shown(order.node).denial
        if stands is not None and stands != denial:
            warnings.append(f"it was quarantined before, by {stands.actor}; that entry is in force")
        record = _record(Act.QUARANTINE, order, before, before.record)
        try:
            await self._audit.grant(record)
        except AuditUnavailableError as error:
            self._audit.note(record)
            warnings.append(f"the audit record is not durable yet: {error}")
        return Done(self.shown(order.node), warnings=tuple(warnings))

    def _quarantine(self, order: Order, denial: QuarantineEntry) -> None:
        """At once; who is out already stays so for the first cause."""
        view = self._fleet.snapshot().nodes.get(order.node)
        if view is not None and view.state(self._times()[0]) is NodeState.QUARANTINED:
            return
        changes = self._fleet.quarantine(
            order.node,
            code=ReasonCode.NODE_DENIED,
            reason=f"quarantined by {order.actor}: {order.reason}",
            now_ns=self._times()[0],
            wall_ns=denial.wall_ns,
        )
        self._observer.changed(changes, order.actor)

    def shown(self, node: str, known: EnrollmentSnapshot | None = None) -> Shown:
        """What an operator is shown of a node now, by `known` where it is given."""
        records = (known or self._store.snapshot()).records
        return show(
            node,
            records.get(node),
            self._fleet.snapshot().nodes.get(node),
            unwritten=self._denials.unwritten.get(node),
            now_ns=self._times()[0],
        )

    def _unknown(self, shown: Shown) -> Refusal | None:
        node = shown.record.node
        if shown.known or node in self._fleet.snapshot().nodes or self._knows(node):
            return None
        return Refusal(ReasonCode.NODE_UNKNOWN, f"no node {node!a}")

    def _times(self) -> tuple[int, int]:
        return self._clock.boottime_ns(), self._clock.wall_ns()


def _record(act: Act, order: Order, before: Shown, after: EnrollmentRecord) -> Record:
    denial = before.denial
    lines: list[Json] = [
        f"{x.change} {x.subject} {x.enrolled or '-'} {x.offered or '-'}"
        for x in enrollment_changes(before)
        if act is Act.ACCEPT and x.change is not Change.KEPT
    ]
    faults = [x for x in before.record.faults if x not in after.faults]
    ended: list[Json] = [f"{x.gpu} xid {x.xid}" for x in faults[:_LISTED_FAULTS]]
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
            "pinsBefore": enrollment_digest(before.record),
            "pinsAfter": enrollment_digest(after),
            "changes": lines,
            "faultsEnded": ended,
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
