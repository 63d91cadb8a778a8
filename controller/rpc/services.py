"""Services.

Holds: fleet service, known fleet, placement service, operator service, support service.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NoReturn, Protocol

import grpc
from grpc import aio

from controller.access import present_caller
from controller.binding.reconciliation import ReleaseDone, ReleaseOrder
from controller.explain.node import find_class, findings, list_classes, pin_document
from controller.explain.pod import Account
from controller.fleet.denials import Shown
from controller.fleet.enrollment import DirectorySnapshot, NodeDirectory
from controller.fleet.view import EMPTY_FLEET, FleetSnapshot, NodeView
from controller.ledger.record import is_gpu, is_reservation
from controller.ledger.store import LedgerSnapshot
from controller.messages import (
    MOST,
    LabelsOf,
    PromiseOf,
    Wanted,
    account_message,
    change_messages,
    enrollment_message,
    gpu_messages,
    no_promise,
    node_message,
    refusal_messages,
    reservation_page,
    use_message,
)
from controller.operations.conditions import Readiness
from controller.operations.fleet import Done, Order
from controller.policy import Policy
from controller.rpc.attestation import NodeChange, NodeWatch
from controller.rpc.server import abort_with
from gpuwarden.clock import Clock
from gpuwarden.identity.spiffe_id import is_node_name
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.support.part import Part
from gpuwarden.wire.v1 import fleet_pb2 as pb_of_fleet_service
from gpuwarden.wire.v1 import fleet_pb2_grpc as pb_grpc_of_fleet_service
from gpuwarden.wire.v1 import operator_pb2 as pb_of_operator_service
from gpuwarden.wire.v1 import operator_pb2_grpc as pb_grpc_of_operator_service
from gpuwarden.wire.v1 import placement_pb2 as pb_of_placement_service
from gpuwarden.wire.v1 import placement_pb2_grpc as pb_grpc_of_placement_service
from gpuwarden.wire.v1 import support_pb2 as pb_of_support_service
from gpuwarden.wire.v1 import support_pb2_grpc as pb_grpc_of_support_service

# --- fleet service
# FleetService: read access to the verified fleet for people and tools.
#
# Every answer is made from one snapshot and one `now`. Callers are authorized before
# they come here. Must not change anything, nor wait for anything but its own readers.

_MAX_WATCHERS: Final = 64
_COALESCE_SECONDS: Final = 0.05
_MAX_POD_BYTES: Final = 1024 * 1024
_NS: Final = 1_000_000_000

Context = aio.ServicerContext[Any, Any]


class Fleet(Protocol):
    """The verified fleet, as readers see it."""

    def snapshot(self) -> FleetSnapshot:
        """The fleet now."""

    def subscribe(self, notify: Callable[[], None], /) -> Callable[[], None]:
        """Call `notify` in the event loop after each change; returns the way to stop that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReader:
    """Where answers come from. All of it is asked anew for each answer."""

    fleet: Fleet
    policy: Callable[[], Policy]
    shown: Callable[[str], Shown]
    """Pins, denial and candidate of a node."""
    readiness: Callable[[], Readiness]
    labels: Callable[[], LabelsOf]
    """Policy labels under the policy in force."""
    fit: Callable[[bytes, str], pb_of_fleet_service.FitPodResponse]
    """Which nodes would pass for a pod (JSON, default namespace); never raises."""
    promises: Callable[[], PromiseOf] = lambda: no_promise
    """What nodes promise at this moment."""


class FleetService(pb_grpc_of_fleet_service.FleetServiceServicer):
    """The servicer; one for both listeners."""

    def __init__(self, reader: FleetReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._wakes: set[asyncio.Event] = set()
        self._draining = False

    def drain(self) -> None:
        """End all watches with a clear status, because the controller stops."""
        self._draining = True
        for wake in self._wakes:
            wake.set()

    async def ListNodes(  # noqa: N802 - the method's name in the protocol
        self, request: pb_of_fleet_service.ListNodesRequest, context: Context
    ) -> pb_of_fleet_service.ListNodesResponse:
        """All nodes, sorted by name, with what stands in the way of deciding."""
        del request, context
        now_ns = self._clock.boottime_ns()
        labels_of = self._reader.labels()
        promise_of = self._reader.promises()
        state = self._reader.readiness()
        return pb_of_fleet_service.ListNodesResponse(
            nodes=[node_message(node, now_ns, labels_of, promise_of) for node in self._nodes()],
            not_ready="; ".join(state.reasons),
            warnings=state.warnings,
        )

    async def GetNode(  # noqa: N802 - same
        self, request: pb_of_fleet_service.GetNodeRequest, context: Context
    ) -> pb_of_fleet_service.GetNodeResponse:
        """One node with its GPUs; NOT_FOUND where it is unknown."""
        node = await self._node(request.name, context)
        message = self._message(node, self._clock.boottime_ns())
        enrollment = enrollment_message(self._reader.shown(node.name))
        use = use_message(node.acceptance)
        return pb_of_fleet_service.GetNodeResponse(node=message, enrollment=enrollment, use=use)

    async def ListGpus(  # noqa: N802 - same
        self, request: pb_of_fleet_service.ListGpusRequest, context: Context
    ) -> pb_of_fleet_service.ListGpusResponse:
        """Every GPU, or those of one node."""
        nodes = [await self._node(request.node, context, "node")] if request.node else self._nodes()
        labels_of = self._reader.labels()
        return pb_of_fleet_service.ListGpusResponse(
            gpus=[gpu for node in nodes for gpu in gpu_messages(node, labels_of)]
        )

    async def ListClasses(  # noqa: N802 - same
        self, request: pb_of_fleet_service.ListClassesRequest, context: Context
    ) -> pb_of_fleet_service.ListClassesResponse:
        """Classes of the fleet and of policy."""
        del request, context
        now_ns = self._clock.boottime_ns()
        classes = list_classes(self._reader.fleet.snapshot(), self._reader.policy(), now_ns)
        return pb_of_fleet_service.ListClassesResponse(classes=classes)

    async def GetClass(  # noqa: N802 - same
        self, request: pb_of_fleet_service.GetClassRequest, context: Context
    ) -> pb_of_fleet_service.GetClassResponse:
        """The class behind a hash, a prefix or a name."""
        now_ns = self._clock.boottime_ns()
        fleet, policy = self._reader.fleet.snapshot(), self._reader.policy()
        found = find_class(fleet, policy, request.class_ref, now_ns)
        if isinstance(found, Refusal):
            await abort_with(context, found, field="class_ref")
        return pb_of_fleet_service.GetClassResponse(attestation_class=found)

    async def ExplainNode(  # noqa: N802 - same
        self, request: pb_of_fleet_service.ExplainNodeRequest, context: Context
    ) -> pb_of_fleet_service.ExplainNodeResponse:
        """Why a node is or is not eligible."""
        node = await self._node(request.name, context)
        now_ns = self._clock.boottime_ns()
        shown = self._reader.shown(node.name)
        record = shown.record if shown.known else None
        accepted = node.acceptance
        return pb_of_fleet_service.ExplainNodeResponse(
            node=self._message(node, now_ns),
            refusals=refusal_messages(node.refusals),
            identity_document=accepted.identity_document.decode() if accepted else "",
            pin_document=pin_document(record),
            findings=findings(node, record, now_ns),
            enrollment=enrollment_message(shown),
        )

    async def FitPod(  # noqa: N802 - same
        self, request: pb_of_fleet_service.FitPodRequest, context: Context
    ) -> pb_of_fleet_service.FitPodResponse:
        """Which nodes would pass for a pod that does not exist yet."""
        if not 0 < len(request.pod_json) <= _MAX_POD_BYTES:
            detail = f"pod_json has {len(request.pod_json)} bytes, expected 1 to {_MAX_POD_BYTES}"
            await abort_with(context, Refusal(ReasonCode.REQ_INVALID, detail), field="pod_json")
        if request.namespace and not is_node_name(request.namespace):
            detail = f"namespace is {request.namespace[:80]!a}, expected an RFC 1123 name"
            await abort_with(context, Refusal(ReasonCode.REQ_INVALID, detail), field="namespace")
        return self._reader.fit(request.pod_json, request.namespace)

    async def WatchNodes(  # noqa: N802 - same
        self, request: pb_of_fleet_service.WatchNodesRequest, context: Context
    ) -> AsyncIterator[pb_of_fleet_service.WatchNodesResponse]:
        """The present nodes, a synced mark, then one message per node that changed."""
        del request
        if len(self._wakes) >= _MAX_WATCHERS:
            refusal = Refusal(ReasonCode.LIMIT_STREAMS, f"{_MAX_WATCHERS} watchers are open")
            await abort_with(context, refusal)
        wake = asyncio.Event()
        self._wakes.add(wake)
        unsubscribe = self._reader.fleet.subscribe(wake.set)
        try:
            watch = NodeWatch()
            for message in self._changed(watch):
                yield message
            yield pb_of_fleet_service.WatchNodesResponse(synced=True)
            while not self._draining:
                await self._sleep_until(watch.next_ns(), wake)
                wake.clear()
                for message in self._changed(watch):
                    yield message
            await context.abort(grpc.StatusCode.UNAVAILABLE, "this controller is stopping")
        finally:
            unsubscribe()
            self._wakes.discard(wake)

    def _changed(self, watch: NodeWatch) -> list[pb_of_fleet_service.WatchNodesResponse]:
        now_ns = self._clock.boottime_ns()
        labels_of, promise_of = self._reader.labels(), self._reader.promises()
        changes = watch.changes(self._reader.fleet.snapshot(), now_ns)
        return [_watch_message(change, now_ns, labels_of, promise_of) for change in changes]

    def _message(self, node: NodeView, now_ns: int) -> pb_of_fleet_service.Node:
        return node_message(node, now_ns, self._reader.labels(), self._reader.promises())

    async def _sleep_until(self, deadline_ns: int | None, wake: asyncio.Event) -> None:
        """Until something changed or a lease runs out; changes that come close are one."""
        seconds = None
        if deadline_ns is not None:
            seconds = max(0, deadline_ns - self._clock.boottime_ns()) / _NS
        try:
            async with asyncio.timeout(seconds):
                await wake.wait()
                await asyncio.sleep(_COALESCE_SECONDS)
        except TimeoutError:
            return

    def _nodes(self) -> list[NodeView]:
        nodes = self._reader.fleet.snapshot().nodes
        return [nodes[name] for name in sorted(nodes)]

    async def _node(self, name: str, context: Context, field: str = "name") -> NodeView:
        if not is_node_name(name):
            detail = f"{field} is {name[:80]!a}, expected an RFC 1123 node name"
            await abort_with(context, Refusal(ReasonCode.REQ_INVALID, detail), field=field)
        node = self._reader.fleet.snapshot().nodes.get(name)
        if node is None:
            unknown = Refusal(ReasonCode.NODE_UNKNOWN, f"no node {name!a}")
            await abort_with(context, unknown, field=field)
        return node


def _watch_message(
    change: NodeChange, now_ns: int, labels_of: LabelsOf, promise_of: PromiseOf
) -> pb_of_fleet_service.WatchNodesResponse:
    if change.node is None:
        return pb_of_fleet_service.WatchNodesResponse(
            node=pb_of_fleet_service.Node(name=change.name), removed=True
        )
    return pb_of_fleet_service.WatchNodesResponse(
        node=node_message(change.node, now_ns, labels_of, promise_of)
    )


# --- known fleet
# The fleet as people ask for it: what was verified, and the nodes nothing was heard of yet.
#
# A node that only the directory knows is shown as unknown, never as anything more.


class VerifiedFleet(Protocol):
    """The registry, as a reader sees it."""

    def snapshot(self) -> FleetSnapshot:
        """The fleet now."""

    def subscribe(self, notify: Callable[[], None], /) -> Callable[[], None]:
        """Call `notify` after each change; returns the way to stop that."""


class KnownFleet:
    """The verified fleet with the rest of the directory beside it."""

    def __init__(
        self, fleet: VerifiedFleet, directory: NodeDirectory, policy: Callable[[], Policy]
    ) -> None:
        self._fleet = fleet
        self._directory = directory
        self._policy = policy
        self._silent: dict[str, NodeView] = {}
        self._made: tuple[FleetSnapshot, DirectorySnapshot, Policy] | None = None
        self._snapshot = EMPTY_FLEET

    def snapshot(self) -> FleetSnapshot:
        """All nodes; made anew only when a source has changed."""
        sources = (self._fleet.snapshot(), self._directory.snapshot(), self._policy())
        if self._made is None or any(a is not b for a, b in zip(sources, self._made, strict=True)):
            self._snapshot = self._merge(*sources)
            self._made = sources
        return self._snapshot

    def subscribe(self, notify: Callable[[], None], /) -> Callable[[], None]:
        """As the verified fleet; the directory is looked at with each change."""
        return self._fleet.subscribe(notify)

    def _merge(
        self, fleet: FleetSnapshot, directory: DirectorySnapshot, policy: Policy
    ) -> FleetSnapshot:
        silent = {}
        for name in directory.nodes:
            if name not in fleet.nodes:
                silent[name] = self._silent_node(name, policy)
        self._silent = silent
        nodes = MappingProxyType({**silent, **fleet.nodes})
        return FleetSnapshot(nodes, fleet.nodes_by_hash, fleet.version)

    def _silent_node(self, name: str, policy: Policy) -> NodeView:
        """The same object as long as it says the same, so that watchers see no change."""
        mode = policy.mode(name)
        known = self._silent.get(name)
        if known is not None and known.mode is mode:
            return known
        return NodeView(name, acceptance=None, blocked=None, refusals=(), mode=mode)


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
