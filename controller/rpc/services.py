"""PlacementService, OperatorService and SupportService.

They check the form of a request and turn refusals into statuses; callers are authorized before
they come here. Must not decide what an operator's act does, nor know what is in a support bundle.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final, NoReturn

from controller.access import CallerKind, present_caller
from controller.admission.eviction import Evictions
from controller.binding.operator_release import ReleaseService
from controller.binding.records import ReleaseOrder
from controller.binding.use_reconciler import UseNow
from controller.explain.pod import AllocationTrace
from controller.explain.tenant_messages import shown_reservations, shown_trace
from controller.ledger.record import is_gpu, is_reservation
from controller.ledger.store import LedgerSnapshot
from controller.messages import (
    MAX_RESERVATIONS,
    ReservationQuery,
    change_messages,
    enrollment_message,
    eviction_page,
    reservation_page,
    trace_message,
)
from controller.operations.operator_service import Done, OperatorService, Order
from controller.people.roles import NO_NAMESPACE
from controller.rpc.calls import Context, abort_with, reject_field
from controller.rpc.tenants import AboutPods, demand_pods, no_tenants
from controller.rpc.use import use_message
from gpuwarden.clock import Clock
from gpuwarden.identity.person import PERSON, is_person
from gpuwarden.identity.spiffe_id import is_node_name
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.support.part import Part
from gpuwarden.wire.v1 import (
    operator_pb2,
    operator_pb2_grpc,
    placement_pb2,
    placement_pb2_grpc,
    support_pb2,
    support_pb2_grpc,
)

# --- placement

NO_LEDGER: Final = "this controller reserves nothing: it has no cluster, or no admission.tls"
NO_PODS: Final = "this controller has no Kubernetes API to ask, and knows no pods"
_UNREAD: Final = "the ledger was not read lately"
_MAX_CHARS: Final = 253
_MAX_KEY_CHARS: Final = 3 * _MAX_CHARS + 2
"""Of node, namespace and pod."""
AT_ONCE: Final = 4
"""Answers that are made at a time, of all callers; others wait as long as they like."""


class PlacementServicer(placement_pb2_grpc.PlacementServiceServicer):
    """The servicer; one for both listeners."""

    def __init__(
        self,
        ledger: Callable[[], LedgerSnapshot] | None,
        clock: Clock,
        *,
        about: Callable[[str, str], Awaitable[AllocationTrace | Refusal]] | None = None,
        evicted: Callable[[str], Awaitable[Evictions | Refusal]] | None = None,
        use: Callable[[], UseNow] | None = None,
        about_pods: AboutPods = no_tenants,
    ) -> None:
        """`ledger` is None where nothing is reserved; `about_pods`: whose pods a tenant may see.

        `use` gives what nodes show of the use of GPUs; None where nothing is reserved.

        `about` gives what is known of the pod of a namespace and name, `evicted` what the taint of
        managed nodes evicts from a node, or from all; None without a Kubernetes API.
        """
        self._ledger = ledger
        self._about = about
        self._evicted = evicted
        self._use = use
        self._about_pods = about_pods
        self._clock = clock
        self._few = asyncio.Semaphore(AT_ONCE)

    async def ListReservations(  # noqa: N802 - the method's name in the protocol
        self, request: placement_pb2.ListReservationsRequest, context: Context
    ) -> placement_pb2.ListReservationsResponse:
        """One page; LEDGER_UNAVAILABLE where the ledger is not known."""
        for field, text in (("node", request.node), ("namespace", request.namespace)):
            if text:
                await _demand_name(context, field, text)
        await _demand_page(context, request.limit, request.after, _MAX_CHARS)
        is_tenant = await self._demand_namespace(context, request.namespace)
        wanted = ReservationQuery(
            request.node, request.namespace, request.after, request.limit or MAX_RESERVATIONS
        )
        async with self._few:
            ledger = await self._read_ledger(context)
            page = await asyncio.to_thread(reservation_page, ledger, wanted, self._clock.wall_ns())
        return shown_reservations(page) if is_tenant else page

    async def ExplainPod(  # noqa: N802 - same
        self, request: placement_pb2.ExplainPodRequest, context: Context
    ) -> placement_pb2.ExplainPodResponse:
        """The account of a pod; POD_UNKNOWN where nothing is known of it."""
        for field, text in (("namespace", request.namespace), ("name", request.name)):
            await _demand_name(context, field, text)
        is_tenant = await demand_pods(context, self._about_pods, request.namespace, request.name)
        if self._about is None:
            await abort_with(context, Refusal(ReasonCode.POD_UNKNOWN, NO_PODS))
        async with self._few:
            found = await self._about(request.namespace, request.name)
        if isinstance(found, Refusal):
            await abort_with(context, found, field="name")
        trace = trace_message(found, self._clock.wall_ns())
        return shown_trace(trace) if is_tenant else trace

    async def CheckProtection(  # noqa: N802 - same
        self, request: placement_pb2.CheckProtectionRequest, context: Context
    ) -> placement_pb2.CheckProtectionResponse:
        """One page; NODE_UNKNOWN for a node that the cluster lacks."""
        if request.node:
            await _demand_name(context, "node", request.node)
        await _demand_page(context, request.limit, request.after, _MAX_KEY_CHARS)
        if self._evicted is None:
            await abort_with(context, Refusal(ReasonCode.POD_UNKNOWN, NO_PODS))
        async with self._few:
            found = await self._evicted(request.node)
            if isinstance(found, Refusal):
                await abort_with(context, found, field="node")
            limit = request.limit or MAX_RESERVATIONS
            return await asyncio.to_thread(eviction_page, found, request.after, limit)

    async def ListUse(  # noqa: N802 - same
        self, request: placement_pb2.ListUseRequest, context: Context
    ) -> placement_pb2.ListUseResponse:
        """What nodes show; LEDGER_UNAVAILABLE where nothing is reserved."""
        if request.namespace:
            await _demand_name(context, "namespace", request.namespace)
        if self._use is None:
            await abort_with(context, Refusal(ReasonCode.LEDGER_UNAVAILABLE, NO_LEDGER))
        return use_message(self._use(), request.namespace)

    async def _demand_namespace(self, context: Context, namespace: str) -> bool:
        """End the call of a tenant who names no namespace, or one that they may not read."""
        if not namespace and present_caller().kind is CallerKind.TENANT:
            await abort_with(context, NO_NAMESPACE, field="namespace")
        return await demand_pods(context, self._about_pods, namespace)

    async def _read_ledger(self, context: Context) -> LedgerSnapshot:
        if self._ledger is None:
            await abort_with(context, Refusal(ReasonCode.LEDGER_UNAVAILABLE, NO_LEDGER))
        ledger = self._ledger()
        if self._clock.boottime_ns() >= ledger.fresh_until_ns:
            await abort_with(context, Refusal(ReasonCode.LEDGER_UNAVAILABLE, _UNREAD))
        return ledger


async def _demand_name(context: Context, field: str, text: str) -> None:
    if not is_node_name(text):
        await reject_field(context, field, f"{field} is {text[:80]!a}, expected an RFC 1123 name")


async def _demand_page(context: Context, limit: int, after: str, longest: int) -> None:
    if limit > MAX_RESERVATIONS:
        text = f"limit is {limit}, expected 1 to {MAX_RESERVATIONS}"
        await reject_field(context, "limit", text)
    if len(after) > longest:
        await reject_field(context, "after", f"after: expected at most {longest} characters")


# --- acts of operators

MAX_REASON: Final = 500
_MAX_VERSION: Final = 128


class OperatorServicer(operator_pb2_grpc.OperatorServiceServicer):
    """The servicer; one for both listeners."""

    def __init__(
        self, operator_service: OperatorService, releases: ReleaseService | None = None
    ) -> None:
        """`releases` is None where nothing is reserved."""
        self._operator_service = operator_service
        self._releases = releases

    async def AcceptNode(  # noqa: N802 - the method's name in the protocol
        self, request: operator_pb2.AcceptNodeRequest, context: Context
    ) -> operator_pb2.AcceptNodeResponse:
        """Enroll the hardware that the node has shown."""
        order = await _read_order(request, context)
        expected = await _read_version(request.expected_version, context)
        done = await _unwrap(await self._operator_service.accept(order, expected), context)
        return operator_pb2.AcceptNodeResponse(
            enrollment=enrollment_message(done.shown), changes=change_messages(done.changes)
        )

    async def QuarantineNode(  # noqa: N802 - the method's name in the protocol
        self, request: operator_pb2.QuarantineNodeRequest, context: Context
    ) -> operator_pb2.QuarantineNodeResponse:
        """Take the node out until an operator lets it back in."""
        order = await _read_order(request, context)
        done = await _unwrap(await self._operator_service.quarantine(order), context)
        return operator_pb2.QuarantineNodeResponse(
            enrollment=enrollment_message(done.shown), warnings=done.warnings
        )

    async def ReleaseNode(  # noqa: N802 - the method's name in the protocol
        self, request: operator_pb2.ReleaseNodeRequest, context: Context
    ) -> operator_pb2.ReleaseNodeResponse:
        """End the quarantine of a node; its enrolled GPUs stay."""
        order = await _read_order(request, context)
        expected = await _read_version(request.expected_version, context)
        done = await _unwrap(await self._operator_service.release(order, expected), context)
        return operator_pb2.ReleaseNodeResponse(enrollment=enrollment_message(done.shown))

    async def ReleaseGpu(  # noqa: N802 - the method's name in the protocol
        self, request: operator_pb2.ReleaseGpuRequest, context: Context
    ) -> operator_pb2.ReleaseGpuResponse:
        """End one reservation's part in one GPU whose node is silent."""
        if not is_gpu(request.gpu):
            await _reject(context, "gpu", f"{request.gpu[:80]!a}", "a UUID as GPU-… or MIG-…")
        if not is_reservation(request.reservation):
            shown = f"{request.reservation[:80]!a}"
            await _reject(context, "reservation", shown, "the id of a reservation")
        reason = await _read_reason(request.reason, context)
        actor = await _read_actor(request.claimed_by, context)
        if self._releases is None:
            await abort_with(context, Refusal(ReasonCode.LEDGER_UNAVAILABLE, NO_LEDGER))
        order = ReleaseOrder(request.gpu, request.reservation, reason, actor)
        done = await self._releases.release(order)
        if isinstance(done, Refusal):
            await abort_with(context, done)
        return operator_pb2.ReleaseGpuResponse(
            already=done.already, node=done.node, namespace=done.namespace, pod=done.pod
        )


_Named = (
    operator_pb2.AcceptNodeRequest
    | operator_pb2.QuarantineNodeRequest
    | operator_pb2.ReleaseNodeRequest
)


async def _read_order(request: _Named, context: Context) -> Order:
    if not is_node_name(request.name):
        await _reject(context, "name", f"{request.name[:80]!a}", "an RFC 1123 node name")
    reason = await _read_reason(request.reason, context)
    return Order(request.name, reason, await _read_actor(request.claimed_by, context))


async def _read_actor(claimed: str, context: Context) -> str:
    """Who acts: what is proven, and what the caller says beside it."""
    proven = present_caller().name
    if not claimed:
        return proven
    if not is_person(claimed):
        await _reject(context, "claimed_by", f"{claimed[:80]!a}", PERSON)
    return f"{proven}, claimed by {claimed}"


async def _read_reason(reason: str, context: Context) -> str:
    if not 0 < len(reason) <= MAX_REASON or not reason.isprintable() or not reason.strip():
        shown = f"{len(reason)} characters" if len(reason) > MAX_REASON else f"{reason[:80]!a}"
        await _reject(context, "reason", shown, f"1 to {MAX_REASON} printable characters")
    return reason.strip()


async def _read_version(version: str, context: Context) -> str:
    if not 0 < len(version) <= _MAX_VERSION:
        await _reject(
            context, "expected_version", f"{version[:80]!a}", "the version that was shown"
        )
    return version


async def _unwrap(result: Done | Refusal, context: Context) -> Done:
    if isinstance(result, Refusal):
        await abort_with(context, result)
    return result


async def _reject(context: Context, field: str, value: str, expected: str) -> NoReturn:
    await reject_field(context, field, f"{field} is {value}, expected {expected}")


# --- support bundles

CHUNK_BYTES: Final = 1 << 20


class SupportServicer(support_pb2_grpc.SupportServiceServicer):
    """The servicer; one for both listeners."""

    def __init__(self, parts: Callable[[], AsyncIterator[Part]]) -> None:
        self._parts = parts
        self._open = 0

    async def Collect(  # noqa: N802 - the method's name in the protocol
        self, request: support_pb2.CollectRequest, context: Context
    ) -> AsyncIterator[support_pb2.CollectResponse]:
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


def _messages(part: Part) -> Iterator[support_pb2.CollectResponse]:
    content = part.content or b""
    yield support_pb2.CollectResponse(
        part=part.name,
        content=content[:CHUNK_BYTES],
        missing=part.missing,
        withheld=part.withheld,
        left_out=part.left_out,
    )
    for start in range(CHUNK_BYTES, len(content), CHUNK_BYTES):
        yield support_pb2.CollectResponse(
            part=part.name, content=content[start : start + CHUNK_BYTES]
        )
