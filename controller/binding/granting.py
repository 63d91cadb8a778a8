"""Makes a decided reservation one that counts: claimed, with a durable record, or taken back.

Shared by the gate on Bindings and the reservations at a pod's creation. A claim whose record
could not be made durable, whose answer came too late, or that stands on a ledger which was
found to have gone backwards meanwhile, is taken back. Must not choose anything.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from controller.audit.log import AuditUnavailableError
from controller.audit.record import Record
from controller.binding.decision import Reserve
from controller.binding.records import ReservationChange, reservation_record
from controller.binding.view import GrantRefusal, InFlight
from controller.ledger.claim import Claim
from controller.ledger.claimant import Claimed
from controller.ledger.states import HolderState, Origin
from gpuwarden.reasons import ReasonCode, Refusal


class Claims(Protocol):
    """The ledger's claiming shell."""

    async def claim(self, claim: Claim) -> Claimed | Refusal:
        """Reserve all GPUs of the claim, or none."""

    async def withdraw(self, claim: Claim) -> tuple[str, ...]:
        """Take back what the claim added; the GPUs of which that was so."""


class Grants(Protocol):
    """The part of the audit log that a reservation waits for."""

    async def grant(self, record: Record) -> None:
        """Return when the record is durable; raises AuditUnavailableError."""


class ChangeSink(Protocol):
    """Takes what becomes of reservations."""

    def changed(self, change: ReservationChange) -> None:
        """Record what became of a reservation; never waits, never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantPorts:
    """What is asked and told."""

    claims: Claims
    audit: Grants
    grant_refusal: GrantRefusal
    """At the moment of the answer."""
    sink: ChangeSink
    wake: Callable[[Iterable[str]], None]
    """Have pods tried anew that these nodes may take now."""
    draw_call: Callable[[], str]
    """Hex digits, unlike any other's."""


class Granting:
    """One per process; used from one event loop."""

    def __init__(self, ports: GrantPorts) -> None:
        self._ports = ports
        self.gpus: dict[str, InFlight] = {}
        """GPUs that claims are about now, and for whom."""
        self.tasks: set[asyncio.Task[Refusal | None]] = set()
        """Kept until they end, also when nobody waits for them any more."""

    async def reserve(self, reserve: Reserve, node: str, origin: Origin) -> Refusal | None:
        """Claim what was decided; a caller that is cancelled gets nothing, and nothing stays."""
        claim = Claim(
            reserve.reservation,
            reserve.pod,
            node,
            reserve.gpus,
            origin,
            self._ports.draw_call(),
            reserve.share,
        )
        self.gpus |= dict.fromkeys(reserve.gpus, InFlight(reserve.pod, reserve.share))
        task = self._kept(asyncio.create_task(self._claimed(claim)))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._kept(asyncio.create_task(self._withdrawn(task, claim)))
            raise

    async def _claimed(self, claim: Claim) -> Refusal | None:
        ports = self._ports
        reserved = _change(claim, claim.gpus, HolderState.PROPOSED, _CAUSES[claim.origin])
        try:
            found = await ports.claims.claim(claim)
            if isinstance(found, Refusal):
                return found
            try:
                await ports.audit.grant(reservation_record(reserved))
            except AuditUnavailableError as error:
                await ports.claims.withdraw(claim)
                return Refusal(ReasonCode.AUDIT_UNAVAILABLE, str(error))
            refusal = ports.grant_refusal(claim.node, ())
            if refusal is not None:
                await self._revoke(claim, "what is known became uncertain before the answer")
            return refusal
        finally:
            for gpu in claim.gpus:
                self.gpus.pop(gpu, None)

    async def _withdrawn(self, task: "asyncio.Task[Refusal | None]", claim: Claim) -> None:
        """The answer was not given after all."""
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is None and task.result() is None:
            await self._revoke(claim, "its answer came too late")

    async def _revoke(self, claim: Claim, cause: str) -> None:
        """Take a claim back that stands in the audit log."""
        gpus = await self._ports.claims.withdraw(claim)
        if gpus:
            self._ports.sink.changed(_change(claim, gpus, HolderState.REVOKED, cause))
            self._ports.wake((claim.node,))

    def _kept(self, task: "asyncio.Task[Refusal | None]") -> "asyncio.Task[Refusal | None]":
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task


_CAUSES = {Origin.GATE: "bind", Origin.ADMISSION: "admission"}


def _change(
    claim: Claim, gpus: tuple[str, ...], state: HolderState, cause: str
) -> ReservationChange:
    return ReservationChange(claim.pod, claim.reservation, claim.node, gpus, state, cause)
