"""PlacementService, OperatorService and SupportService.

They check the form of a request and turn refusals into statuses; callers are authorized before
they come here. Must not decide what an operator's act does, nor know what is in a support bundle.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

from controller.access import present_caller
from controller.binding.reconciliation import ReleaseDone, ReleaseOrder
from controller.explain.pod import Account
from controller.ledger.record import is_gpu, is_reservation
from controller.ledger.store import LedgerSnapshot
from controller.messages import (
    MOST,
    Wanted,
    account_message,
    change_messages,
    enrollment_message,
    reservation_page,
)
from controller.operations.fleet import Done, Order
from controller.rpc.calls import Context, abort_with
from gpuwarden.clock import Clock
from gpuwarden.identity.spiffe_id import is_node_name
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.support.part import Part
from gpuwarden.wire.v1 import operator_pb2 as pb_of_operator_service
from gpuwarden.wire.v1 import operator_pb2_grpc as pb_grpc_of_operator_service
from gpuwarden.wire.v1 import placement_pb2 as pb_of_placement_service
from gpuwarden.wire.v1 import placement_pb2_grpc as pb_grpc_of_placement_service
from gpuwarden.wire.v1 import support_pb2 as pb_of_support_service
from gpuwarden.wire.v1 import support_pb2_grpc as pb_grpc_of_support_service

# --- placement service
# PlacementService: who holds which GPU, and a pod's way to its own, for people and tools.
#
# Callers are authorized before they come here. Must not change anything.

NO_LEDGER: Final = "this controller reserves nothing: it has no cluster, or no admission.tls"
NO_PODS: Final = "this controller has no Kubernetes API to ask, and knows no pods"
_UNREAD: Final = "the ledger was not read lately"
_MAX_CHARS: Final = 253
AT_ONCE: Final = 4
"""Answers that are made at a time, of all callers; others wait as long as they like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementReader:
    """Where answers come from. All of it is asked anew for each answer."""

    ledger: Callable[[], LedgerSnapshot] | None
    """None where nothing is reserved."""
    about: Callable[[str, str], Awaitable[Account | Refusal]] | None = None
    """What is known of the pod of a namespace and name; None where no pods are known."""


class PlacementService(pb_grpc_of_placement_service.PlacementServiceServicer):
    """The servicer; one for both listeners."""

    def __init__(self, reader: PlacementReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._few = asyncio.Semaphore(AT_ONCE)

    async def ListReservations(  # noqa: N802 - the method's name in the protocol
        self, request: pb_of_placement_service.ListReservationsRequest, context: Context
    ) -> pb_of_placement_service.ListReservationsResponse:
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
        self, request: pb_of_placement_service.ExplainPodRequest, context: Context
    ) -> pb_of_placement_service.ExplainPodResponse:
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


# --- operator service
# OperatorService: the acts of operators, for callers that were authorized before they come here.
#
# Checks the form of a request, says who acts, and turns refusals into statuses; what an act
# does is the desk's business.

MAX_REASON: Final = 500
_MAX_VERSION: Final = 128


class Desk(Protocol):
    """Where acts are carried out."""

    async def accept(self, order: Order, expected: str) -> Done | Refusal:
        """Pin what the node has shown."""

    async def quarantine(self, order: Order) -> Done | Refusal:
        """Take the node out."""

    async def release(self, order: Order, expected: str) -> Done | Refusal:
        """End the denial of the node."""


class Releases(Protocol):
    """Where GPUs are released."""

    async def release(self, order: ReleaseOrder) -> ReleaseDone | Refusal:
        """End one reservation's part in one GPU."""


class OperatorService(pb_grpc_of_operator_service.OperatorServiceServicer):
    """The servicer; one for both listeners."""

    def __init__(self, desk: Desk, releases: Releases | None = None) -> None:
        """`releases` is None where nothing is reserved."""
        self._desk = desk
        self._releases = releases

    async def AcceptNode(  # noqa: N802 - the method's name in the protocol
        self, request: pb_of_operator_service.AcceptNodeRequest, context: Context
    ) -> pb_of_operator_service.AcceptNodeResponse:
        """Make the hardware that the node has shown its pins."""
        order = await _order(request.name, request.reason, context)
        expected = await _expected(request.expected_version, context)
        done = await _done(await self._desk.accept(order, expected), context)
        return pb_of_operator_service.AcceptNodeResponse(
            enrollment=enrollment_message(done.shown), changes=change_messages(done.changes)
        )

    async def QuarantineNode(  # noqa: N802 - the method's name in the protocol
        self, request: pb_of_operator_service.QuarantineNodeRequest, context: Context
    ) -> pb_of_operator_service.QuarantineNodeResponse:
        """Take the node out until an operator lets it back in."""
        order = await _order(request.name, request.reason, context)
        done = await _done(await self._desk.quarantine(order), context)
        return pb_of_operator_service.QuarantineNodeResponse(
            enrollment=enrollment_message(done.shown), warnings=done.warnings
        )

    async def ReleaseNode(  # noqa: N802 - the method's name in the protocol
        self, request: pb_of_operator_service.ReleaseNodeRequest, context: Context
    ) -> pb_of_operator_service.ReleaseNodeResponse:
        """End the denial of a node; its pins stay."""
        order = await _order(request.name, request.reason, context)
        expected = await _expected(request.expected_version, context)
        done = await _done(await self._desk.release(order, expected), context)
        return pb_of_operator_service.ReleaseNodeResponse(enrollment=enrollment_message(done.shown))

    async def ReleaseGpu(  # noqa: N802 - the method's name in the protocol
        self, request: pb_of_operator_service.ReleaseGpuRequest, context: Context
    ) -> pb_of_operator_service.ReleaseGpuResponse:
        """End one reservation's part in one GPU whose node is silent."""
        if not is_gpu(request.gpu):
            await _invalid(context, "gpu", f"{request.gpu[:80]!a}", "a UUID as GPU-… or MIG-…")
        if not is_reservation(request.reservation):
            shown = f"{request.reservation[:80]!a}"
            await _invalid(context, "reservation", shown, "the id of a reservation")
        reason = await _reason(request.reason, context)
        if self._releases is None:
            await abort_with(context, Refusal(ReasonCode.LEDGER_UNAVAILABLE, NO_LEDGER))
        caller = present_caller().name
        order = ReleaseOrder(request.gpu, request.reservation, reason, caller)
        done = await self._releases.release(order)
        if isinstance(done, Refusal):
            await abort_with(context, done)
        return pb_of_operator_service.ReleaseGpuResponse(
            already=done.already, node=done.node, namespace=done.namespace, pod=done.pod
        )


async def _order(node: str, reason: str, context: Context) -> Order:
    if not is_node_name(node):
        await _invalid(context, "name", f"{node[:80]!a}", "an RFC 1123 node name")
    return Order(node, await _reason(reason, context), present_caller().name)


async def _reason(reason: str, context: Context) -> str:
    if not 0 < len(reason) <= MAX_REASON or not reason.isprintable() or not reason.strip():
        shown = f"{len(reason)} characters" if len(reason) > MAX_REASON else f"{reason[:80]!a}"
        await _invalid(context, "reason", shown, f"1 to {MAX_REASON} printable characters")
    return reason.strip()


async def _expected(version: str, context: Context) -> str:
    if not 0 < len(version) <= _MAX_VERSION:
        await _invalid(
            context, "expected_version", f"{version[:80]!a}", "the version that was shown"
        )
    return version


async def _done(result: Done | Refusal, context: Context) -> Done:
    if isinstance(result, Refusal):
        await abort_with(context, result)
    return result


async def _invalid(context: Context, field: str, value: str, expected: str) -> NoReturn:
    refusal = Refusal(ReasonCode.REQ_INVALID, f"{field} is {value}, expected {expected}")
    await abort_with(context, refusal, field=field)


# --- support service
# SupportService: sends the parts of a support bundle to whoever was authorized to read.
#
# Must not know what is in a part.

CHUNK_BYTES: Final = 1 << 20


class SupportService(pb_grpc_of_support_service.SupportServiceServicer):
    """The servicer; one for both listeners."""

    def __init__(self, parts: Callable[[], AsyncIterator[Part]]) -> None:
        self._parts = parts
        self._open = 0

    async def Collect(  # noqa: N802 - the method's name in the protocol
        self, request: pb_of_support_service.CollectRequest, context: Context
    ) -> AsyncIterator[pb_of_support_service.CollectResponse]:
        """All parts, in chunks."""
        del request
        if self._open >= AT_ONCE:
            text = f"{AT_ONCE} support bundles are being made"
            await abort_with(context, Refusal(ReasonCode.LIMIT_STREAMS, text))
        self._open += 1
        try:
            async for part in self._parts():
                for message in _messages(part):
                    yield message
        finally:
            self._open -= 1


def _messages(part: Part) -> Iterator[pb_of_support_service.CollectResponse]:
    content = part.content or b""
    yield pb_of_support_service.CollectResponse(
        part=part.name,
        content=content[:CHUNK_BYTES],
        missing=part.missing,
        withheld=part.withheld,
        left_out=part.left_out,
    )
    for start in range(CHUNK_BYTES, len(content), CHUNK_BYTES):
        yield pb_of_support_service.CollectResponse(
            part=part.name, content=content[start : start + CHUNK_BYTES]
        )
