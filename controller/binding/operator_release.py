"""Releases a GPU of a silent node by an operator's order.

The steps, in order, with the reason code that each of them gives:

1. Not every node was heard since the start: CONTROLLER_NOT_READY.
2. The pod has not ended, or the holder is not being released: RESERVATION_IN_FORCE.
3. The node's last report shows use by the pod: RESERVATION_IN_USE.
4. The audit record of the order is made durable: AUDIT_UNAVAILABLE.
5. Steps 2 and 3 again, on what is there by now.
6. The holder's end is written: LEDGER_UNAVAILABLE, LEDGER_CONFLICT.

An order goes on although its caller does not wait for the end. Must not know who may give orders.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from controller.binding.records import (
    ReleaseOrder,
    ReservationChange,
    ReservationSink,
    order_record,
    refused_record,
)
from controller.binding.request import PodStates, PodsUnavailableError
from controller.ledger.record import GpuRecord, HolderState, PodGone
from controller.ledger.release import Known, UseReport, released_by_operator
from controller.ledger.store import LedgerStore, LedgerUnavailableError, Written, change_record
from controller.record import AuditLog, AuditUnavailableError
from gpuwarden.reasons import ReasonCode, Refusal


@dataclass(frozen=True, slots=True)
class ReleaseDone:
    """What came of an order."""

    node: str = ""
    namespace: str = ""
    pod: str = ""
    already: bool = False
    """The GPU was free of that reservation, or never its: nothing was done."""


@dataclass(eq=False, kw_only=True)
class ReleaseService:
    """One per process."""

    store: LedgerStore
    pods: PodStates
    heard: Callable[[str], UseReport | None]
    """The last report of a node, while its lease lasts."""
    not_ready: Callable[[], str | None]
    """Why not every node was heard since the start; None once each had its turn."""
    audit: AuditLog
    sink: ReservationSink
    wake: Callable[[Iterable[str]], None]
    """Have pods tried again that these nodes may take now."""
    _running: set[asyncio.Task[ReleaseDone | Refusal]] = field(init=False, default_factory=set)

    async def release(self, order: ReleaseOrder) -> ReleaseDone | Refusal:
        """End the part of one reservation in one GPU; to its end, although the caller may go."""
        task = asyncio.get_running_loop().create_task(self._carry_out(order))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _carry_out(self, order: ReleaseOrder) -> ReleaseDone | Refusal:
        try:
            result = await self._release(order)
        except (LedgerUnavailableError, PodsUnavailableError) as error:
            text = f"{error}; ask again, it may be done"
            result = Refusal(ReasonCode.LEDGER_UNAVAILABLE, text)
        except AuditUnavailableError as error:
            result = Refusal(ReasonCode.AUDIT_UNAVAILABLE, str(error))
        refusal = result if isinstance(result, Refusal) else None
        if refusal is not None:
            self.audit.note(refused_record(order, refusal))
        self.sink.ordered(order, refusal)
        return result

    async def _release(self, order: ReleaseOrder) -> ReleaseDone | Refusal:
        """Decide, wait for the audit record, decide again on what is there then, write."""
        if (why := self.not_ready()) is not None:
            return Refusal(ReasonCode.CONTROLLER_NOT_READY, why)
        entry = await self.store.read(order.gpu)
        if entry is None:
            return ReleaseDone(already=True)
        found = await self._decide(order, entry.record)
        if not isinstance(found, GpuRecord):
            return found
        heard = self.heard(found.node)
        evidence = None if heard is None else heard.evidence
        await self.audit.grant(order_record(order, entry.record, evidence))
        await self.store.read(order.gpu)

        async def decide(record: GpuRecord | None) -> GpuRecord | ReleaseDone | Refusal:
            return await self._decide(order, record)

        written: Written | ReleaseDone | Refusal = await change_record(
            self.store, order.gpu, decide, self.sink.wrote
        )
        return self._done(order, entry.record) if isinstance(written, Written) else written

    async def _decide(
        self, order: ReleaseOrder, record: GpuRecord | None
    ) -> GpuRecord | ReleaseDone | Refusal:
        holder = None if record is None else record.holder(order.reservation)
        if record is None or holder is None:
            return ReleaseDone(already=True)
        pod = PodGone() if holder.pod.uid is None else await self.pods.look(holder.pod)
        known = Known(pod, self.heard(record.node))
        successor = released_by_operator(record, order.reservation, known)
        return ReleaseDone(already=True) if successor is None else successor

    def _done(self, order: ReleaseOrder, record: GpuRecord) -> ReleaseDone:
        pod, node = order.pod_in(record), record.node
        cause = f"an operator said so: {order.reason}"
        self.sink.changed(
            ReservationChange(
                pod,
                order.reservation,
                node,
                (record.gpu,),
                HolderState.RELEASED,
                cause,
                order.actor,
            )
        )
        self.wake((node,))
        return ReleaseDone(node, pod.namespace, pod.name or "")
