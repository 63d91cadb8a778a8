"""Carries out what operators say about GPUs of silent nodes: one holder's end.

What may be done says `ledger.operator_release`. The order's audit record is durable before
anything is written, and an order goes on when its caller does not wait for the end. Must not know
who may give orders, nor talk to callers.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from controller.binding.reconciliation import (
    ReleaseDone,
    ReleaseOrder,
    change_of,
    order_record,
    refused_record,
)
from controller.binding.records import ReservationChange
from controller.binding.request import PodsUnavailableError
from controller.binding.use import HeardUse
from controller.ledger.record import GpuRecord, Holder, PodGone, PodRef, PodSeen
from controller.ledger.release import Known, released_by_operator
from controller.ledger.store import Entry, LedgerStore, LedgerUnavailableError
from controller.record import AuditLog, AuditUnavailableError
from gpuwarden.reasons import ReasonCode, Refusal

_MAX_RACES: Final = 8


class PodReader(Protocol):
    """The pods of the cluster, past every copy."""

    async def look(self, pod: PodRef) -> PodSeen | PodGone:
        """The pod of that UID at its newest; raises PodsUnavailableError."""


class ReleaseSink(Protocol):
    """Takes what became of orders. Must return at once."""

    def changed(self, change: ReservationChange) -> None:
        """A holder's end was written."""

    def wrote(self, result: str) -> None:
        """One write: written, overtaken or failed."""

    def ordered(self, order: ReleaseOrder, refusal: Refusal | None) -> None:
        """`refusal` is None where it was done, or nothing was left to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasePorts:
    """What is asked and told."""

    store: LedgerStore
    pods: PodReader
    heard: Callable[[str], HeardUse | None]
    """The last report of a node, while its lease lasts."""
    not_ready: Callable[[], str | None]
    """Why not every node was heard since the start; None once each had its turn."""
    audit: AuditLog
    sink: ReleaseSink
    wake: Callable[[Iterable[str]], None]
    """Have pods tried again that these nodes may take now."""


@dataclass(frozen=True, slots=True)
class _Decided:
    """What may be written now."""

    entry: Entry
    holder: Holder
    successor: GpuRecord
    evidence: str | None


class ReleaseService:
    """One for the process."""

    def __init__(self, ports: ReleasePorts) -> None:
        self._ports = ports
        self._running: set[asyncio.Task[ReleaseDone | Refusal]] = set()

    async def release(self, order: ReleaseOrder) -> ReleaseDone | Refusal:
        """End the part of one reservation in one GPU; to its end, although the caller may go."""
        task = asyncio.get_running_loop().create_task(self._finished(order))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _finished(self, order: ReleaseOrder) -> ReleaseDone | Refusal:
        try:
            result = await self._released(order)
        except (LedgerUnavailableError, PodsUnavailableError) as error:
            text = f"{error}; ask again, it may be done"
            result = Refusal(ReasonCode.LEDGER_UNAVAILABLE, text)
        except AuditUnavailableError as error:
            result = Refusal(ReasonCode.AUDIT_UNAVAILABLE, str(error))
        refusal = result if isinstance(result, Refusal) else None
        if refusal is not None:
            self._ports.audit.note(refused_record(order, refusal))
        self._ports.sink.ordered(order, refusal)
        return result

    async def _released(self, order: ReleaseOrder) -> ReleaseDone | Refusal:
        """Decide, wait for the audit record, decide again on what stands then, write."""
        ports = self._ports
        if (why := ports.not_ready()) is not None:
            return Refusal(ReasonCode.CONTROLLER_NOT_READY, why)
        found = await self._decided(order)
        if not isinstance(found, _Decided):
            return found
        await ports.audit.grant(order_record(order, found.entry, found.holder, found.evidence))
        for _ in range(_MAX_RACES):
            found = await self._decided(order)
            if not isinstance(found, _Decided):
                return found
            if await self._written(found):
                return self._done(order, found)
        return Refusal(ReasonCode.LEDGER_CONFLICT, f"the record of {order.gpu} changes too fast")

    async def _decided(self, order: ReleaseOrder) -> _Decided | ReleaseDone | Refusal:
        ports = self._ports
        entry = await ports.store.read(order.gpu)
        holder = None if entry is None else entry.record.holder(order.reservation)
        if entry is None or holder is None:
            return ReleaseDone(already=True)
        pod = PodGone() if holder.pod.uid is None else await ports.pods.look(holder.pod)
        heard = ports.heard(entry.record.node)
        known = Known(pod, None if heard is None else heard.report)
        successor = released_by_operator(entry.record, order.reservation, known)
        if isinstance(successor, Refusal):
            return successor
        if successor is None:
            return ReleaseDone(already=True)
        return _Decided(entry, holder, successor, None if heard is None else heard.evidence)

    async def _written(self, found: _Decided) -> bool:
        ports = self._ports
        try:
            written = await ports.store.compare_and_set(found.entry, found.successor)
        except LedgerUnavailableError:
            ports.sink.wrote("failed")
            raise
        ports.sink.wrote("written" if written else "overtaken")
        return written

    def _done(self, order: ReleaseOrder, found: _Decided) -> ReleaseDone:
        node, pod = found.entry.record.node, found.holder.pod
        self._ports.sink.changed(change_of(order, found.entry, found.holder))
        self._ports.wake((node,))
        return ReleaseDone(node, pod.namespace, pod.name or "")
