"""OperatorService: the acts of operators, for callers that were authorized before they come here.

Checks the form of a request, says who acts, and turns refusals into statuses; what an act
does is the desk's business.
"""

from typing import Any, Final, NoReturn, Protocol

from grpc import aio

from controller.binding.release_orders import ReleaseDone, ReleaseOrder
from controller.ledger.record import is_gpu, is_reservation
from controller.operator_desk import Done, Order
from controller.rpc.caller import present_caller
from controller.rpc.enrollment_messages import change_messages, enrollment_message
from controller.rpc.failure import abort_with
from controller.rpc.placement_service import NO_LEDGER
from gpuwarden.identity.spiffe_id import is_node_name
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import operator_pb2 as pb
from gpuwarden.wire.v1 import operator_pb2_grpc as pb_grpc

MAX_REASON: Final = 500
_MAX_VERSION: Final = 128

Context = aio.ServicerContext[Any, Any]


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


class OperatorService(pb_grpc.OperatorServiceServicer):
    """The servicer; one for both listeners."""

    def __init__(self, desk: Desk, releases: Releases | None = None) -> None:
        """`releases` is None where nothing is reserved."""
        self._desk = desk
        self._releases = releases

    async def AcceptNode(  # noqa: N802 - the method's name in the protocol
        self, request: pb.AcceptNodeRequest, context: Context
    ) -> pb.AcceptNodeResponse:
        """Make the hardware that the node has shown its pins."""
        order = await _order(request.name, request.reason, context)
        expected = await _expected(request.expected_version, context)
        done = await _done(await self._desk.accept(order, expected), context)
        return pb.AcceptNodeResponse(
            enrollment=enrollment_message(done.shown), changes=change_messages(done.changes)
        )

    async def QuarantineNode(  # noqa: N802 - the method's name in the protocol
        self, request: pb.QuarantineNodeRequest, context: Context
    ) -> pb.QuarantineNodeResponse:
        """Take the node out until an operator lets it back in."""
        order = await _order(request.name, request.reason, context)
        done = await _done(await self._desk.quarantine(order), context)
        return pb.QuarantineNodeResponse(
            enrollment=enrollment_message(done.shown), warnings=done.warnings
        )

    async def ReleaseNode(  # noqa: N802 - the method's name in the protocol
        self, request: pb.ReleaseNodeRequest, context: Context
    ) -> pb.ReleaseNodeResponse:
        """End the denial of a node; its pins stay."""
        order = await _order(request.name, request.reason, context)
        expected = await _expected(request.expected_version, context)
        done = await _done(await self._desk.release(order, expected), context)
        return pb.ReleaseNodeResponse(enrollment=enrollment_message(done.shown))

    async def ReleaseGpu(  # noqa: N802 - the method's name in the protocol
        self, request: pb.ReleaseGpuRequest, context: Context
    ) -> pb.ReleaseGpuResponse:
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
        return pb.ReleaseGpuResponse(
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
