"""PlacementService: who holds which GPU, and a pod's way to its own, for people and tools.

Callers are authorized before they come here. Must not change anything.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from grpc import aio

from controller.custody.account import Account
from controller.ledger.store import LedgerSnapshot
from controller.rpc.account_message import account_message
from controller.rpc.failure import abort_with
from controller.rpc.reservation_messages import MOST, Wanted, reservation_page
from gpuwarden.clock import Clock
from gpuwarden.identity.spiffe_id import is_node_name
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import placement_pb2 as pb
from gpuwarden.wire.v1 import placement_pb2_grpc as pb_grpc

NO_LEDGER: Final = "this controller reserves nothing: it has no cluster, or no admission.tls"
NO_PODS: Final = "this controller has no Kubernetes API to ask, and knows no pods"
_UNREAD: Final = "the ledger was not read lately"
_MAX_CHARS: Final = 253
AT_ONCE: Final = 4
"""Answers that are made at a time, of all callers; others wait as long as they like."""

Context = aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementReader:
    """Where answers come from. All of it is asked anew for each answer."""

    ledger: Callable[[], LedgerSnapshot] | None
    """None where nothing is reserved."""
    about: Callable[[str, str], Awaitable[Account | Refusal]] | None = None
    """What is known of the pod of a namespace and name; None where no pods are known."""


class PlacementService(pb_grpc.PlacementServiceServicer):
    """The servicer; one for both listeners."""

    def __init__(self, reader: PlacementReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._few = asyncio.Semaphore(AT_ONCE)

    async def ListReservations(  # noqa: N802 - the method's name in the protocol
        self, request: pb.ListReservationsRequest, context: Context
    ) -> pb.ListReservationsResponse:
        """One page; LEDGER_UNAVAILABLE where the ledger is not known."""
        for field, text in (("node", request.node), ("namespace", request.namespace)):
            if text:
                await _demand_name(context, field, text)
        if request.limit > MOST:
            await _refuse(context, "limit", f"limit is {request.limit}, expected 1 to {MOST}")
        if len(request.after) > _MAX_CHARS:
            await _refuse(context, "after", f"after: expected at most {_MAX_CHARS} characters")
        wanted = Wanted(request.node, request.namespace, request.after, request.limit or MOST)
        async with self._few:
            ledger = await self._ledger(context)
            return await asyncio.to_thread(reservation_page, ledger, wanted, self._clock.wall_ns())

    async def ExplainPod(  # noqa: N802 - same
        self, request: pb.ExplainPodRequest, context: Context
    ) -> pb.ExplainPodResponse:
        """The account of a pod; POD_UNKNOWN where nothing is known of it."""
        for field, text in (("namespace", request.namespace), ("name", request.name)):
            await _demand_name(context, field, text)
        if self._reader.about is None:
            await abort_with(context, Refusal(ReasonCode.POD_UNKNOWN, NO_PODS))
        async with self._few:
            found = await self._reader.about(request.namespace, request.name)
        if isinstance(found, Refusal):
            await abort_with(context, found, field="name")
        return account_message(found, self._clock.wall_ns())

    async def _ledger(self, context: Context) -> LedgerSnapshot:
        if self._reader.ledger is None:
            await abort_with(context, Refusal(ReasonCode.LEDGER_UNAVAILABLE, NO_LEDGER))
        ledger = self._reader.ledger()
        if self._clock.boottime_ns() >= ledger.fresh_until_ns:
            await abort_with(context, Refusal(ReasonCode.LEDGER_UNAVAILABLE, _UNREAD))
        return ledger


async def _demand_name(context: Context, field: str, text: str) -> None:
    if not is_node_name(text):
        await _refuse(context, field, f"{field} is {text[:80]!a}, expected an RFC 1123 name")


async def _refuse(context: Context, field: str, detail: str) -> None:
    await abort_with(context, Refusal(ReasonCode.REQ_INVALID, detail), field=field)
